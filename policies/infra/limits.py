"""The limits of each environment, from limits.yml."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_type_hints

from pydantic import Field

from ml.core import documents, settings
from ml.core.errors import Problem, Refused
from ml.core.imports import ROOT
from ml.core.settings import CLOSED

FILE = ROOT / "policies/infra/limits.yml"
BASE = "default"
# Beyond these a limit limits nothing: the cost of a thousand nodes, and a day of idle ones.
MOST_NODES, MOST_IDLE_MINUTES = 1000, 1440


@dataclass(frozen=True)
class Limits:
    """The limits of one environment; `advice` names the rules that only advise there.

    `given` are the ids of resources that its stack may use although no stack makes them, and of
    groups of them; `dns_by_policy`: Azure Policy registers the names of private endpoints;
    `principals` are the object ids of the people and groups that may have roles.
    """

    __pydantic_config__ = CLOSED

    max_nodes: Annotated[int, Field(ge=0, le=MOST_NODES)]
    idle_minutes: Annotated[int, Field(ge=0, le=MOST_IDLE_MINUTES)]
    gpu_sizes: tuple[str, ...]
    regions: tuple[str, ...]
    tags: tuple[str, ...]
    advice: tuple[str, ...]
    given: tuple[Annotated[str, Field(pattern="^/subscriptions/[^/]+/resourceGroups/[^/]+")], ...]
    dns_by_policy: bool
    principals: tuple[str, ...]
    redis_sizes: tuple[str, ...] = ()

    def knows(self, id: str) -> bool:
        """Whether a resource id is a listed one, or of something in it; Azure ignores case."""
        here = f"{id}/".lower()
        return any(here.startswith(f"{listed.rstrip('/')}/".lower()) for listed in self.given)


def load(rules: Collection[str], file: Path = FILE) -> Mapping[str, Limits]:
    """Limits by environment, `default` included; `rules` are the names that `advice` may have.

    An environment states what differs from `default`, or `{}`. Raises Refused with every problem
    of the file.
    """
    document = documents.read(file)
    differences = settings.read(_FILE, document)
    base = settings.read(Limits, document, BASE)
    problems = [
        Problem(
            "wrong-value",
            f"`{name}.advice` names `{rule}`",
            "the name of a rule",
            place=document.place(name, "advice"),
        )
        for name, stated in differences.items()
        for rule in stated.get("advice", ())
        if rule not in rules
    ]
    if problems:
        raise Refused(*problems)
    return {name: replace(base, **stated) for name, stated in differences.items()}


def of(limits: Mapping[str, Limits], urn: str) -> Limits:
    """The limits of the environment that a URN belongs to; the strictest where it has none."""
    name = environment(urn)
    return limits[name] if name in limits and name != BASE else strictest(limits)


def strictest(limits: Mapping[str, Limits]) -> Limits:
    """Of each limit the tightest that any environment has, for an environment without limits."""
    every = list(limits.values())

    def common(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        first, *others = lists
        return tuple(name for name in first if all(name in other for other in others))

    return Limits(
        max_nodes=min(each.max_nodes for each in every),
        idle_minutes=min(each.idle_minutes for each in every),
        gpu_sizes=common(each.gpu_sizes for each in every),
        regions=common(each.regions for each in every),
        tags=tuple(dict.fromkeys(tag for each in every for tag in each.tags)),
        advice=common(each.advice for each in every),
        given=common(each.given for each in every),
        dns_by_policy=all(each.dns_by_policy for each in every),
        principals=common(each.principals for each in every),
        redis_sizes=common(each.redis_sizes for each in every),
    )


def environment(urn: str) -> str:
    """The stack in `urn:pulumi:STACK::PROJECT::TYPE::NAME`."""
    return urn.removeprefix("urn:pulumi:").split("::")[0]


# An environment may state each limit, or none.
_FILE: Any = GenericAlias(
    dict, (str, settings.mapping(get_type_hints(Limits, include_extras=True), required=False))
)
