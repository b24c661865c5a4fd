"""The gate on forecasts: better than seasonal naive, intervals that hold, no worse group."""

from __future__ import annotations

from collections.abc import Iterator

from ml.measures.schema import Estimate
from policies.promotion.decision import Case, Finding, Verdict, estimate, real, shown, unsound
from policies.promotion.gate import Gate

# The mean scaled error by that of seasonal naive, on the same draws of series.
_RELATIVE = "relative_mase"


def forecasting(case: Case, gate: Gate) -> Finding:
    """On every split the error is below that of seasonal naive, over the whole interval; the
    intervals contain the share of values that they promise; no slice is shown to be worse than
    seasonal naive.
    """
    evaluation = case.evaluation
    low, high = gate.number("min_coverage"), gate.number("max_coverage")
    required = (
        f"{_RELATIVE} below 1 over its interval, coverage from {low:g} to {high:g}, no slice "
        "shown to be worse than seasonal naive"
    )
    if evaluation.task != "forecasting":
        return Finding("not evaluated", f"the task is {evaluation.task or 'ranking'}", required)
    if not case.splits:
        return Finding("fail", "no split", "`non-inferiority.splits` in the project's gates.yml")
    parts, failures, measured = [], [], True
    for split in case.splits:
        relative, coverage = (
            estimate(evaluation.metrics, split, name) for name in (_RELATIVE, "coverage")
        )
        parts.append(f"{_RELATIVE} on {split} is {relative}, coverage {shown(coverage.value)}")
        problems = [
            f"{name} on {split} {problem}"
            for name, value in ((_RELATIVE, relative), ("coverage", coverage))
            if (problem := unsound(value, case.bounds(name), case.min_count))
        ]
        measured = measured and not problems
        failures += problems
        if not problems and not relative.high < 1:
            failures.append(f"on {split} it may be no better than seasonal naive")
        if not problems and not low <= coverage.value <= high:
            failures.append(f"coverage on {split} is outside {low:g} to {high:g}")
    worse = [name for name, error in _slices(case) if real(error.low) > 1]
    failures += [f"{name} is worse than seasonal naive" for name in worse]
    verdict: Verdict = "fail" if failures else "pass"
    return Finding(verdict, "; ".join(parts), required, "; ".join(failures), measured)


def _slices(case: Case) -> Iterator[tuple[str, Estimate]]:
    """The relative error of each slice, in which the interval of a small one is wide."""
    for dimension, slices in case.evaluation.slices.items():
        for name, metrics in slices.items():
            if _RELATIVE in metrics:
                yield f"{dimension} {name}", metrics[_RELATIVE]
