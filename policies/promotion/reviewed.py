"""The gates that a person looks at too: how slices differ, and what the features contribute."""

from __future__ import annotations

import math
from dataclasses import replace

from policies.promotion.evidence import Estimate
from policies.promotion.gates import Gate
from policies.promotion.judging import Case, Finding, real, shown, unsound

# Shares are written as they were computed; their sum is off by rounding alone.
ROUNDING = 1e-6


def fairness(case: Case, gate: Gate) -> Finding:
    """Every dimension that the project names is measured, no two slices lie further apart than its
    bound, and somebody looked at them. Slices of too few units are not compared.
    """
    dimensions, metric = gate.names("dimensions"), case.evidence.primary_metric
    if not dimensions:
        return Finding("fail", "no dimension", "`fairness.dimensions` in the project's gates.yml")
    bounded = gate.numbers("at_most")
    limits = {f"{name}.{metric}": math.inf for name in dimensions} | dict(bounded)
    within = ", ".join(f"{key} within {limit:g}" for key, limit in bounded.items())
    required = f"slices by {', '.join(dimensions)}" + (f", {within}" if within else "")
    found, failures, measured = [], [], True
    for key, limit in limits.items():
        slices, problems = _slices(case, gate, *key.split("."))
        if problems:
            measured = False
            failures += problems
            continue
        low, *_, high = sorted(slices, key=lambda one: slices[one])
        apart = slices[high] - slices[low]
        ends = f"{low} {slices[low]:.4g} to {high} {slices[high]:.4g}"
        found.append(f"{key} {apart:.4g} apart, {ends}")
        if not apart <= limit + ROUNDING:
            failures.append(f"{key} is {apart:.4g} apart")
    if failures:
        told = "; ".join(found) or "not compared"
        return Finding("fail", told, required, "; ".join(failures), measured)
    return _looked_at(case, gate, Finding("pass", "; ".join(found), required))


def _slices(
    case: Case, gate: Gate, dimension: str, metric: str
) -> tuple[dict[str, float], list[str]]:
    """The metric of every slice that is large enough, and what is wrong with any."""
    bounds = case.gates["quality"].bounds("bounds").get(metric)
    found: dict[str, float] = {}
    problems = []
    for name, of in case.evidence.slices.get(dimension, {}).items():
        one = of.get(metric) or Estimate()
        if problem := unsound(one, bounds, 1):
            problems.append(f"{dimension} {name} {metric} {problem}")
        elif real(one.count) >= gate.number("min_count"):
            found[name] = real(one.value)
    if not problems and len(found) < 2:
        enough = f"{gate.number('min_count'):g} units"
        problems.append(f"{dimension} has {len(found)} slices of {enough} or more")
    return found, problems


def explainability(case: Case, gate: Gate) -> Finding:
    """The contributions are of enough rows, add up to the score, no feature decides alone, and
    somebody looked at them.
    """
    of, shares = case.evidence.explanation, case.evidence.contributions
    rows, most = gate.number("min_rows"), gate.number("max_share")
    required = f"contributions over at least {rows:g} rows, none above {most:g}"
    ordered = sorted(shares, key=lambda one: -real(one.share))
    found = ", ".join(f"{one.feature} {shown(one.share)}" for one in ordered[:3]) or "none"
    total = sum(real(one.share) for one in shares)
    if not abs(total - 1) <= ROUNDING or any(one.feature is None for one in shares):
        return Finding("fail", found, required, "they are not shares of 1")
    if of.method is None or not real(of.rows) >= rows:
        why = f"{shown(of.rows)} rows by {of.method or 'an unknown method'}"
        return Finding("fail", found, required, why)
    if not 0 <= real(of.error) <= gate.number("max_error"):
        return Finding("fail", found, required, "contributions do not add up to the score")
    if not real(ordered[0].share) <= most:
        why = f"{ordered[0].feature} decides alone: does it give the answer away?"
        return Finding("fail", found, required, why, measured=True)
    return _looked_at(case, gate, Finding("pass", found, required))


def _looked_at(case: Case, gate: Gate, finding: Finding) -> Finding:
    """The finding with what somebody wrote of it; a fail where nobody did and somebody must."""
    notes: list[str] = []
    for review in gate.reviews:
        void = review.void(case.request, case.evidence)
        if not void:
            return replace(finding, why="; ".join([*notes, str(review)]))
        notes.append(void)
    environment = case.request.environment
    if environment in gate.names("unreviewed_allowed_in"):
        return replace(finding, why="; ".join([*notes, "nobody has reviewed it"]))
    rest = "finding: WHAT, owner: NAME, expires: DAY"
    line = f"{{gate: {gate.name}, version: {case.request.version}, {rest}}}"
    features = f"`feature_set: {case.evidence.lineage.feature_set_hash}`"
    told = f"nobody has reviewed it; under `reviews` in gates.yml: {line}"
    later = f"with {features} in place of `version` it holds for later ones too"
    return Finding(
        "fail", finding.found, finding.required, "; ".join([*notes, told, later]), measured=True
    )
