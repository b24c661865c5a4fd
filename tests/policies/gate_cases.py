"""The cases of every gate: gates/GATE.yml, each a change to evidence that passes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from policies.promotion import gate_settings
from policies.promotion.decision import Decision, Request
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, parse
from policies.promotion.gate import Gates
from tests.policies.cases import DOCUMENT, OTHER, PROJECT, REQUEST, UNITS, computed, members

FOLDER = Path(__file__).with_name("gates")
# A case has these beside what it changes in the evidence.
_BESIDE = ("champion", "request", "gates", "reviews", "waivers", "contains", "verdict")
# What the champion's evidence has of its own.
_CHAMPION = {"version": "3", "digest": OTHER, "uri": "models:/tiny/3", "computed.right": 0.7}


@dataclass(frozen=True)
class GateCase:
    """One case: whether the gate allows or refuses (`kind`) the evidence with `change`."""

    gate: str
    kind: str
    name: str
    change: Mapping[str, Any]

    def decide(self, folder: Path) -> Decision:
        """The decision about it."""
        own = {key: of for key, of in self.change.items() if key not in _BESIDE}
        champion = None
        if "champion" in self.change:
            theirs = self.change["champion"]
            champion = Evidence() if theirs is None else _evidence(_CHAMPION | theirs)
        request: Request = replace(REQUEST, **self.change.get("request", {}))
        return decide(self._gates(folder), _evidence(own), champion, request)

    def _gates(self, folder: Path) -> Gates:
        document = yaml.safe_load(PROJECT)
        for key, value in self.change.get("gates", {}).items():
            gate, setting = key.split(".")
            document["gates"].setdefault(gate, {})[setting] = value
        document["reviews"] = self.change.get("reviews", [])
        document["waivers"] = self.change.get("waivers", [])
        path = folder / "gates.yml"
        path.write_text(yaml.safe_dump(document))
        return gate_settings.load(path)


def gate_cases() -> Iterator[GateCase]:
    """Every case of every gate."""
    for path in sorted(FOLDER.glob("*.yml")):
        for kind, cases in yaml.safe_load(path.read_text()).items():
            for name, change in cases.items():
                yield GateCase(path.stem, kind, name, change)


def _evidence(change: Mapping[str, Any]) -> Evidence:
    document = json.loads(json.dumps(DOCUMENT))
    for key, value in change.items():
        if not key.startswith("computed."):
            _set(document, key.split("."), copy.deepcopy(value))
    fresh = {key.removeprefix("computed."): of for key, of in change.items() if "computed." in key}
    return _computed(parse(document), **fresh)


def _set(document: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        document = document.setdefault(key, {})
    document[path[-1]] = value


def _computed(
    evidence: Evidence,
    right: float | Mapping[str, float] = 0.8,
    count: int = UNITS,
    outcome: float | None = None,
    **rest: Any,
) -> Evidence:
    """`right` is the share of `count` units that are right, or that of every slice; `outcome` is
    that of one unit. `rest` is set as it is.
    """
    of = {}
    for name, units in members(count).items():
        share = right[name] if isinstance(right, Mapping) else right
        of |= {unit: float(at < share * len(units)) for at, unit in enumerate(units)}
    if outcome is not None:
        of["q0000"] = outcome
    found = replace(
        computed(evidence),
        outcomes={"test": of},
        labels={"test": dict.fromkeys(of, "a")},
        members={"test": {"topic": members(count)}},
    )
    if isinstance(rest.get("mismatches"), list):
        rest["mismatches"] = tuple(rest["mismatches"])
    return replace(found, **rest)
