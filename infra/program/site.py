"""The base of all components: settings, resource group, names, tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime.config import get_config_env
from pulumi_azure_native import resources

from infra.settings.azure import Names
from infra.settings.loader import PROVIDER_KEYS, SECRETS
from infra.settings.model import Settings

Options = pulumi.ResourceOptions | None  # of a component


def configuration() -> dict[str, str]:
    """Return Pulumi's configuration without secrets: the project's keys and PROVIDER_KEYS."""
    values = {}
    for key in get_config_env():
        space, _, name = key.partition(":")
        if key in PROVIDER_KEYS or (space == pulumi.get_project() and key not in SECRETS):
            values[key] = pulumi.Config(space).require(name)
    return values


@dataclass(frozen=True)
class Site:
    """The settings, resource group and tags that all resources of an environment share."""

    settings: Settings
    group: pulumi.Output[str]
    group_id: pulumi.Output[str]
    tags: Mapping[str, str]

    @property
    def names(self) -> Names:
        """The names of the environment's resources."""
        return self.settings.names

    @property
    def place(self) -> dict[str, Any]:
        """The arguments for resource group, location and tags."""
        return {
            "resource_group_name": self.group,
            "location": self.settings.location,
            "tags": self.tags,
        }

    @property
    def protect(self) -> bool:
        """True if Pulumi protects resources that hold data from deletion."""
        return self.settings.guardrails.protect

    @property
    def public_access(self) -> str:
        """The value of `public_network_access`: "Enabled" or "Disabled"."""
        return "Disabled" if self.settings.private else "Enabled"


class Component(pulumi.ComponentResource):
    """A component of a stack, whose name prefixes its children's names to allow several instances.

    An instance named in `usual`, as all in this program are, gives its children no prefix.
    """

    def __init__(
        self, kind: str, name: str, opts: Options, *usual: str, props: pulumi.Inputs | None = None
    ) -> None:
        super().__init__(f"platform:{kind}", name, props, opts)
        self._prefix = "" if name in usual else f"{name}-"

    def child(self, name: str) -> str:
        """Return the logical name of a child resource, with the component's prefix."""
        return f"{self._prefix}{name}"


def site(settings: Settings) -> Site:
    """Return the site of an environment; declare its resource group unless the settings name one.

    Also make updates ignore the tags named in `kept_tags`, which they would remove otherwise.
    """
    ignored = [f'tags["{name}"]' for name in settings.kept_tags]

    def keep(made: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not made.props.get("tags") or "tags" in (made.opts.ignore_changes or ()):
            return None
        more = pulumi.ResourceOptions(ignore_changes=ignored)
        options = pulumi.ResourceOptions.merge(made.opts, more)
        return pulumi.ResourceTransformationResult(made.props, options)

    if ignored:
        pulumi.runtime.register_stack_transformation(keep)
    tags = {
        **settings.tags,
        "environment": settings.environment,
        "costCenter": settings.cost_center,
        "owner": settings.owner,
        "repository": settings.repository,
        "managedBy": "pulumi",
    }
    if settings.resource_group:
        group_name = pulumi.Output.from_input(settings.resource_group)
        place = f"/subscriptions/{settings.subscription}/resourceGroups/"
        return Site(settings, group_name, pulumi.Output.concat(place, group_name), tags)
    group = resources.ResourceGroup(
        "group",
        resource_group_name=settings.names.group,
        location=settings.location,
        tags=tags,
        opts=pulumi.ResourceOptions(protect=settings.guardrails.protect),
    )
    return Site(settings, group.name, group.id, tags)
