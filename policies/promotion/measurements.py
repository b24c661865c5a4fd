"""The gates on the candidate's own measurements, forecasts included.

A gate that lacks data fails. None, NaN and infinity satisfy no comparison, because every number
passes through `real` first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ml.measures.schema import MOST, Estimate
from policies.promotion.decision import (
    VALIDATION,
    Case,
    Finding,
    Verdict,
    estimate,
    metric_on_split,
    real,
    shown,
    unsound,
)
from policies.promotion.evidence import Evidence
from policies.promotion.gate import Gate

# The fewest rows of a parity check if cross-validation leaves few for this model.
FEWEST_SERVED = 20
# In floating point 0.8 − 0.7 exceeds 0.1.
ROUNDING = 1e-12
# Rounding errors of sums, from which shares and slices are computed.
SUM_ROUNDING = 1e-6
# The leakage check that is recomputed from the stored identifiers.
SHARED = "identifiers.shared"
# The method whose contributions do not add up to the score; its `error` is a standard error.
PERMUTATION = "permutation importance"
# The feature set hash of a model without features.
NO_FEATURES = hashlib.sha256(b"").hexdigest()
# The MASE divided by that of seasonal naive, on the same draws of series.
_RELATIVE = "relative_mase"


def quality(case: Case, gate: Gate) -> Finding:
    """Every metric meets its threshold, is within its bounds and is over enough units."""
    limits = [(key, "≥", limit) for key, limit in gate.numbers("at_least").items()]
    limits += [(key, "≤", limit) for key, limit in gate.numbers("at_most").items()]
    required = ", ".join(f"{metric_on_split(key)} {sign} {limit:g}" for key, sign, limit in limits)
    if not limits:
        return Finding("fail", "no threshold", "at least one threshold in the project's gates.yml")
    parts, failures, measured = [], [], True
    for key, sign, limit in limits:
        split, metric = key.split(".")
        stated, name = estimate(case.evaluation.metrics, split, metric), metric_on_split(key)
        parts.append(f"{name} is {shown(stated.value)}")
        value = real(stated.value)
        if problem := unsound(stated, case.bounds(metric), case.min_count):
            failures.append(f"{name} {problem}")
            measured = False
        elif not (value >= limit if sign == "≥" else value <= limit):
            failures.append(f"{name} misses {limit:g}")
    verdict: Verdict = "fail" if failures else "pass"
    return Finding(verdict, ", ".join(parts), required, "; ".join(failures), measured)


def gap(case: Case, gate: Gate) -> Finding:
    """A metric differs from its value on validation by at most the bound, in either direction.

    A much worse metric means overfitting to validation; a much better one means leakage.
    """
    limits = gate.numbers("at_most")
    required = ", ".join(
        f"{metric_on_split(key)} within {limit:g} of validation" for key, limit in limits.items()
    )
    if not limits:
        return Finding("fail", "no bound", "`gap.at_most` in the project's gates.yml")
    parts, failures, measured = [], [], True
    for key, limit in limits.items():
        split, metric = key.split(".")
        on_split = estimate(case.evaluation.metrics, split, metric)
        on_validation = estimate(case.evaluation.metrics, VALIDATION, metric)
        parts.append(
            f"{metric} is {shown(on_split.value)} on {split} and {shown(on_validation.value)} on "
            f"{VALIDATION}"
        )
        # With cross-validation the test reuses the training rows, so validation is small.
        fewest = case.min_count
        if _is_out_of_fold(case, split):
            fewest = min(fewest, gate.number("min_count_beside_folds"))
        problems = [
            f"{metric} on {name} {problem}"
            for name, value, count in (
                (split, on_split, case.min_count),
                (VALIDATION, on_validation, fewest),
            )
            if (problem := unsound(value, case.bounds(metric), count))
        ]
        if split == VALIDATION:
            problems.append(f"{metric_on_split(key)} is compared with itself")
        difference = abs(real(on_split.value) - real(on_validation.value))
        if problems:
            measured = False
            failures += problems
        elif not difference <= limit + ROUNDING:
            failures.append(f"{metric} differs by {difference:.4g}, more than {limit:g}")
    verdict: Verdict = "fail" if failures else "pass"
    return Finding(verdict, "; ".join(parts), required, "; ".join(failures), measured)


def leakage(case: Case, gate: Gate) -> Finding:
    """Every required check was run, and none exceeds its limit.

    A check without a limit in gates.yml or over no rows fails. A check near its limit warns, and
    so does a suspiciously high AUC of the model. The overlap of training and test covers every row
    of the promoted splits and is recomputed by `verified-metrics` from the stored identifiers. No
    row of those splits may be in validation.
    """
    limits = gate.numbers("at_most")
    bounds = [f"{name} ≤ {limit:g}" for name, limit in limits.items()]
    required = ", ".join([*bounds, f"no row of {VALIDATION}"])
    checks = case.evaluation.leakage
    measured = {check.check for check in checks}
    absent = [name for name in gate.names("checks") if name not in measured]
    if not checks or absent:
        hint = "the evaluation writes what `ml.measures.leakage` finds under `leakage`"
        return Finding("fail", f"not measured: {', '.join(absent) or 'nothing'}", required, hint)
    rows = sum(map(len, _units(case).values()))
    # Each fold is compared with the others: together they cover the rows.
    shares = {check.of: real(check.units) for check in checks if check.check == SHARED}
    is_folded = any(_is_out_of_fold(case, split) for split in case.splits)
    covered = sum(shares.values()) if is_folded else math.nan
    problems, leaks, reasons = [], [], []
    for check in checks:
        name = f"{check.check} {check.of}"
        if check.check is None or check.check not in limits:
            problems.append(f"{name} has no bound in gates.yml")
        elif check.of is None or not real(check.units) >= 1 or not real(check.value) >= 0:
            problems.append(f"{name} is missing or out of bounds")
        elif check.check == SHARED and case.evaluation.identifiers is None:
            again = f"`{case.evidence.proposal}` measures it anew"
            problems.append(f"the identifiers behind {name} are not kept: {again}")
        elif check.check == SHARED and not (real(check.units) >= rows or covered >= rows):
            problems.append(f"{name} is over {shown(check.units)} of {rows} rows of the test")
        elif not real(check.value) <= limits[check.check]:
            leaks.append(name)
            reasons += [check.actual] if check.actual else []
    actual = ", ".join(f"{check.check} {check.of} {shown(check.value)}" for check in checks)
    warnings = {
        name: f"{name} is {value:.4g} (warning limit {warn_from:g})"
        for name, (value, warn_from) in _near(case, gate).items()
        if name not in leaks
    }
    if problems:
        return Finding("fail", actual, required, "; ".join(problems))
    shared = _shared_with_validation(case)
    leaks += shared
    if leaks:
        reason = "; ".join([*reasons, *shared.values()])
        return Finding("fail", actual, required, reason, True, tuple(leaks), warnings)
    return Finding("pass", actual, required, warnings=warnings)


def _near(case: Case, gate: Gate) -> dict[str, tuple[float, float]]:
    """Return the leakage checks that warn: the waiver's key → (value, limit of the warning).

    Both the recomputed AUC and the one that the evaluation states are checked.
    """
    values = [(str(entry.check), entry.of, entry.value) for entry in case.evaluation.leakage]
    values += [
        ("model.auc", split, estimate(case.evaluation.metrics, split, "auc").value)
        for split in case.splits
    ]
    limits = gate.numbers("warn_from")
    near = [
        (check, subject, value)
        for check, subject, value in values
        if check in limits and real(value) >= limits[check]
    ]
    alone = {subject for check, subject, _ in near if check.startswith("feature.")}
    # A check of all features repeats the warning about one of them.
    return {
        f"{check} {subject}": (value, limits[check])
        for check, subject, value in near
        if not (check.startswith("joint.") and alone.intersection(str(subject).split(" + ")))
    }


def _is_out_of_fold(case: Case, split: str) -> bool:
    return real(case.evaluation.out_of_fold.get(split)) >= 2


def _units(case: Case) -> dict[str, Collection[str]]:
    """Return split → units, for the splits that decide a promotion."""
    return {split: case.evidence.outcomes.get(split, {}).keys() for split in case.splits}


def _shared_with_validation(case: Case) -> dict[str, str]:
    """Return the promoted splits that share rows with validation: the waiver's key → a sentence."""
    validation = case.evidence.outcomes.get(VALIDATION, {}).keys()
    sentences = {}
    for split, units in _units(case).items():
        if count := len(validation & set(units)):
            sentences[f"{VALIDATION}.shared {split}"] = (
                f"{count} of {len(units)} rows of {split} are in {VALIDATION} too, "
                "which the model was selected on"
            )
    return sentences


