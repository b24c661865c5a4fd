"""The decision: a pure function of the gates, the evidence and the champion's evidence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

from ml.core import plug_ins
from policies.promotion import champion_gates, measurements, provenance
from policies.promotion.decision import (
    PROPERTIES,
    Case,
    Decision,
    Finding,
    Outcome,
    Request,
    Result,
    Rule,
)
from policies.promotion.evidence import Evidence
from policies.promotion.gate import Gate, Gates
from policies.promotion.gate_settings import COMPARING, OWN_GATES
from policies.waivers import GateWaiver


def _plug_in_rule(rule: Rule) -> Rule:
    """Wrap a plug-in's rule: pass it copies, and raise TypeError unless it returns a Finding."""

    def judge(case: Case, gate: Gate) -> Finding:
        with plug_ins.guarded():
            finding = rule(copy.deepcopy(case), copy.deepcopy(gate))
        if not isinstance(finding, Finding) or finding.verdict not in _OWN_VERDICTS:
            raise TypeError(f"the plug-in returned {finding!r}, not a Finding that passes or fails")
        return finding

    return judge


_OWN_VERDICTS = ("pass", "fail", "not evaluated")
RULES: Mapping[str, Rule] = {
    "identity": provenance.identity,
    "attestation": provenance.attestation,
    "freshness": provenance.freshness,
    "completeness": provenance.completeness,
    "verified-metrics": provenance.verified_metrics,
    "lineage": provenance.lineage,
    "format": provenance.model_format,
    "quality": measurements.quality,
    "gap": measurements.gap,
    "leakage": measurements.leakage,
    "first-promotion": champion_gates.first_promotion,
    "non-inferiority": champion_gates.non_inferiority,
    "superiority": champion_gates.superiority,
    "forecasting": measurements.forecasting,
    "fairness": measurements.fairness,
    "explainability": measurements.explainability,
    "serving": measurements.serving,
    "latency": measurements.latency,
    "supply-chain": provenance.supply_chain,
    "order": provenance.order,
    "sign-off": provenance.sign_off,
    **{name: _plug_in_rule(gate.rule) for name, gate in OWN_GATES.items()},
}
# The gates that block a rollback. The version passed the others when it was promoted; today they
# only report.
ROLLBACK_GATES = frozenset({*PROPERTIES, "attestation", "order", "sign-off"})

# Rules on an evaluation's measurements, applied to a run's model before it is registered.
EVALUATION_RULES = {
    name: RULES[name]
    for name in (
        *("verified-metrics", "quality", "gap", "leakage", "first-promotion", "non-inferiority"),
        *("superiority", "forecasting", "fairness", "explainability"),
    )
}
# Rules on the version itself, for released versions; the others apply only to a promotion.
RELEASED_RULES = {
    name: rule
    for name, rule in RULES.items()
    if name not in ("freshness", "first-promotion", *COMPARING, "order", "sign-off")
}
# Rules that need no evaluation; they run on a run's model before it is evaluated.
RUN_RULES: Mapping[str, Rule] = {
    "lineage": provenance.lineage_before_evaluation,
    "format": provenance.model_format,
    "supply-chain": provenance.supply_chain,
}


def decide(
    gates: Gates,
    evidence: Evidence,
    champion: Evidence | None,
    request: Request,
    rules: Mapping[str, Rule] = RULES,
) -> Decision:
    """Evaluate the gates for a model version and return the decision.

    `champion` is None before the first promotion. If a champion could not be scored, pass an empty
    Evidence(): the comparison then fails. Proposing the champion again gives "already-champion"
    whatever the gates find, unless its serving code or settings change.
    """
    case = Case(request, evidence, champion, gates)
    results = tuple(_judge(case, gates[name], rule) for name, rule in rules.items())
    return Decision(
        request=request,
        outcome=_outcome(case, results),
        results=results,
        champion=None if champion is None else champion.version or "unknown",
    )


def _outcome(case: Case, results: tuple[Result, ...]) -> Outcome:
    if case.is_champion and not case.only_serving_changes:
        return "already-champion"
    if any(result.blocks for result in results):
        return "rejected"
    pending = any(result.verdict == "pending" and result.mode == "enabled" for result in results)
    return "pending" if pending else "approved"


def _judge(case: Case, gate: Gate, rule: Rule) -> Result:
    if gate.mode == "disabled":
        return Result(gate.name, "not evaluated", gate.mode, "", "", "disabled in gates.yml")
    try:
        finding = rule(case, gate)
    except Exception as error:  # evidence that breaks a rule must not pass
        place = plug_ins.failure(error, gate.name).place
        where = f" ({place})" if place else ""
        finding = Finding("fail", f"{type(error).__name__}: {error}{where}", "", "the gate failed")
    result = Result(
        gate.name, finding.verdict, gate.mode, finding.actual, finding.required, finding.why
    )
    if result.blocks and case.request.served_before and gate.name not in ROLLBACK_GATES:
        why = "; ".join([*filter(None, [result.why]), "shown only: it served here before"])
        result = replace(result, mode="report-only", why=why)
    elif result.blocks:
        result = _apply_waivers(case, gate, result, finding)
    return _accept_warnings(case, gate, result, finding)


def _accept_warnings(case: Case, gate: Gate, result: Result, finding: Finding) -> Result:
    """Move the warnings that a waiver accepts from the result's warnings to its waivers."""
    usable, notes = [], [result.why]
    for waiver in gate.waivers if finding.warnings else ():
        problem = waiver.unusable(case.request.day, case.request.version)
        if waiver.item in finding.warnings and not problem:
            usable.append(waiver)
        elif waiver.item in finding.warnings:
            notes.append(problem)
        elif waiver.item not in finding.items:
            notes.append(f"a waiver names `{waiver.item}`, which this gate does not list")
    accepted = {waiver.item for waiver in usable}
    why = "; ".join(filter(None, [*notes, *map(str, usable)]))
    warnings = tuple(warning for item, warning in finding.warnings.items() if item not in accepted)
    waivers = (*result.waivers, *(waiver.to_json() for waiver in usable))
    return replace(result, why=why, waivers=waivers, warnings=warnings)


def _apply_waivers(case: Case, gate: Gate, result: Result, finding: Finding) -> Result:
    """Return the result as waived if the gate's waivers cover every failure; otherwise with the
    reasons why they do not.
    """
    request = case.request
    notes = [result.why] if result.why else []
    used: list[GateWaiver] = []
    uncovered = list(finding.items) or [""]
    for waiver in gate.waivers:
        missing = f"the waiver at {waiver.place} does not cover gates that could not be evaluated"
        unusable = waiver.unusable(request.day, request.version)
        if unusable := unusable or ("" if finding.measured else missing):
            notes.append(unusable)
        elif waiver.item in uncovered:
            uncovered.remove(waiver.item)
            used.append(waiver)
    why = "; ".join([*notes, *map(str, used)])
    if used and not uncovered:
        entries = tuple(waiver.to_json() for waiver in used)
        return replace(result, verdict="waived", why=why, waivers=entries)
    return replace(result, why=why)
