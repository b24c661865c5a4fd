"""Each gate with its data file of allowed and refused cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.promotion.engine import RULES
from policies.promotion.gate_settings import SETTINGS
from tests.policies.cases import result
from tests.policies.gate_cases import GateCase, gate_cases

CASES = list(gate_cases())


def _parameters(kind: str) -> list[object]:
    return [
        pytest.param(case, id=f"{case.gate}: {case.name}") for case in CASES if case.kind == kind
    ]


@pytest.mark.parametrize("case", _parameters("allowed"))
def test_a_gate_allows(case: GateCase, tmp_path: Path) -> None:
    """An allowed case passes the gate."""
    found = result(case.decide(tmp_path), case.gate)
    assert found.verdict == case.change.get("verdict", "pass"), found
    words = f"{found.actual} {found.why} {' '.join(found.warnings)}"
    contains = case.change.get("contains", "")
    assert all(part in words for part in ([contains] if isinstance(contains, str) else contains))


@pytest.mark.parametrize("case", _parameters("refused"))
def test_a_gate_refuses(case: GateCase, tmp_path: Path) -> None:
    """A refused case fails the gate and the decision, with what was found and required."""
    decision = case.decide(tmp_path)
    found = result(decision, case.gate)
    assert found.verdict == "fail" and found in decision.blocking, found
    assert found.required and found.actual
    words = f"{found.actual} {found.why} {' '.join(found.warnings)}"
    assert case.change.get("contains", "") in words
    assert decision.outcome == "rejected" and not decision.allowed


def test_every_gate_has_an_allowed_and_a_refused_case() -> None:
    """No gate is without a rule, settings, an allowed case and a refused case."""
    kinds = {(case.gate, case.kind) for case in CASES}
    assert kinds == {(gate, kind) for gate in SETTINGS for kind in ("allowed", "refused")}
    assert RULES.keys() == SETTINGS.keys()
