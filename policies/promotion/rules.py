"""The gates, one function each: what was found, what is required, and whether that will do.

A rule that cannot be judged fails. None, NaN and infinity never satisfy a comparison here, because
every number passes through `real` first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from policies.promotion import schema
from policies.promotion.comparison import (
    VALIDATION,
    first_promotion,
    gap,
    non_inferiority,
    superiority,
)
from policies.promotion.evidence import SCHEMA_VERSION, Stability, uri
from policies.promotion.gates import Gate
from policies.promotion.judging import Case, Finding, Rule, estimate, real, shown, unsound
from policies.promotion.leakage import leakage
from policies.promotion.reviewed import explainability, fairness
from policies.promotion.schema import MOST
from policies.promotion.supply import NAMED, supply_chain

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Two clocks may differ by this much before evidence counts as made in the future.
CLOCK_SKEW = timedelta(minutes=5)
# Of what differs from the predictions, so many are told.
NAMED_HERE = 3


def identity(case: Case, gate: Gate) -> Finding:
    """The evidence is of the schema that is known and about the very model that is asked for."""
    asked, evidence = case.request, case.evidence
    required = f"{asked.model} {asked.version} {_short(asked.digest)}"
    found = f"{evidence.model} {evidence.version} {_short(evidence.digest)}"
    if evidence.schema_version is None and evidence.disagreements:
        return Finding(
            "fail", "no evidence that can be trusted", required, evidence.disagreements[0]
        )
    if evidence.schema_version != SCHEMA_VERSION:
        why = "another version of this code made it: `ml release propose PROJECT --run RUN` again"
        stated = f"schema {shown(evidence.schema_version)}"
        return Finding("fail", stated, f"schema {SCHEMA_VERSION}", why)
    if not DIGEST.fullmatch(asked.digest):
        return Finding("fail", found, required, "the model asked for has no digest")
    same = (evidence.model, evidence.version, evidence.digest, evidence.uri) == (
        asked.model,
        asked.version,
        asked.digest,
        uri(asked.model, asked.version),
    )
    why = "" if same else "the evidence is about another model"
    return Finding("pass" if same else "fail", found, required, why)


def freshness(case: Case, gate: Gate) -> Finding:
    """The evidence is recent, and not from the future."""
    limit = gate.number("max_age_days")
    required = f"at most {limit:g} days old"
    created = case.evidence.created
    if created is None or created.tzinfo is None:
        return Finding("fail", "no date with a zone", required)
    age = case.request.now - created
    days = age / timedelta(days=1)
    if age < -CLOCK_SKEW:
        return Finding("fail", f"{-days:.1f} days ahead", required, "evidence from the future")
    ok = days <= limit
    found = f"{max(days, 0):.1f} days old"
    return Finding("pass" if ok else "fail", found, required, measured=True)


def completeness(case: Case, gate: Gate) -> Finding:
    """Every field of the schema is there, finite and within its bounds; the primary metric was
    measured on validation and over two folds or seeds at least.
    """
    evidence = case.evidence
    required = "every field of the evidence's schema"
    absent = list(schema.missing(evidence))
    metric = evidence.primary_metric or ""
    if len(evidence.stability.get(metric, Stability()).values) < 2:
        absent.append(f"stability.{metric}.values")
    if VALIDATION not in evidence.metrics:
        absent.append(f"metrics.{VALIDATION}")
    if absent:
        more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
        return Finding("fail", "missing: " + ", ".join(absent[:NAMED]) + more, required)
    return Finding("pass", "complete", required)


def recomputed(case: Case, gate: Gate) -> Finding:
    """Every metric follows from the hashed predictions that are kept with the evidence, and what
    training and test share from the hashed identifiers.
    """
    required = "equal to what the hashed predictions and identifiers give"
    differing = case.evidence.disagreements
    if differing is None:
        return Finding("fail", "not recomputed", required)
    if differing:
        more = f"{len(differing)} differ in all" if len(differing) > NAMED_HERE else ""
        return Finding("fail", "; ".join(differing[:NAMED_HERE]), required, more)
    return Finding("pass", "all equal", required)


def lineage(case: Case, gate: Gate) -> Finding:
    """Every field that says where the model comes from is there."""
    of, data = case.evidence.lineage, case.evidence.data
    required = "run, parent run, code, commit, environment, features, parameters, seed, data"
    absent = list(schema.missing(of))
    absent += [] if data else ["data"]
    for name, version in data.items():
        absent += schema.missing(version, f"data.{name}.")
    if absent:
        return Finding("fail", "missing: " + ", ".join(absent), required)
    if of.dirty and case.request.environment not in gate.names("dirty_allowed_in"):
        why = f"{case.request.environment} takes committed code only"
        found = f"commit {_short(of.commit)} with changes"
        return Finding("fail", found, required, why, measured=True)
    dirty = " with uncommitted changes" if of.dirty else ""
    return Finding("pass", f"complete; commit {_short(of.commit)}{dirty}", required)


def model_format(case: Case, gate: Gate) -> Finding:
    """Every file of the model is in a format that loads without executing code, by its content."""
    allowed = gate.names("allowed")
    required = "only " + ", ".join(allowed)
    files = case.evidence.files
    if not files:
        return Finding("fail", "no file was looked at", required)
    refused = {file: kind for file, kind in files.items() if kind not in allowed}
    if refused:
        found = ", ".join(f"{file} ({kind or 'unknown'})" for file, kind in refused.items())
        why = "the content is not in an allowed format; loading it may run code, as a pickle does"
        if any(file.lower().endswith(".onnx") for file in refused):
            why += "; ONNX is not allowed yet, because its content is not checked yet"
        return Finding("fail", found, required, why, measured=True, items=tuple(refused))
    return Finding("pass", ", ".join(sorted(set(files.values()))), required)


def quality(case: Case, gate: Gate) -> Finding:
    """Every threshold holds, on a metric that is within its bounds and counts enough units."""
    bounds, enough = gate.bounds("bounds"), gate.number("min_count")
    limits = [(key, "≥", limit) for key, limit in gate.numbers("at_least").items()]
    limits += [(key, "≤", limit) for key, limit in gate.numbers("at_most").items()]
    required = ", ".join(f"{key} {sign} {limit:g}" for key, sign, limit in limits)
    if not limits:
        return Finding("fail", "no threshold", "at least one threshold in the project's gates.yml")
    found, failures, measured = [], [], True
    for key, sign, limit in limits:
        split, metric = key.split(".")
        of = estimate(case.evidence.metrics, split, metric)
        found.append(f"{key} {shown(of.value)}")
        problem = unsound(of, bounds.get(metric), enough)
        value = of.value
        if problem:
            failures.append(f"{key} {problem}")
            measured = False
        elif value is None or not (value >= limit if sign == "≥" else value <= limit):
            failures.append(f"{key} misses {limit:g}")
    why = "; ".join(failures)
    return Finding("fail" if failures else "pass", ", ".join(found), required, why, measured)


def latency(case: Case, gate: Gate) -> Finding:
    """The 95th percentile on the served path is under the objective, on hardware that is named."""
    of, limit, enough = case.evidence.latency, gate.number("p95_ms"), gate.number("min_requests")
    required = f"p95 ≤ {limit:g} ms over at least {enough:g} requests, hardware named"
    p50, p95, p99 = real(of.p50_ms), real(of.p95_ms), real(of.p99_ms)
    found = f"p95 {shown(of.p95_ms)} ms on {of.hardware or 'unnamed hardware'}"
    if of.hardware is None or of.instance_type is None:
        return Finding("fail", found, required, "the hardware is not named")
    if not 0 < p50 <= p95 <= p99 <= MOST:
        return Finding("fail", found, required, "the percentiles are missing or out of order")
    if not enough <= real(of.requests) <= MOST:
        return Finding("fail", found, required, f"{shown(of.requests)} requests")
    if not 1 <= real(of.warm_up) <= MOST:
        return Finding("fail", found, required, "nothing was asked before it was measured")
    if not p95 <= limit:
        return Finding("fail", found, required, "too slow", measured=True)
    if of.hardware == of.instance_type:
        return Finding("pass", found, required)
    other = (
        f"not on the deployment's {of.instance_type}; a machine of that type says so by "
        "MLOPS_INSTANCE_TYPE when the version is proposed there"
    )
    if case.request.environment in gate.names("other_hardware_allowed_in"):
        return Finding("pass", found, required, other)
    return Finding("fail", found, required, other, measured=True)


def sign_off(case: Case, gate: Gate) -> Finding:
    """Somebody stands for the promotion: outstanding when it is proposed, required to apply it."""
    name = case.request.approved_by.strip()
    if name:
        return Finding("pass", f"approved by {name}", "a name")
    if case.request.step == "propose":
        return Finding("pending", "nobody yet", "a name, when it is applied")
    return Finding("fail", "nobody", "a name", "nobody has approved it")


RULES: Mapping[str, Rule] = {
    "identity": identity,
    "freshness": freshness,
    "completeness": completeness,
    "recomputed": recomputed,
    "lineage": lineage,
    "format": model_format,
    "quality": quality,
    "gap": gap,
    "leakage": leakage,
    "first-promotion": first_promotion,
    "non-inferiority": non_inferiority,
    "superiority": superiority,
    "fairness": fairness,
    "explainability": explainability,
    "latency": latency,
    "supply-chain": supply_chain,
    "sign-off": sign_off,
}


def _short(text: str | None) -> str:
    return "nothing" if text is None else text.removeprefix("sha256:")[:12]