def fairness(case: Case, gate: Gate) -> Finding:
    """Every dimension of the project is measured, the difference and the ratio of any two slices
    are within their limits, and a person reviewed them.

    Slices with too few units are listed but not compared. If fewer than two remain, or a metric is
    undefined on a large one, each such slice is an item that a waiver may name.
    """
    dimensions, metric = gate.names("dimensions"), case.evaluation.primary_metric
    if not dimensions:
        return Finding("fail", "no dimension", "`fairness.dimensions` in the project's gates.yml")
    bounds, ratios = gate.numbers("at_most"), gate.numbers("ratio_at_least")
    limits = {f"{name}.{metric}": math.inf for name in dimensions}
    limits |= dict.fromkeys(ratios, math.inf) | dict(bounds)
    differs = ""
    for key, limit in bounds.items():
        dimension, name = key.split(".")
        differs += f"; {name} differs by at most {limit:g} between slices by {dimension}"
    for key, least in ratios.items():
        dimension, name = key.split(".")
        differs += f"; the lowest {name} by {dimension} is at least {least:g} of the highest"
    required = f"slices by {', '.join(dimensions)}{differs}"
    parts, unsound_slices, failures, items, rare = [], [], [], [], dict[str, str]()
    for key, limit in limits.items():
        dimension, name = key.split(".")
        slices = _Slices.compute(case, gate, dimension, name)
        rare |= slices.rare
        if slices.problems:
            unsound_slices += slices.problems
            continue
        missing = dict(slices.undefined)
        if len(slices.values) >= 2:
            low, *_, high = sorted(slices.values, key=lambda item: slices.values[item])
            difference = slices.values[high] - slices.values[low]
            ends = " and ".join(
                f"{dimension} {end} ({slices.values[end]:.4g})" for end in (low, high)
            )
            parts.append(f"{name} differs by {difference:.4g} between {ends}")
            if not difference <= limit + SUM_ROUNDING:
                failures.append(f"{name} by {dimension} differs by more than {limit:g}")
                items.append("")
            share = slices.values[low] / slices.values[high] if slices.values[high] else 1.0
            if not share >= ratios.get(key, -math.inf) - SUM_ROUNDING:
                failures.append(
                    f"the lowest {name} by {dimension} is {share:.4g} of the highest, "
                    f"less than {ratios[key]:g}"
                )
                items.append("")
        elif others := {**slices.rare, **missing}:
            missing = others
        else:
            unsound_slices.append(f"{dimension} has {len(slices.values)} slices")
        failures += [words for item, words in missing.items() if item not in items]
        items += [item for item in missing if item not in items]
    if rare:
        words = "; ".join(words for item, words in rare.items() if item not in items)
        parts += [f"too few rows: {words}"] if words else []
    comparison = "; ".join(parts) or "not compared"
    if unsound_slices:
        return Finding("fail", comparison, required, "; ".join([*unsound_slices, *failures]))
    reviewed = _reviewed(case, gate, Finding("pass", comparison, required))
    if not failures:
        return reviewed
    if reviewed.verdict == "fail":  # a waiver of a slice is no review of the others
        failures.append(reviewed.why)
        items.append("")
    why = "; ".join(failures)
    return Finding("fail", comparison, required, why, True, tuple(dict.fromkeys(items)))


