"""A candidate beside a champion: metrics, slices, cost and latency, unit by unit where it can be.

Pure: everything is in the evidence that is handed in. What is missing there is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from policies.promotion.comparison import Difference, difference
from policies.promotion.evidence import Estimate, Evidence, Metrics, missing

# Metric → split → unit → value.
Outcomes = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Side:
    """A model version, or a run's model, with its evidence and the metrics of its every unit."""

    name: str
    digest: str
    evidence: Evidence
    outcomes: Outcomes = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One metric in one place, which is a split or `dimension=slice`.

    `by` is candidate less champion over the units that both were measured on, None when the two
    cannot be paired. `sign` is 1 where more is better, −1 where less is, 0 where nobody says.
    """

    place: str
    metric: str
    ours: Estimate
    theirs: Estimate | None
    by: Difference | None
    sign: int

    @property
    def verdict(self) -> str:
        """`better` or `worse` when the whole interval lies on that side of zero, else ""."""
        if self.by is None or not self.sign:
            return ""
        low, high = sorted((self.sign * self.by.low, self.sign * self.by.high))
        return "better" if low > 0 else "worse" if high < 0 else ""


@dataclass(frozen=True)
class Amount:
    """What a model takes, in `unit`; less is better. None where it is not known."""

    what: str
    unit: str
    ours: float | None
    theirs: float | None


@dataclass(frozen=True)
class Comparison:
    """What differs; `confidence` is that of every paired interval by itself.

    `unpaired` says why units were not compared one by one, "" when they were.
    """

    candidate: Side
    champion: Side | None
    primary: str
    metrics: tuple[Row, ...]
    slices: tuple[Row, ...]
    amounts: tuple[Amount, ...]
    missing: tuple[str, ...]
    unpaired: str
    confidence: float


def compare(candidate: Side, champion: Side | None, confidence: float = 0.95) -> Comparison:
    """The comparison; `confidence` is that of the paired intervals, two-sided."""
    ours = candidate.evidence
    theirs = champion.evidence if champion else None
    why = _unpaired(candidate, champion)
    primary = ours.primary_metric or ""
    return Comparison(
        candidate=candidate,
        champion=champion,
        primary=primary,
        metrics=tuple(_metrics(candidate, champion, confidence, bool(why))),
        slices=tuple(_slices(candidate, champion, confidence, bool(why))),
        amounts=tuple(_amounts(ours, theirs)),
        missing=tuple(missing(ours)),
        unpaired=why,
        confidence=confidence,
    )


def other_features(candidate: Side, champion: Side) -> str:
    """What a candidate reads that the champion does not, and the other way round, or "".

    By the hash of the feature set; "" too where either side does not state one. The names are those
    that contribute.
    """
    ours, theirs = candidate.evidence, champion.evidence
    hashes = [one.lineage.feature_set_hash for one in (ours, theirs)]
    if not all(hashes) or hashes[0] == hashes[1]:
        return ""
    mine, before = (
        {one.feature for one in of.contributions if one.feature} for of in (ours, theirs)
    )
    parts = {"new": sorted(mine - before), "gone": sorted(before - mine)}
    changes = "; ".join(f"{what}: {', '.join(of)}" for what, of in parts.items() if of)
    return (
        f"{candidate.name} reads other features than {champion.name}: "
        f"{changes or 'of the same names, made otherwise'}"
    )


def _unpaired(candidate: Side, champion: Side | None) -> str:
    if champion is None:
        return ""
    for side in (candidate, champion):
        wrong = side.evidence.disagreements
        if wrong is None:
            return f"nobody recomputed the metrics of {side.name}"
        if wrong:
            return f"the evidence of {side.name} is not to be trusted: {wrong[0]}"
    ours, theirs = candidate.evidence, champion.evidence
    if (ours.primary_metric, ours.goal) != (theirs.primary_metric, theirs.goal):
        return "they have different primary metrics"
    hashes = [
        {name: of.sha256 for name, of in one.data.items() if of.sha256} for one in (ours, theirs)
    ]
    if not hashes[0] or hashes[0] != hashes[1]:
        return "they were not measured on the same data"
    return ""


def _metrics(
    candidate: Side, champion: Side | None, confidence: float, apart: bool
) -> Iterator[Row]:
    """The primary metric first, then the others, each over all splits."""
    evidence = candidate.evidence
    names = dict.fromkeys(metric for of in evidence.metrics.values() for metric in of)
    for metric in sorted(names, key=lambda name: name != evidence.primary_metric):
        for split, of in evidence.metrics.items():
            if metric not in of:
                continue
            theirs = _estimate(champion.evidence.metrics, split, metric) if champion else None
            by = None
            if champion and theirs and not apart:
                by = _paired(candidate, champion, split, metric, confidence)
            yield Row(split, metric, of[metric], theirs, by, _sign(evidence, metric))


def _slices(
    candidate: Side, champion: Side | None, confidence: float, apart: bool
) -> Iterator[Row]:
    """The primary metric of every slice, on the split that the slices are of."""
    evidence, metric = candidate.evidence, candidate.evidence.primary_metric or ""
    split = evidence.slice_split or ""
    members = evidence.members.get(split, {})
    for dimension, slices in evidence.slices.items():
        for name, of in slices.items():
            if metric not in of:
                continue
            theirs = None
            if champion:
                theirs = _estimate(champion.evidence.slices.get(dimension, {}), name, metric)
            units = members.get(dimension, {}).get(name, ())
            by = None
            if champion and theirs and units and not apart:
                by = _paired(candidate, champion, split, metric, confidence, units)
            yield Row(
                f"{dimension}={name}", metric, of[metric], theirs, by, _sign(evidence, metric)
            )


def _paired(
    candidate: Side,
    champion: Side,
    split: str,
    metric: str,
    confidence: float,
    units: tuple[str, ...] | None = None,
) -> Difference | None:
    """The paired difference as the gates reckon it; None when the units are not the same ones."""
    of = [
        side.outcomes.get(metric, {}).get(split) or _primary(side, split, metric)
        for side in (candidate, champion)
    ]
    if units is not None:
        of = [{unit: side[unit] for unit in units if unit in side} for side in of]
    try:
        return difference(of[0], of[1], confidence, candidate.evidence.groups.get(split))
    except ValueError:
        return None


def _primary(side: Side, split: str, metric: str) -> Mapping[str, float]:
    if metric != side.evidence.primary_metric:
        return {}
    return side.evidence.outcomes.get(split, {})


def _estimate(metrics: Metrics, place: str, metric: str) -> Estimate | None:
    return metrics.get(place, {}).get(metric)


def _sign(evidence: Evidence, metric: str) -> int:
    if metric != evidence.primary_metric:
        return 0
    return {"maximize": 1, "minimize": -1}.get(evidence.goal or "", 0)


def _amounts(ours: Evidence, theirs: Evidence | None) -> Iterator[Amount]:
    def amount(what: str, unit: str, mine: float | None, other: float | None) -> Amount:
        return Amount(what, unit, _finite(mine), _finite(other))

    them = theirs or Evidence()
    for name in ("p50_ms", "p95_ms", "p99_ms"):
        what = f"latency, {name.removesuffix('_ms')}"
        yield amount(what, "ms", getattr(ours.latency, name), getattr(them.latency, name))
    mine, other = ours.cost, them.cost
    for name in ("training", "thousand_predictions"):
        what = {"training": "training", "thousand_predictions": "1,000 predictions"}[name]
        a, b = getattr(mine, name), getattr(other, name)
        yield amount(f"{what}, machine time", "s", a.seconds, b.seconds)
        if a.amount is not None or b.amount is not None:
            same = other.currency in (None, mine.currency)
            unit = mine.currency or other.currency or "of an unnamed currency"
            yield amount(f"{what}, price", unit, a.amount, b.amount if same else None)
    metric = ours.primary_metric or ""
    spreads = [of.stability[metric].std if metric in of.stability else None for of in (ours, them)]
    yield amount(f"spread of {metric or 'the primary metric'} over refits", "", *spreads)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
