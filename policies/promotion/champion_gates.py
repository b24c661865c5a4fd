"""The gates that compare the candidate with the champion or baseline, by a paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from ml.core.names import not_words
from ml.measures.schema import Evaluation, Stability
from policies.promotion.decision import Case, Finding, estimate, listed, real, shown, unsound
from policies.promotion.evidence import Evidence, Statistic
from policies.promotion.gate import Gate, Gates

RESAMPLES = 10_000
# For a metric of a whole split (AUC, say), which is computed again on every draw.
STATISTIC_RESAMPLES = 2000
# The numbers of one chunk of draws, which limits the memory.
_HELD = 500_000
# Up to this many distinct rows, a draw samples their counts instead of every row.
_FEW = 50
# If an interval is too wide by more than this factor, no message estimates how many units would
# narrow it.
MOST_WIDER = 10
SEED = 20_240_229  # fixed, so that the same evidence always gets the same decision
# An interval over fewer groups is not reliable (Cameron, Gelbach and Miller 2008).
FEWEST_GROUPS = 10


@dataclass(frozen=True)
class Difference:
    """The mean of candidate minus champion over their common units, with its interval."""

    mean: float
    low: float  # bootstrap interval of the mean
    high: float
    count: int  # units


def difference(
    candidate: Mapping[str, float],
    champion: Mapping[str, float],
    confidence: float,
    groups: Mapping[str, str] | None = None,
) -> Difference:
    """Return the paired percentile bootstrap of the mean (Efron and Tibshirani 1993, chapter 13).

    `confidence` is two-sided: 0.95 gives the 2.5th and 97.5th percentiles. With `groups`, unit →
    group, all units of a group are drawn together (Field and Welsh 2007). Raises ValueError if
    the units differ or are empty, a value is not finite, a unit has no group, or there are too
    few groups.
    """
    if not candidate or candidate.keys() != champion.keys():
        raise ValueError("the two were not measured on the same units")
    units = sorted(candidate)
    differences = np.array([candidate[unit] - champion[unit] for unit in units], dtype=float)
    if not np.isfinite(differences).all():
        raise ValueError("a unit's value is not finite")
    rows = np.stack([differences, np.ones(len(units))], axis=1)
    if groups:
        rows = _grouped(rows, [groups.get(unit, "") for unit in units])
    tail = 100 * (1 - confidence) / 2
    sums, sizes = _resampled_sums(rows).T
    low, high = np.percentile(sums / sizes, [tail, 100 - tail])
    return Difference(float(differences.mean()), float(low), float(high), len(units))


def _resampled_sums(rows: np.ndarray) -> np.ndarray:
    """Return the column sums of each bootstrap draw of the rows: (RESAMPLES, columns)."""
    rng, count = np.random.default_rng(SEED), len(rows)
    # Multinomial counts of the distinct rows have the distribution of single draws. A metric such
    # as gain@1 has three distinct rows, so thousands of units cost no more than ten.
    distinct, occurs = np.unique(rows, axis=0, return_counts=True)
    if len(distinct) <= _FEW:
        return np.asarray(rng.multinomial(count, occurs / count, size=RESAMPLES) @ distinct)
    sums = []
    for drawn in _draws(rng, count, RESAMPLES, _HELD // count):
        sums.append(np.stack([column[drawn].sum(axis=1) for column in rows.T], axis=1))
    return np.concatenate(sums)


def _draws(
    rng: np.random.Generator, count: int, samples: int, at_once: int
) -> Iterator[np.ndarray]:
    """Yield the row indices of bootstrap draws of `count` rows, in chunks (draws, count)."""
    chunk = max(1, at_once)
    for start in range(0, samples, chunk):
        yield rng.integers(count, size=(min(chunk, samples - start), count))


def difference_of_statistics(
    units: Collection[str],
    candidate: Statistic,
    champion: Statistic,
    confidence: float,
    groups: Mapping[str, str] | None = None,
) -> Difference:
    """Return the `difference` of a metric of a whole split, both models on the same draws.

    Draws on which the metric is undefined (no positive label, say) are left out. Raises ValueError
    as `difference`, and when the metric is undefined on the units or on most draws.
    """
    names = sorted(units)
    group_numbers = (
        _numbered([groups.get(unit, "") for unit in names]) if groups else np.arange(len(names))
    )
    count = int(group_numbers.max()) + 1
    ours, theirs = candidate(names), champion(names)

    def statistic_difference(times: np.ndarray) -> np.ndarray:
        counted = times.take(group_numbers, axis=1).astype(np.float64)
        return ours(counted) - theirs(counted)

    point = float(statistic_difference(np.ones((1, count)))[0])
    if not math.isfinite(point):
        raise ValueError("the metric is not defined on these units")
    values, rng = [], np.random.default_rng(SEED)
    for numbers in _draws(rng, count, STATISTIC_RESAMPLES, _HELD // len(names)):
        of_draw = numbers + count * np.arange(len(numbers))[:, None]
        times = np.bincount(of_draw.ravel(), minlength=numbers.size).reshape(numbers.shape)
        values.append(statistic_difference(times))
    drawn = np.concatenate(values)
    defined = drawn[np.isfinite(drawn)]
    if 2 * len(defined) < len(drawn):
        raise ValueError("the metric is not defined on most draws of these units")
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return Difference(point, min(float(low), point), max(float(high), point), len(names))


def paired_difference(
    candidate: Evidence,
    champion: Evidence,
    split: str,
    confidence: float,
    only: Collection[str] | None = None,
) -> Difference:
    """Return the difference of the primary metric between two models on a split.

    `only` limits it to some units. Raise ValueError as `difference` does.
    """
    ours, theirs = (chosen(side.outcomes.get(split, {}), only) for side in (candidate, champion))
    groups = candidate.groups.get(split)
    if split not in candidate.statistics or split not in champion.statistics:
        return difference(ours, theirs, confidence, groups)
    if not ours or ours.keys() != theirs.keys():
        raise ValueError("the two were not measured on the same units")
    statistics = (candidate.statistics[split], champion.statistics[split])
    return difference_of_statistics(ours, *statistics, confidence, groups)


def chosen(outcomes: Mapping[str, float], only: Collection[str] | None) -> dict[str, float]:
    """Return the values of the units in `only`; of all units if it is None."""
    return {unit: value for unit, value in outcomes.items() if only is None or unit in only}


def _grouped(rows: np.ndarray, labels: list[str]) -> np.ndarray:
    """Return the column sums of each group's rows: (groups, columns)."""
    group_numbers = _numbered(labels)
    return np.stack([np.bincount(group_numbers, column) for column in rows.T], axis=1)


