"""The gate on what a model was made with: locked, licensed, and without a known vulnerability."""

from __future__ import annotations

from datetime import timedelta

from policies.promotion.evidence import SupplyChain
from policies.promotion.gates import Gate
from policies.promotion.judging import Case, Finding
from policies.supply_chain.licences import allowed

# Two clocks may differ by this much, and a record may be dated the day that it is handed out.
SKEW = timedelta(days=1)
# As many are named; the evidence has them all.
NAMED = 5


def supply_chain(case: Case, gate: Gate) -> Finding:
    """Every package is the locked one, its licence is allowed, no advisory of a recent source
    affects one. Advisories that are missing or old are said, and allowed, in some environments.
    """
    of, limit = case.evidence.supply_chain, gate.number("max_advisory_age_days")
    required = f"locked packages, allowed licences, no advisory as of {limit:g} days ago or later"
    found = f"{len(of.packages)} packages"
    if problem := _incomplete(of):
        return Finding("fail", found, required, problem)
    licences, reviewed = gate.names("licences"), gate.names("reviewed")
    items = [
        f"{name} is {package.licence}"
        for name, package in of.packages.items()
        if name not in reviewed and not allowed(package.licence or "", licences)
    ]
    unchecked = _unchecked(case, limit)
    refused = [*items, *(of.advisories or ())]
    # One advisory may be about two packages: its id is what is waived.
    items += dict.fromkeys(one.partition(":")[0] for one in of.advisories or ())
    excused = case.request.environment in gate.names("unchecked_allowed_in")
    if unchecked and not excused:
        return Finding("fail", found, required, "; ".join([unchecked, *refused[:NAMED]]))
    if refused:
        more = f" and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
        why = "; ".join(refused[:NAMED]) + more
        return Finding("fail", found, required, why, measured=True, items=tuple(items))
    return Finding("pass", found, required, unchecked)


def _incomplete(of: SupplyChain) -> str:
    """What is missing without which nothing can be judged, or ""."""
    if not of.packages:
        return "no package was looked at"
    if of.sbom is None:
        return "no bill of materials"
    for name, package in of.packages.items():
        if package.locked is None or package.installed != package.locked:
            there = package.installed or "missing"
            return f"{name} is locked at {package.locked or 'nothing'} and {there} here"
        if package.licence is None:
            return f"nobody looked for the licence of {name}"
    if (of.as_of is None) != (of.advisories is None):
        return "advisories without a date, or a date without advisories"
    return ""


def _unchecked(case: Case, limit: float) -> str:
    """Why the advisories say nothing of today, or ""."""
    as_of = case.evidence.supply_chain.as_of
    if as_of is None:
        return "advisories not checked: `MLOPS_ADVISORIES` names no copy of OSV's"
    age = case.request.now - as_of
    if age < -SKEW:
        return f"advisories from the future: {as_of.date()}"
    if age > timedelta(days=limit):
        return f"advisories are {age / timedelta(days=1):.0f} days old"
    return ""