@dataclass(frozen=True)
class _Slices:
    """A metric on the slices of a dimension."""

    values: Mapping[str, float]  # slice → value, for slices with enough rows
    rare: Mapping[str, str]  # `DIMENSION SLICE`, as in a waiver → sentence: it has too few rows
    undefined: Mapping[str, str]  # `DIMENSION SLICE` → why the metric is not defined on it
    problems: list[str]  # values that are missing or not sound

    @classmethod
    def compute(cls, case: Case, gate: Gate, dimension: str, metric: str) -> _Slices:
        evidence, fewest = case.evidence, gate.number("min_count")
        stated = case.evaluation.slices.get(dimension, {})
        split = case.evaluation.slice_split or ""
        units = evidence.members.get(split, {}).get(dimension, {})
        groups = evidence.groups.get(split, {})
        values: dict[str, float] = {}
        rare: dict[str, str] = {}
        undefined: dict[str, str] = {}
        problems = []
        for name in dict.fromkeys([*units, *stated]):
            measured = stated.get(name, {}).get(metric)
            rows = len(units.get(name, ()))
            count = real(measured.count) if measured else float(rows)
            item = f"{dimension} {name}"
            lacks = evidence.undefined.get(item, {}).get(metric)
            if measured and (problem := unsound(measured, case.bounds(metric), 1)):
                problems.append(f"{metric} of {item} {problem}")
            elif count < fewest and count > 0:
                rare[item] = f"{item} has {count:g} rows, {fewest:g} are needed"
            elif measured:
                values[name] = real(measured.value)
            elif name not in stated and groups:
                drawn = len({groups[unit] for unit in units[name]})
                rare[item] = f"{item} has {rows} rows of {drawn} groups, which are too few to draw"
            elif lacks:
                undefined[item] = f"{metric} is not defined on {item}: {lacks}"
            else:
                problems.append(f"{metric} of {item} is missing")
        return cls(values, rare, undefined, problems)