def _numbered(labels: list[str]) -> np.ndarray:
    """Return each row's group index; raise ValueError for too few groups or a row without one."""
    names, numbers = np.unique(labels, return_inverse=True)
    if "" in names:
        raise ValueError("a unit has no group")
    if len(names) < FEWEST_GROUPS:
        raise ValueError(f"{len(names)} groups, at least {FEWEST_GROUPS} are needed")
    return numbers


_NO_SPLIT = Finding("fail", "no split", "`non-inferiority.splits` in the project's gates.yml")


def find_invalid_entry(gates: Gates, digest: str, today: date) -> str:
    """Return the `invalid_versions` entry that is in force today for the digest; "" if none."""
    statements = gates["non-inferiority"].invalid_versions
    return next((str(entry) for entry in statements if not entry.unusable(today, digest)), "")


def _no_champion(case: Case) -> Finding:
    actual = case.request.set_aside or "no champion yet"
    return Finding("not evaluated", actual, "see first-promotion")


def first_promotion(case: Case, gate: Gate) -> Finding:
    """Without a champion, the candidate must beat the baseline on the first split."""
    if case.champion is not None:
        return Finding("not evaluated", "there is a champion", "the baseline beaten")
    if not case.splits:
        return _NO_SPLIT
    evaluation, metric = case.evaluation, case.metric
    split = case.splits[0]
    candidate = estimate(evaluation.metrics, split, metric)
    baseline = estimate(evaluation.baseline, split, metric)
    required = f"{metric} on {split} better than the baseline's {shown(baseline.value)}"
    for name, measured in (("candidate", candidate), ("baseline", baseline)):
        if problem := unsound(measured, case.bounds(metric), case.min_count):
            return Finding("fail", shown(candidate.value), required, f"the {name} {problem}")
    sign = _sign(evaluation)
    better = sign is not None and sign * real(candidate.value) > sign * real(baseline.value)
    values = f"{shown(candidate.value)}, the baseline's {shown(baseline.value)}"
    origin = f" ({evaluation.baseline_from})" if evaluation.baseline_from else ""
    actual = f"{metric} on {split} is {values}{origin}"
    reason = case.request.set_aside or "no champion yet"
    return Finding(
        "pass" if better else "fail", actual, required, reason, measured=sign is not None
    )


