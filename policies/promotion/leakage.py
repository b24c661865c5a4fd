"""The gate on what gives the answers away, as the evaluation looked for it."""

from __future__ import annotations

from collections.abc import Collection

from policies.promotion.comparison import VALIDATION
from policies.promotion.gates import Gate
from policies.promotion.judging import Case, Finding, real, shown

# The check whose figures are counted again from identifiers that are kept.
SHARED = "identifiers.shared"
_HINT = "the evaluation writes what `ml.toolkit.leakage` finds under `leakage`"


def leakage(case: Case, gate: Gate) -> Finding:
    """Every check that is asked for was made, and none found more than its bound.

    A check of which gates.yml states no bound is not judged, hence a fail; so is one over no rows.
    What training and test share is over every row of the splits that are promoted on, and follows
    from identifiers kept with the evidence: `recomputed` says whether it does. No row of those
    splits is in validation too, which hyperparameters are chosen on.
    """
    limits, asked = gate.numbers("at_most"), gate.names("checks")
    bounds = [f"{name} ≤ {limit:g}" for name, limit in limits.items()]
    required = ", ".join([*bounds, f"no row of {VALIDATION}"])
    made = case.evidence.leakage
    absent = [name for name in asked if name not in {one.check for one in made}]
    if not made or absent:
        found = f"not measured: {', '.join(absent) or 'nothing'}"
        return Finding("fail", found, required, _HINT)
    measured = sum(map(len, _units(case).values()))
    problems, leaks = [], []
    for one in made:
        name = f"{one.check} {one.of}"
        if one.check is None or one.check not in limits:
            problems.append(f"{name} has no bound in gates.yml")
        elif one.of is None or not real(one.units) >= 1 or not real(one.value) >= 0:
            problems.append(f"{name} is missing or out of bounds")
        elif one.check == SHARED and case.evidence.identifiers is None:
            again = "`ml release propose PROJECT --run RUN` measures it anew"
            problems.append(f"the identifiers behind {name} are not kept: {again}")
        elif one.check == SHARED and not real(one.units) >= measured:
            problems.append(f"{name} is over {shown(one.units)} of {measured} rows of the test")
        elif not real(one.value) <= limits[one.check]:
            leaks.append(name)
    found = ", ".join(f"{one.check} {one.of} {shown(one.value)}" for one in made)
    chosen_on = _chosen_on(case)
    if problems:
        return Finding("fail", found, required, "; ".join(problems))
    if leaks or chosen_on:
        words = [one.found for one in made if one.found and f"{one.check} {one.of}" in leaks]
        words += chosen_on.values()
        leaks += chosen_on
        return Finding("fail", found, required, "; ".join(words), True, tuple(leaks))
    return Finding("pass", found, required)


def _units(case: Case) -> dict[str, Collection[str]]:
    """The units of the splits that are promoted on."""
    splits = case.gates["non-inferiority"].names("splits")
    return {split: case.evidence.outcomes.get(split, {}).keys() for split in splits}


def _chosen_on(case: Case) -> dict[str, str]:
    """What is to be waived, and in words, of each of those splits that shares rows with
    validation.
    """
    validation = case.evidence.outcomes.get(VALIDATION, {}).keys()
    found = {}
    for split, units in _units(case).items():
        if both := len(validation & set(units)):
            told = f"{both} of {len(units)} rows of {split} are in {VALIDATION} too"
            found[f"{VALIDATION}.shared {split}"] = f"{told}, which the model was chosen on"
    return found
