"""The gates that compare: a split with validation, the model with the champion or the baseline."""

from __future__ import annotations

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
    why = "the first promotion has no champion to beat"
    verdict: Verdict = "pass" if better else "fail"
    return Finding(verdict, shown(ours.value), required, why, measured=sign is not None)


def non_inferiority(case: Case, gate: Gate) -> Finding:
    """On every split, the candidate is not worse than the champion by more than the margin."""
    if case.champion is None:
        return Finding("not asked", "no champion yet", "see first-promotion")
    margin, splits = gate.number("margin"), gate.names("splits")
    required = f"paired difference above −{margin:g} on " + (", ".join(splits) or "a split")
    if not splits:
        return _NO_SPLIT
    compared = [_compared(case, split, gate.number("confidence")) for split in splits]
    found = "; ".join(f"{split} {told}" for split, (_, told) in zip(splits, compared, strict=True))
    ok = all(by is not None and by.low > -margin for by, _ in compared)
    why, measured = "" if ok else "it may be worse", all(by is not None for by, _ in compared)
    return Finding("pass" if ok else "fail", found, required, why, measured)


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


def _compared(case: Case, split: str, confidence: float) -> tuple[Difference | None, str]:
    """How the candidate differs from the champion, positive when better; None says why not."""
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
    scored = [*ours.outcomes.get(split, {}).values(), *theirs.outcomes.get(split, {}).values()]
    if bounds is None or not all(bounds[0] <= real(value) <= bounds[1] for value in scored):
        return None, "not compared: a value is out of bounds"
    try:
        by = difference(ours.outcomes.get(split, {}), theirs.outcomes.get(split, {}), confidence)
    except ValueError as error:
        return None, f"not compared: {error}"
    if by.count < case.gates["quality"].number("min_count"):
        return None, f"not compared: {by.count} units are too few"
    if sign < 0:
        by = Difference(-by.mean, -by.high, -by.low, by.count)
    return by, f"{by.mean:+.4f} [{by.low:+.4f}, {by.high:+.4f}]"