def non_inferiority(case: Case, gate: Gate) -> Finding:
    """The candidate is not worse than the champion by more than the margin, on every split and on
    every slice that the project names; no other slice is significantly worse by more.
    """
    if case.champion is None:
        return _no_champion(case)
    if not case.splits:
        return _NO_SPLIT
    confidence, first = gate.number("confidence"), case.splits[0]
    margin = _margin(case, gate)
    required = (
        f"{case.metric} on {', '.join(case.splits)} at most {margin:.4g} worse than the "
        "champion's, over the whole interval"
    )
    compared = {split: _compare(case, split, confidence) for split in case.splits}
    slices = _slices(case, first)
    for name in gate.names("slices"):
        compared[name] = _compare(case, first, confidence, name, slices.pop(name, ()))
    actual = "; ".join(text for _, text in compared.values())
    differences = [result for result, _ in compared.values()]
    if any(result is None or not result.low > -margin for result in differences):
        measured = None not in differences
        why = ["it may be worse", *(_too_few(result, margin) for result in differences if result)]
        why += _not_set_aside(case, gate)
        return Finding("fail", actual, required, "; ".join(filter(None, why)), measured)
    worse, unsure = _worse_slices(case, gate, first, slices)
    if worse:
        reason = f"it is worse on a slice: {listed(worse, '; ')}"
        return Finding("fail", actual, required, reason, measured=True)
    notes = f"undecided: {listed(unsure, '; ')}" if unsure else ""
    return Finding("pass", actual, required, notes)


def _not_set_aside(case: Case, gate: Gate) -> Iterator[str]:
    """Yield why the champion must still be beaten despite `invalid_versions` or a stated reason."""
    champion = case.champion or Evidence()
    stated = [entry for entry in gate.invalid_versions if entry.version == champion.version]
    yield from (entry.unusable(case.request.day, champion.digest) for entry in stated)
    if case.request.reason and not stated:
        yield (
            "`--reason` does not override this gate; if the champion is invalid, add to gates.yml: "
            f"{suggest_invalid_entry(champion.version, champion.digest)}"
        )


def suggest_invalid_entry(version: str | None, digest: str | None) -> str:
    """Return the `invalid_versions` entry for gates.yml that excludes the version as champion."""
    entry = f"version: {version}, digest: {digest}, owner: NAME, expires: DATE, reason: WHY"
    return f"invalid_versions: [{{{entry}}}]"


def _margin(case: Case, gate: Gate) -> float:
    """Return the non-inferiority margin.

    It is a share of the metric's range; if that is infinite, of the champion's value on the first
    split. A project may limit it by the spread over seeds.
    """
    share, metric = gate.number("margin"), case.evaluation.primary_metric or ""
    custom = case.evaluation.custom_metrics.get(metric)
    # gates.yml and the evaluation both state a custom metric's range: use the narrower one.
    ranges = [case.evidence.range] if custom is None else [case.bounds(metric), custom.range]
    widths = [_width(bounds or ()) for bounds in ranges]
    margin = share * min(widths) if all(width > 0 for width in widths) else math.nan
    if math.isinf(margin) and case.champion is not None:
        theirs = case.champion.evaluation.metrics
        margin = share * real(estimate(theirs, case.splits[0], metric).value)
    spreads = gate.numbers("spreads").get(metric)
    if spreads is None:
        return margin
    seeds = case.evaluation.stability.get(metric) or Stability()
    return min(margin, spreads * _spread(seeds))


