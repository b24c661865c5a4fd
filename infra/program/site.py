"""What all components share: resource group, names, tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_azure_native import resources

from infra.settings.azure import Names
from infra.settings.model import Settings


@dataclass(frozen=True)
class Site:
    """The resource group of an environment, and what all its resources share.

    `public_access` is Azure's term: Enabled or Disabled.
    """

    group: pulumi.Output[str]
    group_id: pulumi.Output[str]
    location: str
    subscription: str
    tenant: str
    names: Names
    tags: Mapping[str, str]
    protect: bool
    public_access: str

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that most resources share."""
        return {
            "resource_group_name": self.group,
            "location": self.location,
            "tags": self.tags,
        }


def site(settings: Settings) -> Site:
    """The site of an environment; declares its resource group."""
    tags = {
        "environment": settings.environment,
        "costCenter": settings.cost_center,
        "owner": settings.owner,
        "repository": settings.repository,
        "managedBy": "pulumi",
    }
    group = resources.ResourceGroup(
        "group",
        resource_group_name=settings.names.group,
        location=settings.location,
        tags=tags,
        opts=pulumi.ResourceOptions(protect=settings.guardrails.protect),
    )
    return Site(
        group=group.name,
        group_id=group.id,
        location=settings.location,
        subscription=settings.subscription,
        tenant=settings.tenant,
        names=settings.names,
        tags=tags,
        protect=settings.guardrails.protect,
        public_access="Disabled" if settings.private else "Enabled",
    )
