"""The limits of each environment, from limits.yml."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_type_hints

from pydantic import Field

from ml.core import documents, settings
from ml.core.errors import Problem, UserError
from ml.core.imports import ROOT
from ml.core.settings import CLOSED

FILE = ROOT / "policies/infra/limits.yml"
BASE = "default"
# The largest values that limits.yml may set; beyond them a limit would restrict nothing.
MOST_NODES, MOST_IDLE_MINUTES, MOST_BUDGET, MOST_GB = 100, 1440, 1_000_000, 1000
# Rules that `advice` of an environment may name: public addresses, copies, alerts. Any other rule
# needs a waiver, which names a resource and expires.
ADVISABLE = frozenset(
    (
        *("workspace-public-access", "workspace-isolation", "workspace-outbound-endpoint"),
        *("private-endpoints", "private-names", "workspace-names", "endpoint-public-access"),
        *("storage-public-access", "storage-default-deny", "storage-redundancy", "data-kept"),
        *("storage-defender", "vault-public-access", "vault-firewall", "registry-public-access"),
        *("registry-zones", "redis-public-access", "redis-replicated", "assets-public-access"),
        *("alerts", "diagnostics"),
    )
)
# A host or an e-mail address, without wildcards.
_HOST = r"^[A-Za-z0-9][A-Za-z0-9.@+_-]*\.[A-Za-z]{2,}$"
Count = Annotated[int, Field(ge=0, le=MOST_NODES)]
Times = Annotated[int, Field(ge=1, le=100)]
Days = Annotated[int, Field(ge=1, le=730)]


@dataclass(frozen=True)
class Limits:
    """The limits of one environment. A number bounds one resource, unless its comment says more."""

    __pydantic_config__ = CLOSED

    max_nodes: Count
    idle_minutes: Annotated[int, Field(ge=0, le=MOST_IDLE_MINUTES)]
    gpu_sizes: tuple[str, ...]
    regions: tuple[str, ...]
    tags: tuple[str, ...]  # tags that resources must have
    advice: tuple[str, ...]  # rules whose violations do not block a deployment
    # Ids of existing resources, or of resource groups, that the stack may use.
    given: tuple[Annotated[str, Field(pattern="^/subscriptions/[^/]+/resourceGroups/[^/]+")], ...]
    dns_by_policy: bool  # True if Azure Policy registers the DNS names of private endpoints
    principals: tuple[str, ...]  # object ids of the people and groups that may have roles
    redis_sizes: tuple[str, ...] = ()
    # Hosts and e-mail addresses that alerts and connections may reach.
    hosts: tuple[Annotated[str, Field(pattern=_HOST)], ...] = ()
    tenants: tuple[str, ...] = ()  # () allows any one, if all resources name the same
    subscriptions: tuple[str, ...] = ()  # as `tenants`
    repositories: tuple[str, ...] = ()  # whose workflows may sign in to Azure
    reviewers: tuple[str, ...] = ()  # who may approve deployments; () means no approval is needed
    registries: tuple[str, ...] = ()  # shared Azure ML registries, by name
    max_gpu_nodes: Count = 0  # of all clusters together
    max_dedicated_gpu_nodes: Count = 0  # of all clusters together, without spot nodes
    max_budget: Annotated[int, Field(ge=0, le=MOST_BUDGET)] = 0  # a month
    max_budget_of_typical: Times = 10  # budget ÷ typical month; a larger budget warns too late
    max_worst_of_budget: Times = 5  # worst month ÷ budget
    max_log_gb: Annotated[int, Field(ge=1, le=MOST_GB)] = 1  # a day
    max_alert_threshold: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_key_days: Days = 90  # between rotations
    min_log_days: Days = 90
    min_data_days: Days = 90  # before data may be deleted
    min_image_days: Days = 30  # before an untagged image is deleted
    min_restore_days: Days = 30  # in which a deletion can be undone

    def allows_id(self, id: str) -> bool:
        """Return whether a resource id is in `given`, or below one that is; case is ignored."""
        resource_path = f"{id}/".lower()
        return any(
            resource_path.startswith(f"{listed.rstrip('/')}/".lower()) for listed in self.given
        )


def load(
    rules: Collection[str], file: Path = FILE, fork_rules: Collection[str] = ()
) -> Mapping[str, Limits]:
    """Read the limits of each environment, including `default`.

    `advice` may name `rules` in `ADVISABLE`, or the fork's `fork_rules`. An environment states its
    differences from `default`, or `{}`. Raises UserError with every problem of the file.
    """
    document = documents.read(file)
    differences = settings.read(_FILE, document)
    base = settings.read(Limits, document, BASE)
    problems = [
        Problem(
            "wrong-value",
            f"`{name}.advice` names `{rule}`",
            "the name of a rule" if rule not in rules else f"one of {', '.join(sorted(ADVISABLE))}",
            "" if rule not in rules else "to exempt one resource: policies/infra/waivers.yml",
            place=document.place(name, "advice"),
        )
        for name, stated in differences.items()
        for rule in stated.get("advice", ())
        if rule not in rules or rule not in ADVISABLE | {*fork_rules}
    ]
    folder = file.parents[2] / "infra"
    stacks = [path.name.split(".")[1] for path in sorted(folder.glob("Pulumi.*.yaml"))]
    problems += [
        Problem(
            "unknown-stack",
            f"`{name}` has no stack file",
            f"one of {', '.join([BASE, *stacks])}",
            f"correct the name, or add infra/Pulumi.{name}.yaml",
            place=document.place(name),
        )
        for name in differences
        if stacks and name not in (BASE, *stacks)
    ]
    if problems:
        raise UserError(*problems)
    return {name: replace(base, **stated) for name, stated in differences.items()}


def for_urn(limits: Mapping[str, Limits], urn: str) -> Limits:
    """Return the limits of a URN's environment; the strictest ones if limits.yml lacks it."""
    name = environment(urn)
    return limits[name] if name in limits and name != BASE else strictest(limits)


def strictest(limits: Mapping[str, Limits]) -> Limits:
    """Return the tightest value of each limit over all environments; the fallback for others."""
    every = list(limits.values())

    def tightest(name: str) -> Any:
        first, *others = values = [getattr(stack_limits, name) for stack_limits in every]
        if name == "tags":
            return tuple(dict.fromkeys(tag for value in values for tag in value))
        if isinstance(first, tuple):
            return tuple(item for item in first if all(item in value for value in others))
        return max(values) if name.startswith("min_") else min(values)

    return Limits(**{field.name: tightest(field.name) for field in fields(Limits)})


def environment(urn: str) -> str:
    """Return the stack in `urn:pulumi:STACK::PROJECT::TYPE::NAME`."""
    return urn.removeprefix("urn:pulumi:").split("::")[0]


# The schema of limits.yml: environment → any of the limits.
_FILE: Any = GenericAlias(
    dict, (str, settings.mapping(get_type_hints(Limits, include_extras=True), required=False))
)
