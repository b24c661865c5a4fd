"""The gates as a person reads them, at the widths of a terminal and of a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.cli.render import release_text
from tests.policies import cases


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_gate_that_passes_takes_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
    snapshot: SnapshotAssertion,
) -> None:
    """Of another it is said what it requires and why; no line is wider than the screen. What failed
    is first.
    """
    monkeypatch.setattr(release_text, "LOG_WIDTH", width)
    slow = replace(cases.good(), latency=replace(cases.good().latency, hardware="a machine " * 9))
    decision = cases.judged(tmp_path, slow, cases.champion(0.9))
    release_text.show_decision(decision, every=True)
    text = capsys.readouterr().err
    assert text == snapshot
    assert max(map(len, text.splitlines())) <= width
    begun = [
        line for line in text.splitlines() if line.startswith(tuple(release_text.VERDICT_STYLES))
    ]
    assert len(begun) == len(decision.results)


def test_gates_that_pass_are_named_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    """What failed is first; only it has a reason."""
    monkeypatch.setattr(release_text, "LOG_WIDTH", 300)
    release_text.show_decision(cases.judged(tmp_path, cases.good(0.5), cases.champion(0.9)))
    assert capsys.readouterr().err == snapshot


def test_what_waits_is_no_champion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The version that had to be beaten is named as what it is."""
    release_text.show_decision(cases.judged(tmp_path, cases.good(), cases.champion()), "3")
    assert "against version 3, which is declared and not yet applied" in capsys.readouterr().err


def test_a_warning_is_shown_until_its_owner_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a line of its own, blocks nothing, and a waiver of another check accepts it not."""
    shared, words = cases.good().evaluation.leakage
    checks = (shared, replace(words, value=0.93))
    warned = cases.evaluated(cases.good(), leakage=checks)
    waiver = "{gate: leakage, item: feature.auc %s, owner: ana, expires: 2025-06-30, reason: known}"
    for item, is_shown in (("length", True), ("words", False)):
        text = f"{cases.PROJECT}waivers: [{waiver % item}]\n"
        decision = cases.judged(tmp_path, warned, cases.champion(), text=text)
        release_text.show_decision(decision)
        told = " ".join(capsys.readouterr().err.split())
        assert decision.outcome == "pending" and ("with warnings: leakage" in told) is is_shown
        sentence = "warn leakage warning: feature.auc words is 0.93 (warning limit 0.9)"
        assert (sentence in told) is is_shown
        waived = [each["owner"] for each in cases.result(decision, "leakage").waivers]
        assert waived == ([] if is_shown else ["ana"])
