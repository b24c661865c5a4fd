"""What an environment may spend and where it may be; from limits.yml, per environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from policies.infra import documents

FILE = Path(__file__).with_name("limits.yml")
BASE = "default"


@dataclass(frozen=True)
class Limits:
    """The limits of one environment; `advice` are the rules that only advise in it."""

    max_nodes: int
    idle_minutes: int
    gpu_sizes: tuple[str, ...]
    regions: tuple[str, ...]
    tags: tuple[str, ...]
    advice: tuple[str, ...]


def load(rules: Iterable[str], file: Path = FILE) -> Mapping[str, Limits]:
    """Limits by environment, `default` among them; ValueError says what is wrong with the file.

    An environment states what differs from `default`, or `{}`. `rules` are the names that `advice`
    may have.
    """
    documents.composed(file)
    try:
        stated = yaml.safe_load(file.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    if not isinstance(stated, dict) or BASE not in stated:
        raise ValueError(f"{file.name}: a mapping of environments with `{BASE}`")
    base = _checked(file, BASE, stated[BASE], {})
    found = {name: _checked(file, name, one, vars(base)) for name, one in stated.items()}
    known = set(rules)
    for name, one in found.items():
        for rule in one.advice:
            if rule not in known:
                raise ValueError(f"{file.name}: `{name}.advice`: no rule `{rule}`")
    return found


def of(limits: Mapping[str, Limits], urn: str) -> Limits:
    """The limits of the environment that a URN belongs to; where it is not there, `strictest`."""
    name = environment(urn)
    return limits[name] if name in limits and name != BASE else strictest(limits)


def strictest(limits: Mapping[str, Limits]) -> Limits:
    """Of each limit the tightest that any environment has: nobody has said more of this one."""
    every = list(limits.values())

    def common(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        first, *rest = lists
        return tuple(one for one in first if all(one in other for other in rest))

    return Limits(
        max_nodes=min(one.max_nodes for one in every),
        idle_minutes=min(one.idle_minutes for one in every),
        gpu_sizes=common(one.gpu_sizes for one in every),
        regions=common(one.regions for one in every),
        tags=tuple(dict.fromkeys(tag for one in every for tag in one.tags)),
        advice=common(one.advice for one in every),
    )


def environment(urn: str) -> str:
    """The stack in `urn:pulumi:STACK::PROJECT::TYPE::NAME`."""
    return urn.removeprefix("urn:pulumi:").split("::")[0]


def _checked(file: Path, name: str, stated: Any, base: Mapping[str, Any]) -> Limits:
    values = dict(base)
    if not isinstance(stated, dict):
        raise ValueError(f"{file.name}: `{name}`: a mapping")
    known = {one.name: str(one.type) for one in fields(Limits)}
    for key, value in stated.items():
        if key not in known:
            raise ValueError(f"{file.name}: `{name}.{key}`: one of {', '.join(known)}")
        if known[key] == "int":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{file.name}: `{name}.{key}`: a whole number")
        elif not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"{file.name}: `{name}.{key}`: a list of names")
        values[key] = tuple(value) if isinstance(value, list) else value
    missing = known.keys() - values.keys()
    if missing:
        raise ValueError(f"{file.name}: `{name}`: no {', '.join(sorted(missing))}")
    return Limits(**values)