def explainability(case: Case, gate: Gate) -> Finding:
    """Feature contributions cover enough rows, add up to the score, no feature dominates, and a
    person reviewed them. Only a model without features may omit them, with a reason.
    """
    explanation, shares = case.evaluation.explanation, case.evaluation.contributions
    min_rows, max_share = gate.number("min_rows"), gate.number("max_share")
    required = f"contributions over at least {min_rows:g} rows, none above {max_share:g}"
    ordered = sorted(shares, key=lambda share: -real(share.share))
    largest = ", ".join(f"{share.feature} {shown(share.share)}" for share in ordered[:3])
    actual = f"largest contributions: {largest or 'none'}"
    if explanation.reason and not shares and explanation.method is None:
        actual = f"no contributions: {explanation.reason}"
        if case.evaluation.feature_set_hash != NO_FEATURES:
            why = "a model with features has some: use `ml.measures.contributions.permuted`"
            return Finding("fail", actual, required, why)
        return _reviewed(case, gate, Finding("pass", actual, required))
    total = sum(real(share.share) for share in shares)
    if not abs(total - 1) <= SUM_ROUNDING or any(share.feature is None for share in shares):
        reason = "the shares do not add up to 1, or one names no feature"
        return Finding("fail", actual, required, reason)
    if explanation.method is None or not real(explanation.rows) >= min_rows:
        reason = f"{shown(explanation.rows)} rows by {explanation.method or 'an unknown method'}"
        return Finding("fail", actual, required, reason)
    max_error = by_precision(case.evidence, gate, "max_error")
    problem = "contributions do not add up to the score"
    if explanation.method == PERMUTATION:
        max_error, problem = gate.number("max_error_permuted"), "the importances are too uncertain"
    if not 0 <= real(explanation.error) <= max_error:
        return Finding("fail", actual, required, problem)
    if not real(ordered[0].share) <= max_share:
        reason = f"{ordered[0].feature} predicts the target alone: is it leakage?"
        return Finding("fail", actual, required, reason, measured=True)
    return _reviewed(case, gate, Finding("pass", actual, required))


def _reviewed(case: Case, gate: Gate, finding: Finding) -> Finding:
    """Return the finding with its review; a failure if a required review is missing."""
    notes: list[str] = []
    request, features = case.request, case.evaluation.feature_set_hash
    for review in gate.reviews:
        unusable = review.unusable(request.day, request.version, features)
        if not unusable:
            return replace(finding, why="; ".join([*notes, str(review)]))
        notes.append(unusable)
    notes.append("not reviewed")
    if request.environment in gate.names("unreviewed_allowed_in"):
        return replace(finding, why="; ".join(notes))
    entry = (
        f"gate: {gate.name}, version: {request.version}, finding: WHAT, owner: NAME, expires: DAY"
    )
    notes[-1] += f"; add to `reviews` in gates.yml: {{{entry}}}"
    notes.append(f"with `feature_set: {features}` instead of `version` it holds for later versions")
    return replace(finding, verdict="fail", why="; ".join(notes), measured=True)


