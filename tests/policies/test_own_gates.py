"""A fork's own gate can block a promotion and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from policies.promotion.decision import Case, Finding
from policies.promotion.engine import RULES, _plug_in_rule, decide
from policies.promotion.gate import Gate
from policies.promotion.gate_settings import load
from tests.policies.cases import PROJECT, REQUEST, good, result

Judge = Callable[[Case, Gate], Any]


def decided(judge: Judge, tmp_path: Any) -> Any:
    """The decision about evidence that passes every other gate."""
    file = tmp_path / "gates.yml"
    file.write_text(PROJECT)
    gates = {**load(file), "own": Gate("own", "enabled", {})}
    return decide(gates, good(), None, REQUEST, {**RULES, "own": _plug_in_rule(judge)})


@pytest.mark.parametrize("verdict", ["pass", "not evaluated"])
def test_a_verdict_that_blocks_nothing(verdict: Any, tmp_path: Any) -> None:
    decision = decided(lambda case, gate: Finding(verdict, "a", "b"), tmp_path)
    assert decision.allowed and result(decision, "own").verdict == verdict


def _changes_the_case(case: Case, gate: Gate) -> Finding:
    case.gates["quality"].settings["at_least"].clear()  # type: ignore[attr-defined]
    case.differences["forged"] = 1
    return Finding("fail", "a", "b")


@pytest.mark.attack("A plug-in loosens the gates of the framework, or approves in their place")
@pytest.mark.parametrize(
    "judge",
    [
        lambda case, gate: Finding("fail", "a", "b"),
        lambda case, gate: Finding("waived", "a", "b"),
        lambda case, gate: Finding("approved", "a", "b"),  # type: ignore[arg-type]
        lambda case, gate: True,
        lambda case, gate: None,
        lambda case, gate: 1 / 0,
        lambda case, gate: sys.exit(0),
        _changes_the_case,
    ],
    ids=["fails", "waives", "another", "true", "none", "raises", "exits", "changes"],
)
def test_anything_else_blocks(judge: Judge, tmp_path: Any) -> None:
    decision = decided(judge, tmp_path)
    assert [each.gate for each in decision.blocking] == ["own"]
    assert decision.outcome == "rejected"


def test_a_gate_that_raises_names_its_line(tmp_path: Any) -> None:
    """As the rules of specs and of infrastructure do."""
    file = tmp_path / "policies/own/mine.py"
    file.parent.mkdir(parents=True)
    file.write_text("def judge(case, gate):\n    return case.nope\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    found = result(decided(names["judge"], tmp_path), "own")
    assert "'Case' object has no attribute 'nope'" in found.actual
    assert found.actual.endswith("policies/own/mine.py:2)")