def _too_few(result: Difference, margin: float) -> str:
    """Return a sentence with the estimated sample size if these units are too few; else "".

    The width of an interval shrinks with the square root of the number of units.
    """
    if not result.low <= -margin < result.mean:
        return ""
    wider = (result.mean - result.low) / (result.mean + margin)
    if wider > MOST_WIDER:
        return ""
    enough = float(f"{result.count * wider**2:.2g}")
    return f"{result.count:,} units are too few, about {enough:,.0f} would be enough"


def _width(ends: Sequence[float | None]) -> float:
    """Return the width of an interval; NaN if it does not have two ends."""
    match ends:
        case [float() | int() as low, float() | int() as high]:
            return high - low
    return math.nan


def _spread(seeds: Stability) -> float:
    """Return the standard deviation over seeds; 0, which allows no margin, if unknown."""
    values = [real(value) for value in seeds.values]
    if seeds.over != "seeds" or len(values) < 2:
        return 0.0
    spread = float(np.std(values, ddof=1))
    return spread if math.isfinite(spread) else 0.0


def _slices(case: Case, split: str) -> dict[str, tuple[str, ...]]:
    """Map each `DIMENSION.SLICE` to its units."""
    return {
        f"{dimension}.{name}": units
        for dimension, slices in case.evidence.members.get(split, {}).items()
        for name, units in slices.items()
    }


def _worse_slices(
    case: Case, gate: Gate, split: str, slices: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], list[str]]:
    """Return the slices that are worse by more than the margin, and those that may be.

    Slices are small, so the burden of proof is reversed: the whole interval must lie below the
    margin. Bonferroni's correction widens the intervals because many slices are tested.
    """
    min_count, margin = gate.number("slice_min_count"), _margin(case, gate)
    judged = {name: units for name, units in slices.items() if len(units) >= min_count}
    confidence = 1 - (1 - gate.number("confidence")) / max(len(judged), 1)
    worse, unsure = [], []
    for name, units in judged.items():
        result, text = _compare(case, split, confidence, name, units)
        if result is None or (-margin > result.mean and result.high >= -margin):
            unsure.append(text)
        elif result.high < -margin:
            worse.append(text)
    return worse, unsure


def superiority(case: Case, gate: Gate) -> Finding:
    """The candidate beats the champion on the first split, or the request gives a reason.

    A candidate that gates.yml lists as invalid fails, even if the entry has expired.
    """
    for entry in gate.invalid_versions:
        if entry.digest == case.request.digest:
            return Finding("fail", str(entry), "a version that gates.yml does not list as invalid")
    if case.champion is None:
        return _no_champion(case)
    if case.is_champion:
        return Finding("not evaluated", "it is the champion's own model", "")
    if not case.splits:
        return _NO_SPLIT
    split, reason = case.splits[0], case.request.reason.strip()
    required = (
        f"{case.metric} on {split} better than the champion's over the whole interval, "
        "or a reason in writing"
    )
    result, actual = _compare(case, split, gate.number("confidence"))
    if result is None:
        return Finding("fail", actual, required)
    if result.low > 0:
        return Finding("pass", actual, required)
    if reason and not not_words(reason):
        return Finding("pass", actual, required, f"reason: {reason}")
    why = "not significantly better: train a better one, keep the champion, or add `--reason TEXT`"
    return Finding("fail", actual, required, why)


def _sign(evaluation: Evaluation) -> int | None:
    return {"maximize": 1, "minimize": -1}.get(evaluation.goal or "")


