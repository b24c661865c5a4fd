"""The decision: a pure function of the gates, the evidence and the champion's evidence."""

from __future__ import annotations

from dataclasses import replace

from policies.promotion.decision import ITSELF, Decision, Outcome, Request, Result
from policies.promotion.evidence import Evidence
from policies.promotion.gates import Gate, Gates
from policies.promotion.judging import Case, Finding
from policies.promotion.rules import RULES
from policies.promotion.waivers import Waiver

# What a version that served before must still be: itself, safe to load, and somebody's word. The
# other gates let it pass when it was promoted; what they find today is shown and holds nobody up.
ASKED_ON_THE_WAY_BACK = frozenset({*ITSELF, "sign-off"})


def decide(
    gates: Gates, evidence: Evidence, champion: Evidence | None, request: Request
) -> Decision:
    """Whether the model version may be promoted; `champion` is None before the first promotion.

    Evidence of a champion that exists but could not be scored is an empty Evidence(), never None:
    the comparison then fails. The champion proposed again is "already-champion", whatever the gates
    would say of it, because nothing would change.
    """
    case = Case(request, evidence, champion, gates)
    results = tuple(_judged(case, gates[name]) for name in RULES)
    return Decision(
        request=request,
        outcome=_outcome(case, results),
        results=results,
        champion=None if champion is None else champion.version or "unknown",
    )


def _outcome(case: Case, results: tuple[Result, ...]) -> Outcome:
    if case.champion is not None and case.champion.digest == case.request.digest:
        return "already-champion"
    if any(result.blocks for result in results):
        return "refused"
    waiting = any(result.verdict == "pending" and result.mode == "enabled" for result in results)
    return "pending" if waiting else "approved"


def _judged(case: Case, gate: Gate) -> Result:
    if gate.mode == "disabled":
        return Result(gate.name, "not asked", gate.mode, "", "", "disabled in gates.yml")
    try:
        finding = RULES[gate.name](case, gate)
    except Exception as error:  # evidence so odd that a rule breaks on it must not slip through
        finding = Finding("fail", f"{type(error).__name__}: {error}", "", "it cannot be judged")
    result = Result(
        gate.name, finding.verdict, gate.mode, finding.found, finding.required, finding.why
    )
    if result.blocks and case.request.served_before and gate.name not in ASKED_ON_THE_WAY_BACK:
        why = "; ".join([*filter(None, [result.why]), "shown only: it served here before"])
        return replace(result, mode="report-only", why=why)
    return _waived(case, gate, result, finding) if result.blocks else result


def _waived(case: Case, gate: Gate, result: Result, finding: Finding) -> Result:
    """The result under the gate's waivers: set aside when those that hold cover all that fails, or
    told why not.
    """
    notes = [result.why] if result.why else []
    used: list[Waiver] = []
    left = list(finding.items) or [""]
    for waiver in gate.waivers:
        unfit = f"the waiver at {waiver.place} does not cover what could not be judged"
        void = waiver.void(case.request) or ("" if finding.measured else unfit)
        if void:
            notes.append(void)
        elif waiver.item in left:
            left.remove(waiver.item)
            used.append(waiver)
    why = "; ".join([*notes, *map(str, used)])
    if used and not left:
        said = tuple(waiver.to_json() for waiver in used)
        return replace(result, verdict="waived", why=why, waivers=said)
    return replace(result, why=why)
