"""What every component needs to know: where things go, what they are called, their tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import resources

from infra.naming import Names, names
from infra.settings import Settings


@dataclass(frozen=True)
class Site:
    """The resource group of an environment, and what all resources in it share.

    `public_access` is what Azure calls whether public addresses answer: Enabled or Disabled.
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


def site(settings: Settings) -> Site:
    """The resource group that the settings name, and the rest of the environment's frame."""
    called = names(settings)
    tags = {
        "environment": settings.environment,
        "costCenter": settings.cost_center,
        "owner": settings.owner,
        "repository": settings.repository,
        "managedBy": "pulumi",
    }
    group = resources.ResourceGroup(
        "group",
        resource_group_name=called.group,
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
        names=called,
        tags=tags,
        protect=settings.guardrails.protect,
        public_access="Disabled" if settings.private else "Enabled",
    )