def _compare(
    case: Case,
    split: str,
    confidence: float,
    slice_name: str = "",
    only: tuple[str, ...] | None = None,
) -> tuple[Difference | None, str]:
    """Return candidate minus champion (positive: better), and a sentence about it.

    The difference is None if the two cannot be compared. `only` are the units of the slice, which
    may be fewer than a split needs.
    """
    where = f"{case.metric} on {slice_name or split}"
    try:
        result = _difference(case, split, confidence, only)
    except ValueError as error:
        return None, f"{where} is not compared: {error}"
    ends = f"{_better(result.low)} to {_better(result.high)}"
    interval = f"{100 * confidence:.4g} % interval: {ends}"
    is_equal = round(result.mean, 4) == 0
    how = "as good as" if is_equal else f"{_better(result.mean)} than"
    return result, f"{where} is {how} the champion's ({interval})"


def _better(amount: float) -> str:
    """Return a difference as text, such as `0.0123 better`; positive means better."""
    if round(amount, 4) == 0:
        return "0.0000"
    return f"{abs(amount):.4f} {'worse' if amount < 0 else 'better'}"


def _unsound(ours: Evidence, theirs: Evidence | None) -> str:
    """Return why two models cannot be compared: the metrics of one are not verified."""
    for name, evidence in (("candidate", ours), ("champion", theirs)):
        if evidence is None or evidence.mismatches is None:
            command = evidence.proposal if evidence else ours.proposal
            return f"the {name}'s metrics were not recomputed: `{command}` measures it anew"
        if evidence.mismatches:
            return f"the {name} cannot be measured: {evidence.mismatches[0]}"
    return "no reason is recorded"


def _difference(
    case: Case, split: str, confidence: float, only: tuple[str, ...] | None
) -> Difference:
    """Return the difference; raise ValueError if the two models cannot be compared."""
    ours, theirs = case.evidence, case.champion
    if theirs is None or theirs.mismatches != () or ours.mismatches != ():
        raise ValueError(_unsound(ours, theirs))
    evaluation, champion_evaluation = ours.evaluation, theirs.evaluation
    if (evaluation.primary_metric, evaluation.goal) != (
        champion_evaluation.primary_metric,
        champion_evaluation.goal,
    ):
        raise ValueError("the champion has another primary metric")
    hashes = {name: version.sha256 for name, version in ours.data.items()}
    if not hashes or hashes != {name: version.sha256 for name, version in theirs.data.items()}:
        raise ValueError("the champion was not scored on the same data")
    labels = ours.labels.get(split)
    if not labels or labels != theirs.labels.get(split):
        raise ValueError("the champion was not evaluated on the same rows with the same labels")
    metric = evaluation.primary_metric or ""
    if evaluation.custom_metrics.get(metric) != champion_evaluation.custom_metrics.get(metric):
        raise ValueError(f"the champion's metrics.py computes another {metric}")
    if evaluation.out_of_fold.get(split) != champion_evaluation.out_of_fold.get(split):
        raise ValueError("only one of the two was measured out of fold")
    sign = _sign(evaluation)
    if sign is None:
        raise ValueError("there is no goal")
    bounds = case.bounds(evaluation.primary_metric)
    if split in ours.statistics:
        values = [
            estimate(side.metrics, split, metric).value
            for side in (evaluation, champion_evaluation)
        ]
    else:
        outcomes = (chosen(evidence.outcomes.get(split, {}), only) for evidence in (ours, theirs))
        values = [value for units in outcomes for value in units.values()]
    if bounds is None or not all(bounds[0] <= real(value) <= bounds[1] for value in values):
        raise ValueError("a value is out of bounds")
    key = (split, confidence, only)
    if key not in case.differences:
        case.differences[key] = paired_difference(ours, theirs, split, confidence, only)
    result: Difference = case.differences[key]
    if only is None and result.count < case.min_count:
        raise ValueError(f"{result.count} units are too few")
    if sign < 0:
        return Difference(-result.mean, -result.high, -result.low, result.count)
    return result