def serving(case: Case, gate: Gate) -> Finding:
    """The parity check sent enough evaluated rows to a server with this model and serving code, and
    every response matches the evaluated prediction within the tolerance. For a small table with
    cross-validation, every row that this model predicted is enough.
    """
    served, tolerance = case.evidence.serving, by_precision(case.evidence, gate, "tolerance")
    min_rows = gate.number("min_rows")
    splits = case.evidence.outcomes
    if any(_is_out_of_fold(case, split) for split in splits):  # other models predicted their rows
        counts = (len(units) for split, units in splits.items() if not _is_out_of_fold(case, split))
        min_rows = min(min_rows, max(sum(counts), FEWEST_SERVED))
    required = f"at least {min_rows:g} rows with the evaluated predictions, within {tolerance:g}"
    again = f"`{case.evidence.proposal}` requests predictions from a server"
    if served.rows is None or case.evaluation.requests is None:
        reason = served.reason or f"the evidence does not say; {again}"
        return Finding("fail", "no server predicted evaluated rows", required, reason)
    rows, largest = real(served.rows), real(served.largest)
    actual = f"{shown(served.differing)} of {shown(served.rows)} predictions differ"
    actual += f", by at most {shown(served.largest)}"
    digest, wanted = served.deployment_digest, case.request.deployment_digest
    if digest is None or wanted not in ("", digest):
        reason = f"the serving code or its settings changed since: {again}"
        return Finding("fail", actual, required, reason)
    if not min_rows <= rows <= MOST:
        reason = f"{shown(served.rows)} rows are too few: `evaluate` takes them as `Rows.requests`"
        return Finding("fail", actual, required, reason)
    if served.prediction is None or not 0 <= real(served.differing) <= rows:
        return Finding("fail", actual, required, f"the parity check is incomplete: {again}")
    if not 0 <= largest <= tolerance:
        return Finding("fail", actual, required, served.example or "the evidence has no example")
    return Finding("pass", actual, required)


def by_precision(evidence: Evidence, gate: Gate, setting: str) -> float:
    """Return the gate's `setting`; its `…_single` if a file of the model has a single-precision
    format.
    """
    formats = set((evidence.files or {}).values())
    is_single = bool(formats & set(gate.names("single_precision")))
    return gate.number(f"{setting}_single" if is_single else setting)


def latency(case: Case, gate: Gate) -> Finding:
    """The p95 latency of the server is within the limit, on named hardware.

    A measurement on other hardware than the deployment's is preliminary: on Azure, `ml release
    apply` measures the deployment before it gets traffic.
    """
    measured, limit = case.evidence.latency, gate.number("p95_ms")
    min_requests = gate.number("min_requests")
    required = f"p95 ≤ {limit:g} ms over at least {min_requests:g} requests, hardware named"
    p50, p95, p99 = real(measured.p50_ms), real(measured.p95_ms), real(measured.p99_ms)
    hardware = measured.hardware or "unnamed hardware"
    actual = f"the latency's p95 is {shown(measured.p95_ms)} ms on {hardware}"
    if measured.hardware is None or measured.instance_type is None:
        return Finding("fail", actual, required, "the hardware is not named")
    if not 0 < p50 <= p95 <= p99 <= MOST:
        return Finding("fail", actual, required, "the percentiles are missing or out of order")
    if not min_requests <= real(measured.requests) <= MOST:
        return Finding("fail", actual, required, f"{shown(measured.requests)} requests")
    if not 1 <= real(measured.warm_up) <= MOST:
        return Finding("fail", actual, required, "there was no warm-up request")
    if not p95 <= limit:
        return Finding("fail", actual, required, "too slow", measured=True)
    if measured.hardware == measured.instance_type:
        return Finding("pass", actual, required)
    reason = f"not on the deployment's {measured.instance_type}"
    if not case.request.simulated:
        return Finding(
            "pass", actual, required, f"{reason}, which apply measures before any traffic"
        )
    reason += ": on such a machine, set MLOPS_INSTANCE_TYPE and propose the version there"
    if case.request.environment in gate.names("other_hardware_allowed_in"):
        return Finding("pass", actual, required, reason)
    return Finding("fail", actual, required, reason, measured=True)


def forecasting(case: Case, gate: Gate) -> Finding:
    """On every split the whole interval of the error is below seasonal naive's, the prediction
    intervals have their nominal coverage, and no slice is significantly worse than seasonal naive.
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
    """Yield (`DIMENSION SLICE`, relative MASE with its interval) of each slice that has one."""
    for dimension, slices in case.evaluation.slices.items():
        for name, metrics in slices.items():
            if _RELATIVE in metrics:
                yield f"{dimension} {name}", metrics[_RELATIVE]
