"""What all components share: settings, resource group, names, tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime.config import get_config_env
from pulumi_azure_native import resources

from infra.settings.azure import Names
from infra.settings.loader import PLACE, SECRETS
from infra.settings.model import Settings

Options = pulumi.ResourceOptions | None  # of a component


def configuration() -> dict[str, str]:
    """Return Pulumi's configuration without secrets: the program's namespace and PLACE."""
    values = {}
    for key in get_config_env():
        space, _, name = key.partition(":")
        if key in PLACE or (space == pulumi.get_project() and key not in SECRETS):
            values[key] = pulumi.Config(space).require(name)
    return values


@dataclass(frozen=True)
class Site:
    """The resource group of an environment, and what all its resources share."""

    settings: Settings
    group: pulumi.Output[str]
    group_id: pulumi.Output[str]
    tags: Mapping[str, str]

    @property
    def names(self) -> Names:
        """The names of its resources."""
        return self.settings.names

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that most resources share."""
        return {
            "resource_group_name": self.group,
            "location": self.settings.location,
            "tags": self.tags,
        }

    @property
    def protect(self) -> bool:
        """True if Pulumi refuses to delete resources that hold data."""
        return self.settings.guardrails.protect

    @property
    def public_access(self) -> str:
        """Azure's term: Enabled or Disabled."""
        return "Disabled" if self.settings.private else "Enabled"


class Component(pulumi.ComponentResource):
    """A component of a stack, whose name prefixes the names of its children.

    A program can thus have several instances. The children of an instance named in `usual`, as
    stacks have, get no prefix.
    """

    def __init__(
        self, kind: str, name: str, opts: Options, *usual: str, props: pulumi.Inputs | None = None
    ) -> None:
        super().__init__(f"platform:{kind}", name, props, opts)
        self._prefix = "" if name in usual else f"{name}-"

    def child(self, name: str) -> str:
        """Return the name of a child."""
        return f"{self._prefix}{name}"


def site(settings: Settings) -> Site:
    """Return the site of an environment; declares its resource group unless it is given one.

    All resources that have tags keep those of `kept_tags`, which an update would remove otherwise.
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
