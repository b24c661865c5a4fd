"""The organisation policy for a project's canary (canary.yml) and `ml watch` (watch.yml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ml.core import documents, settings
from ml.core.errors import Problem, UserError
from ml.core.imports import ROOT

# The policy for every canary outside of the environment `local`.
CANARY = ROOT / "policies/promotion/canary.yml"
# The policy for every project's watch.yml; `ignore` is a number of columns.
WATCH = ROOT / "policies/promotion/watch.yml"
Number = Annotated[float, Field(ge=0)]

# The loosest bound that a policy may set: a looser one would make the signal useless.
LOOSEST: Mapping[str, Mapping[str, float]] = {
    "at_most": {
        # Shares of all responses; callers would notice larger ones.
        "tolerances.errors": 0.1,
        "tolerances.refused": 0.2,
        "tolerances.answers": 0.2,
        "tolerances.drift": 0.75,
        "tolerances.latency": 10,
        "tolerances.latency_ms": 10_000,
        "tolerances.memory_mib": 4096,
        # A distance is at most 1, and a PSI of 0.25 is a shift already.
        "distance": 0.5,
        "psi": 1,
        "missing": 0.5,
        "loss": 1,
        "min_rows": 100_000,
        "ignore": 50,
    },
    "at_least": {
        # Fewer requests or fewer false alarms would detect only an outage.
        "requests": 20,
        "patience": 1,
        "false_alarms": 0.001,
        "alpha": 0.00001,
    },
}


@dataclass(frozen=True)
class Policy:
    """The loosest allowed value of each setting, by dotted name (`tolerances.errors`)."""

    __pydantic_config__ = settings.CLOSED

    schema_version: Literal[1]
    at_most: Mapping[str, Number]
    at_least: Mapping[str, Number]
    required: Mapping[str, str] = field(default_factory=dict)  # setting → why it needs a value
    no_bound: Mapping[str, str] = field(default_factory=dict)  # setting → why it needs no bound

    def looser(self, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the settings that are looser than the policy, each with the allowed value."""
        for name, bound in self.at_most.items():
            if not all(value <= bound for value in _numbers(values[name])):
                yield name, f"at most {bound:g}, the organisation policy"
        for name, bound in self.at_least.items():
            if not all(value >= bound for value in _numbers(values[name])):
                yield name, f"at least {bound:g}, the organisation policy"
        for name, why in self.required.items():
            if not values[name]:
                yield name, f"a value: {why}"


def load(path: Path) -> Policy:
    """Return the organisation policy; raise UserError with every problem of the file."""
    document = documents.read(path)
    policy = settings.read(Policy, document)
    problems = []
    for side, loosest in LOOSEST.items():
        for name, bound in getattr(policy, side).items():
            limit = loosest.get(name)
            if limit is None or (bound > limit if side == "at_most" else bound < limit):
                expected = f"one of: {', '.join(loosest)}"
                if limit is not None:
                    expected = f"{side.replace('_', ' ')} {limit:g}"
                actual = f"`{side}.{name}` is {bound:g}"
                hint = "policies/promotion/policy.py explains the bound"
                place = document.place(side, name)
                problems.append(Problem("ineffective-policy", actual, expected, hint, place))
    if problems:
        raise UserError(*problems)
    return policy


def _numbers(value: float | Sequence[float]) -> Sequence[float]:
    return value if isinstance(value, Sequence) else (value,)
