"""What was declared against what is there: missing, changed, or nobody's.

Only what the program says is compared: what Azure fills in by itself is not drift. What is known to
differ without meaning anything is written in `noise.yml`, each with its reason.

Nobody's are the resources of the group: a right, a lock or a diagnostic setting that somebody hung
on one is in no list of the group, and only those that are declared are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from infra.live.addresses import Addresses, Unplaced, own_names, version
from infra.live.approved import let_out
from infra.live.arm import Arm, Denied
from infra.live.reported import ABSENT, at_top, in_force, within
from infra.preview.captured import REFERENCE, SECRET, Resource

NOISE = Path(__file__).with_name("noise.yml")
Kind = Literal["missing", "changed", "undeclared", "not-comparable"]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


@dataclass(frozen=True)
class Difference:
    """One thing that is not as declared; `path` is the input, "" for a resource as a whole."""

    kind: Kind
    resource: str
    id: str
    path: str = ""
    declared: object = None
    actual: object = None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"{self.resource}: {self.path} is {self.actual!r}, declared {self.declared!r}"
        return f"{self.resource}: {self.kind}{f' ({self.path})' if self.path else ''}"


@dataclass(frozen=True)
class Noise:
    """Differences that mean nothing: of inputs by kind, and of resources by their id."""

    inputs: frozenset[tuple[str, str]]
    resources: tuple[re.Pattern[str], ...]

    def silences(self, kind: str, path: str) -> bool:
        """Whether a difference of that input is known to mean nothing."""
        plain = re.sub(r"\[\d+\]", "[]", path)
        return (kind, plain) in self.inputs or ("*", plain) in self.inputs

    def nobodys(self, id: str) -> bool:
        """Whether a resource that nobody declared is one that Azure makes by itself."""
        return any(one.search(id) for one in self.resources)


def noise(path: Path = NOISE) -> Noise:
    """The written list; raises ValueError for an entry without a reason."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for entry in (*document["inputs"], *document["resources"]):
        if not str(entry.get("reason", "")).strip():
            raise ValueError(f"{path.name}: no reason for {entry}")
    return Noise(
        frozenset((entry["kind"], entry["input"]) for entry in document["inputs"]),
        tuple(re.compile(entry["id"], re.IGNORECASE) for entry in document["resources"]),
    )


def drift(
    resources: Sequence[Resource],
    arm: Arm,
    known: Noise,
    seen: Callable[[str], None] = lambda _: None,
) -> Iterator[Difference]:
    """Every difference, resource by resource; `seen` is told of each before it is asked for."""
    addresses = Addresses(resources, arm.subscription)
    declared: set[str] = set()
    groups: set[str] = set()
    for one in resources:
        if not one.custom:
            continue
        seen(one.name)
        try:
            place = addresses.place(one)
            declared.add(place.id.lower())
            actual = arm.get(place.id, place.version)
        except (Unplaced, Denied) as error:
            yield Difference("not-comparable", one.name, "", str(error))
            continue
        if one.kind == "resources:ResourceGroup":
            groups.add(place.id)
        if actual is None:
            yield Difference("missing", one.name, place.id)
            continue
        yield from _changes(one, place.id, actual, addresses, known)
    for group in sorted(groups):
        for found in arm.all(f"{group}/resources", version("resources:ResourceGroup")):
            name = str(found["id"])
            if name.lower() not in declared and not known.nobodys(name):
                yield Difference("undeclared", name.rpartition("/")[2], name)


def _changes(
    one: Resource, id: str, actual: Mapping[str, Any], addresses: Addresses, known: Noise
) -> Iterator[Difference]:
    for name, wanted in one.inputs.items():
        if name in own_names(one.kind):
            continue
        comparison = _Comparison(one.kind, addresses)
        found = at_top(one.kind, actual, name)
        for path, declared, there in comparison.compared(name, wanted, found):
            if not known.silences(one.kind, path):
                said = None if there is ABSENT else there
                yield Difference("changed", one.name, id, path, declared, said)
    for path, to in let_out(one.inputs, actual):
        yield Difference("undeclared", one.name, id, path, None, to)


@dataclass(frozen=True)
class _Comparison:
    """Of one kind: its names, and what its references stand for."""

    kind: str
    addresses: Addresses

    def compared(self, path: str, wanted: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
        """The leaves that differ: path, declared, found."""
        found = in_force(self.kind, found)
        if wanted in (None, {}, []) and found in (ABSENT, None, {}, []):
            return
        if isinstance(wanted, str):
            if SECRET in wanted:
                return  # Azure does not say it, and neither do we
            try:
                wanted = self.addresses.resolved(wanted)
            except Unplaced:
                return
            if REFERENCE.search(wanted):
                return
        if isinstance(wanted, Mapping) and isinstance(found, Mapping):
            for key, value in wanted.items():
                other = within(self.kind, found, key)
                yield from self.compared(f"{path}.{key}", value, other)
        elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
            yield from self._lists(path, wanted, found)
        elif isinstance(wanted, list) and isinstance(found, Mapping):
            # A list of ids goes in, a mapping by id comes out (identities).
            ids = {self.addresses.resolved(str(one)).lower() for one in wanted}
            if ids != {str(one).lower() for one in found}:
                yield path, sorted(ids), sorted(found)
        elif not _same(wanted, found):
            yield path, wanted, found

    def _lists(
        self, path: str, wanted: list[Any], found: list[Any]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Azure keeps no order: each declared item is compared with the one nearest to it."""
        left = list(found)
        for number, value in enumerate(wanted):
            differences = [[*self.compared(f"{path}[{number}]", value, other)] for other in left]
            nearest = min(range(len(left)), key=lambda at: len(differences[at]))
            yield from differences[nearest]
            del left[nearest]


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return float(wanted) == float(found)
    if isinstance(wanted, str) and isinstance(found, str):
        if _seconds(wanted) is not None:
            return _seconds(wanted) == _seconds(found)
        return _plain(wanted) == _plain(found)
    return bool(wanted == found)


def _plain(text: str) -> str:
    """Enums, ids and regions come back in another case; a region also by its display name."""
    lowered = text.strip().lower()
    return lowered if "/" in lowered else lowered.replace(" ", "")


def _seconds(text: str) -> int | None:
    """An ISO 8601 duration; PT15M and PT900S are the same."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
