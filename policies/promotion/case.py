"""What a gate's function is given and returns, and the numbers that it may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from policies.promotion.decision import Request, Verdict
from policies.promotion.evidence import MOST, Estimate, Evidence, Metrics
from policies.promotion.gates import Gate, Gates

# The split that the model and its hyperparameters are selected on.
VALIDATION = "validation"
# A finding lists so many things; the evidence has them all.
LISTED = 5


@dataclass(frozen=True)
class Case:
    """What a gate judges: a request, its evidence, the champion's evidence, and the gates."""

    request: Request
    evidence: Evidence
    champion: Evidence | None
    gates: Gates

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that a model is promoted on; the first is the one to win on."""
        return self.gates["non-inferiority"].names("splits")

    @property
    def min_count(self) -> float:
        """The fewest units that a metric may count."""
        return self.gates["quality"].number("min_count")

    def bounds(self, metric: str | None) -> tuple[float, float] | None:
        """The lowest and the highest value that the metric can have; None when not stated."""
        return self.gates["quality"].bounds("bounds").get(metric or "")


@dataclass(frozen=True)
class Finding:
    """A gate's answer, before its mode and waivers are applied.

    `measured` says of a failure that nothing was missing: what was found is sound and not enough.
    Only such a failure can be waived. `items` are the things that fail, for a gate that judges
    several (an advisory's id, a file): a waiver names one of them.
    """

    verdict: Verdict
    found: str
    required: str
    why: str = ""
    measured: bool = False
    items: tuple[str, ...] = ()


Rule = Callable[[Case, Gate], Finding]


def real(number: float | None) -> float:
    """The number when it is finite, otherwise NaN, which satisfies no comparison."""
    return number if number is not None and math.isfinite(number) else math.nan


def shown(number: float | None) -> str:
    """The number as the table of gates shows it."""
    return "missing" if number is None else f"{number:.4g}"


def listed(names: tuple[str, ...] | list[str], separator: str = ", ") -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return separator.join(names[:LISTED]) + more


def estimate(metrics: Metrics, split: str, metric: str) -> Estimate:
    """The metric on the split; an empty estimate when it is not there."""
    return (metrics.get(split) or {}).get(metric) or Estimate()


def unsound(measured: Estimate, bounds: tuple[float, float] | None, min_count: float) -> str:
    """Why an estimate cannot be used, or ""."""
    if bounds is None:
        return "has no bounds in gates.yml"
    value, low, high = real(measured.value), real(measured.low), real(measured.high)
    if not bounds[0] <= value <= bounds[1]:
        return "is missing or out of bounds"
    if not bounds[0] <= low <= value <= high <= bounds[1]:
        return "has no interval around it"
    if not min_count <= real(measured.count) <= MOST:
        return f"counts {shown(measured.count)} units, not {min_count:g} or more"
    return ""
