"""What a rule is given and what it answers, and the numbers that it may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from policies.promotion.decision import Request, Verdict
from policies.promotion.evidence import Estimate, Evidence, Metrics
from policies.promotion.gates import Gate, Gates
from policies.promotion.schema import MOST


@dataclass(frozen=True)
class Case:
    """What a rule judges: one request, its evidence, the champion's, and the other gates."""

    request: Request
    evidence: Evidence
    champion: Evidence | None
    gates: Gates


@dataclass(frozen=True)
class Finding:
    """A rule's answer, before the gate's mode and waivers are taken into account.

    `measured` says of a fail that nothing was missing: what was found is sound, and too little. A
    waiver sets aside no other fail. `items` are the things that fail, of a gate that judges several
    (an advisory's id, a file): a waiver names one of them.
    """

    verdict: Verdict
    found: str
    required: str
    why: str = ""
    measured: bool = False
    items: tuple[str, ...] = ()


Rule = Callable[[Case, Gate], Finding]


def real(number: float | None) -> float:
    """The number when it is finite, otherwise NaN, to which no comparison is true."""
    return number if number is not None and math.isfinite(number) else math.nan


def shown(number: float | None) -> str:
    """The number as the table of gates shows it."""
    return "missing" if number is None else f"{number:.4g}"


def estimate(metrics: Metrics, split: str, metric: str) -> Estimate:
    """The metric on the split; an estimate of which nothing is known when it is not there."""
    return (metrics.get(split) or {}).get(metric) or Estimate()


def unsound(of: Estimate, bounds: tuple[float, float] | None, enough: float) -> str:
    """Why an estimate cannot be used, or ""."""
    if bounds is None:
        return "has no bounds in gates.yml"
    value, low, high = real(of.value), real(of.low), real(of.high)
    if not bounds[0] <= value <= bounds[1]:
        return "is missing or out of bounds"
    if not bounds[0] <= low <= value <= high <= bounds[1]:
        return "has no interval around it"
    if not enough <= real(of.count) <= MOST:
        return f"counts {shown(of.count)} units, not {enough:g} or more"
    return ""
