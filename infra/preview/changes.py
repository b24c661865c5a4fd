"""What a change of the program or its settings changes: resources, property by property."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.preview.captured import Capture, Resource

ABSENT = "(not set)"


@dataclass(frozen=True)
class Property:
    """A property at a dotted path, before and after; `ABSENT` where it is not set."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Change:
    """What becomes of a resource; `properties` are those that differ, of a changed one alone."""

    what: Literal["added", "removed", "changed"]
    kind: str
    name: str
    urn: str
    properties: tuple[Property, ...] = ()


def changes(before: Capture | None, after: Capture) -> tuple[Change, ...]:
    """The changes from one run to another, in the order of URNs; all is added to nothing."""
    old = {one.urn: one for one in before.provided} if before else {}
    new = {one.urn: one for one in after.provided}
    return tuple(
        change
        for urn in sorted(old.keys() | new.keys())
        for change in _change(old.get(urn), new.get(urn))
    )


def _change(before: Resource | None, after: Resource | None) -> Iterator[Change]:
    if after is None:
        assert before
        yield Change("removed", before.kind, before.name, before.urn)
    elif before is None:
        yield Change("added", after.kind, after.name, after.urn)
    else:
        old, new = _leaves(before), _leaves(after)
        differing = tuple(
            Property(path, old.get(path, ABSENT), new.get(path, ABSENT))
            for path in sorted(old.keys() | new.keys())
            if old.get(path, ABSENT) != new.get(path, ABSENT) and not _ignored(path, after)
        )
        if differing:
            yield Change("changed", after.kind, after.name, after.urn, differing)


def _ignored(path: str, resource: Resource) -> bool:
    """Whether Pulumi is told to leave a property as it is."""
    within = tuple(f"{one}{mark}" for one in resource.ignore_changes for mark in ".[")
    return path in resource.ignore_changes or path.startswith(within)


def _leaves(resource: Resource) -> dict[str, Any]:
    options = {"protect": resource.protect, "ignoreChanges": list(resource.ignore_changes)}
    found = dict(_walk(resource.inputs, ""))
    return {**found, **{f"({key})": str(value) for key, value in options.items()}}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf by its path; a list of named things goes by their names, not by their places."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _walk(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        names = [one.get("name") for one in value if isinstance(one, Mapping)]
        named = len(names) == len(value) and all(names) and len(set(names)) == len(names)
        for at, one in enumerate(value):
            yield from _walk(one, f"{path}[{names[at] if named else at}]")
    elif path:
        yield path, value
