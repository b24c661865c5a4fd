"""The gates that compare: a split with validation, the model with the champion or the baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from policies.promotion.decision import Verdict
from policies.promotion.evidence import Evidence
from policies.promotion.gates import Gate
from policies.promotion.judging import Case, Finding, estimate, real, shown, unsound
from policies.promotion.paired import Difference, difference

# 0.8 − 0.7 is a little more than 0.1 to a computer.
ROUNDING = 1e-12
_NO_SPLIT = Finding("fail", "no split", "`non-inferiority.splits` in the project's gates.yml")


# The split that a model and its hyperparameters are chosen on.
VALIDATION = "validation"


def gap(case: Case, gate: Gate) -> Finding:
    """A metric differs from that on validation by no more than its bound, either way.

    Much worse is a model fitted to what it was chosen on; much better is a split that leaks.
    """
    limits = gate.numbers("at_most")
    required = ", ".join(f"{key} within {limit:g} of validation" for key, limit in limits.items())
    if not limits:
        return Finding("fail", "no bound", "`gap.at_most` in the project's gates.yml")
    enough, bounds = (
        case.gates["quality"].number("min_count"),
        case.gates["quality"].bounds("bounds"),
    )
    found, failures, measured = [], [], True
    for key, limit in limits.items():
        split, metric = key.split(".")
        ours = estimate(case.evidence.metrics, split, metric)
        chosen = estimate(case.evidence.metrics, VALIDATION, metric)
        found.append(f"{key} {shown(ours.value)}, validation {shown(chosen.value)}")
        problems = [
            f"{name}.{metric} {problem}"
            for name, of in ((split, ours), (VALIDATION, chosen))
            if (problem := unsound(of, bounds.get(metric), enough))
        ]
        if split == VALIDATION:
            problems.append(f"{key} is compared with itself")
        if problems:
            measured = False
            failures += problems
        elif not abs(real(ours.value) - real(chosen.value)) <= limit + ROUNDING:
            failures.append(f"{key} is {abs(real(ours.value) - real(chosen.value)):.4g} apart")
    verdict: Verdict = "fail" if failures else "pass"
    return Finding(verdict, "; ".join(found), required, "; ".join(failures), measured)


def first_promotion(case: Case, gate: Gate) -> Finding:
    """With no champion to compare with, the candidate beats the baseline on the first split."""
    if case.champion is not None:
        return Finding("not asked", "there is a champion", "the baseline beaten")
    evidence, metric = case.evidence, case.evidence.primary_metric or "the primary metric"
    split = next(iter(_splits(case)), None)
    if split is None:
        return _NO_SPLIT
    enough = case.gates["quality"].number("min_count")
    bounds = case.gates["quality"].bounds("bounds").get(metric)
    ours = estimate(evidence.metrics, split, metric)
    baseline = estimate(evidence.baseline, split, metric)
    required = f"{split}.{metric} better than the baseline's {shown(baseline.value)}"
    for name, of in (("candidate", ours), ("baseline", baseline)):
        if problem := unsound(of, bounds, enough):
            return Finding("fail", shown(ours.value), required, f"the {name} {problem}")
    sign = _sign(evidence)
    better = sign is not None and sign * real(ours.value) > sign * real(baseline.value)
    found = f"{split}.{metric} {shown(ours.value)}, the baseline {shown(baseline.value)}"
    why = "there is no champion to beat yet"
    verdict: Verdict = "pass" if better else "fail"
    return Finding(verdict, found, required, why, measured=sign is not None)


def non_inferiority(case: Case, gate: Gate) -> Finding:
    """On every split, and every slice that the project names, the candidate is not worse than the
    champion by more than the margin; on no other slice is it shown to be worse by more.
    """
    if case.champion is None:
        return Finding("not asked", "no champion yet", "see first-promotion")
    margin, splits = gate.number("margin"), gate.names("splits")
    required = f"paired difference above −{margin:g} on " + (", ".join(splits) or "a split")
    if not splits:
        return _NO_SPLIT
    confidence = gate.number("confidence")
    compared = {split: _compared(case, split, confidence) for split in splits}
    every = _members(case, splits[0])
    for name in gate.names("slices"):
        compared[name] = _compared(case, splits[0], confidence, every.pop(name, ()))
    found = "; ".join(f"{name} {told}" for name, (_, told) in compared.items())
    ok = all(by is not None and by.low > -margin for by, _ in compared.values())
    if not ok:
        measured = all(by is not None for by, _ in compared.values())
        return Finding("fail", found, required, "it may be worse", measured)
    worse, unsure = _shown_worse(case, gate, splits[0], every)
    if worse:
        return Finding("fail", found, required, f"it is worse on {'; '.join(worse)}", measured=True)
    notes = f"not shown either way: {'; '.join(unsure)}" if unsure else ""
    return Finding("pass", found, required, notes)


def _members(case: Case, split: str) -> dict[str, tuple[str, ...]]:
    """`DIMENSION.SLICE` → its units, where both were measured on the same ones."""
    ours = case.evidence.members.get(split, {})
    return {
        f"{dimension}.{name}": units
        for dimension, slices in ours.items()
        for name, units in slices.items()
    }


def _shown_worse(
    case: Case, gate: Gate, split: str, slices: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], list[str]]:
    """The slices on which it is worse by more than the margin beyond doubt, and those where it
    looks so.

    A slice is small, so the burden of proof is turned around: the whole interval lies below the
    margin. Looking at many, one looks bad by chance: the intervals are wider by Bonferroni's
    correction.
    """
    enough, margin = gate.number("slice_min_count"), gate.number("margin")
    judged = {name: units for name, units in slices.items() if len(units) >= enough}
    confidence = 1 - (1 - gate.number("confidence")) / max(len(judged), 1)
    worse, unsure = [], []
    for name, units in judged.items():
        by, told = _compared(case, split, confidence, units)
        if by is None or (-margin > by.mean and by.high >= -margin):
            unsure.append(f"{name} {told}")
        elif by.high < -margin:
            worse.append(f"{name} {told}")
    return worse, unsure


def superiority(case: Case, gate: Gate) -> Finding:
    """On the first split the candidate is better than the champion, or somebody wrote why not."""
    if case.champion is None:
        return Finding("not asked", "no champion yet", "see first-promotion")
    split = next(iter(_splits(case)), None)
    if split is None:
        return _NO_SPLIT
    required = f"paired difference above 0 on {split}, or a reason in writing"
    by, told = _compared(case, split, gate.number("confidence"))
    if by is None:
        return Finding("fail", told, required)
    if by.low > 0:
        return Finding("pass", f"{split} {told}", required)
    if case.request.reason.strip():
        return Finding(
            "pass", f"{split} {told}", required, f"reason: {case.request.reason.strip()}"
        )
    why = "not shown to be better; replacing it all the same takes a reason in writing"
    return Finding("fail", f"{split} {told}", required, why)


def _sign(evidence: Evidence) -> int | None:
    return {"maximize": 1, "minimize": -1}.get(evidence.goal or "")


def _splits(case: Case) -> tuple[str, ...]:
    return case.gates["non-inferiority"].names("splits")


def _compared(
    case: Case, split: str, confidence: float, only: Collection[str] | None = None
) -> tuple[Difference | None, str]:
    """How the candidate differs from the champion, positive when better; None says why not.

    `only` are the units of a slice, of which there may be fewer than a split needs.
    """
    ours, theirs = case.evidence, case.champion
    if theirs is None or theirs.disagreements != () or ours.disagreements != ():
        return None, "not compared: the metrics were not recomputed"
    if (ours.primary_metric, ours.goal) != (theirs.primary_metric, theirs.goal):
        return None, "not compared: another primary metric"
    hashes = {name: of.sha256 for name, of in ours.data.items()}
    if not hashes or hashes != {name: of.sha256 for name, of in theirs.data.items()}:
        return None, "not compared: the champion was not scored on the same data"
    sign = _sign(ours)
    if sign is None:
        return None, "not compared: no goal"
    bounds = case.gates["quality"].bounds("bounds").get(ours.primary_metric or "")
    candidate, champion = (of.outcomes.get(split, {}) for of in (ours, theirs))
    if only is not None:
        candidate, champion = (
            {unit: of[unit] for unit in only if unit in of} for of in (candidate, champion)
        )
    scored = [*candidate.values(), *champion.values()]
    if bounds is None or not all(bounds[0] <= real(value) <= bounds[1] for value in scored):
        return None, "not compared: a value is out of bounds"
    try:
        by = difference(candidate, champion, confidence, ours.groups.get(split))
    except ValueError as error:
        return None, f"not compared: {error}"
    if only is None and by.count < case.gates["quality"].number("min_count"):
        return None, f"not compared: {by.count} units are too few"
    if sign < 0:
        by = Difference(-by.mean, -by.high, -by.low, by.count)
    return by, f"{by.mean:+z.4f} [{by.low:+z.4f}, {by.high:+z.4f}]"
