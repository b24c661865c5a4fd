"""The gates that compare the candidate with the champion, or with the baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from policies.promotion.bootstrap import Difference, difference
from policies.promotion.case import Case, Finding, estimate, real, shown, unsound
from policies.promotion.evidence import Evidence
from policies.promotion.gates import Gate

_NO_SPLIT = Finding("fail", "no split", "`non-inferiority.splits` in the project's gates.yml")
_NO_CHAMPION = Finding("not asked", "no champion yet", "see first-promotion")


def first_promotion(case: Case, gate: Gate) -> Finding:
    """Without a champion, the candidate has to beat the baseline on the first split."""
    if case.champion is not None:
        return Finding("not asked", "there is a champion", "the baseline beaten")
    evidence, metric = case.evidence, case.evidence.primary_metric or "the primary metric"
    if not case.splits:
        return _NO_SPLIT
    split = case.splits[0]
    candidate = estimate(evidence.metrics, split, metric)
    baseline = estimate(evidence.baseline, split, metric)
    required = f"{split}.{metric} better than the baseline's {shown(baseline.value)}"
    for name, measured in (("candidate", candidate), ("baseline", baseline)):
        if problem := unsound(measured, case.bounds(metric), case.min_count):
            return Finding("fail", shown(candidate.value), required, f"the {name} {problem}")
    sign = _sign(evidence)
    better = sign is not None and sign * real(candidate.value) > sign * real(baseline.value)
    found = f"{split}.{metric} {shown(candidate.value)}, the baseline {shown(baseline.value)}"
    reason = "there is no champion to beat yet"
    return Finding("pass" if better else "fail", found, required, reason, measured=sign is not None)


def non_inferiority(case: Case, gate: Gate) -> Finding:
    """On every split, and every slice that the project names, the candidate is not worse than the
    champion by more than the margin; on no other slice is it shown to be worse by more.
    """
    if case.champion is None:
        return _NO_CHAMPION
    margin = gate.number("margin")
    required = f"paired difference above −{margin:g} on " + (", ".join(case.splits) or "a split")
    if not case.splits:
        return _NO_SPLIT
    confidence, first = gate.number("confidence"), case.splits[0]
    compared = {split: _compare(case, split, confidence) for split in case.splits}
    slices = _slices(case, first)
    for name in gate.names("slices"):
        compared[name] = _compare(case, first, confidence, slices.pop(name, ()))
    found = "; ".join(f"{name} {text}" for name, (_, text) in compared.items())
    differences = [result for result, _ in compared.values()]
    if any(result is None or not result.low > -margin for result in differences):
        measured = None not in differences
        return Finding("fail", found, required, "it may be worse", measured)
    worse, unsure = _worse_slices(case, gate, first, slices)
    if worse:
        reason = f"it is worse on {'; '.join(worse)}"
        return Finding("fail", found, required, reason, measured=True)
    notes = f"not shown either way: {'; '.join(unsure)}" if unsure else ""
    return Finding("pass", found, required, notes)


def _slices(case: Case, split: str) -> dict[str, tuple[str, ...]]:
    """`DIMENSION.SLICE` → its units."""
    return {
        f"{dimension}.{name}": units
        for dimension, slices in case.evidence.members.get(split, {}).items()
        for name, units in slices.items()
    }


def _worse_slices(
    case: Case, gate: Gate, split: str, slices: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], list[str]]:
    """The slices that are worse by more than the margin, and those that may be.

    A slice is small, so the burden of proof is reversed: the whole interval has to lie below the
    margin. Of many slices one looks bad by chance, so the intervals are wider by Bonferroni's
    correction.
    """
    min_count, margin = gate.number("slice_min_count"), gate.number("margin")
    judged = {name: units for name, units in slices.items() if len(units) >= min_count}
    confidence = 1 - (1 - gate.number("confidence")) / max(len(judged), 1)
    worse, unsure = [], []
    for name, units in judged.items():
        result, text = _compare(case, split, confidence, units)
        if result is None or (-margin > result.mean and result.high >= -margin):
            unsure.append(f"{name} {text}")
        elif result.high < -margin:
            worse.append(f"{name} {text}")
    return worse, unsure


def superiority(case: Case, gate: Gate) -> Finding:
    """On the first split the candidate beats the champion, or the request gives a reason."""
    if case.champion is None:
        return _NO_CHAMPION
    if not case.splits:
        return _NO_SPLIT
    split, reason = case.splits[0], case.request.reason.strip()
    required = f"paired difference above 0 on {split}, or a reason in writing"
    result, text = _compare(case, split, gate.number("confidence"))
    if result is None:
        return Finding("fail", text, required)
    found = f"{split} {text}"
    if result.low > 0:
        return Finding("pass", found, required)
    if reason:
        return Finding("pass", found, required, f"reason: {reason}")
    why = "not shown to be better; to replace the champion, give a reason in writing"
    return Finding("fail", found, required, why)


def _sign(evidence: Evidence) -> int | None:
    return {"maximize": 1, "minimize": -1}.get(evidence.goal or "")


def _compare(
    case: Case, split: str, confidence: float, only: Collection[str] | None = None
) -> tuple[Difference | None, str]:
    """How the candidate differs from the champion, positive when better; None with the reason.

    `only` are the units of a slice, of which there may be fewer than a split needs.
    """
    ours, theirs = case.evidence, case.champion
    if theirs is None or theirs.disagreements != () or ours.disagreements != ():
        return None, "not compared: the metrics were not recomputed"
    if (ours.primary_metric, ours.goal) != (theirs.primary_metric, theirs.goal):
        return None, "not compared: another primary metric"
    hashes = {name: version.sha256 for name, version in ours.data.items()}
    if not hashes or hashes != {name: version.sha256 for name, version in theirs.data.items()}:
        return None, "not compared: the champion was not scored on the same data"
    sign = _sign(ours)
    if sign is None:
        return None, "not compared: no goal"
    bounds = case.bounds(ours.primary_metric)
    candidate, champion = (evidence.outcomes.get(split, {}) for evidence in (ours, theirs))
    if only is not None:
        candidate, champion = (
            {unit: values[unit] for unit in only if unit in values}
            for values in (candidate, champion)
        )
    values = [*candidate.values(), *champion.values()]
    if bounds is None or not all(bounds[0] <= real(value) <= bounds[1] for value in values):
        return None, "not compared: a value is out of bounds"
    try:
        result = difference(candidate, champion, confidence, ours.groups.get(split))
    except ValueError as error:
        return None, f"not compared: {error}"
    if only is None and result.count < case.min_count:
        return None, f"not compared: {result.count} units are too few"
    if sign < 0:
        result = Difference(-result.mean, -result.high, -result.low, result.count)
    return result, f"{result.mean:+z.4f} [{result.low:+z.4f}, {result.high:+z.4f}]"
