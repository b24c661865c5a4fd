"""The gates as a person reads them, at the widths of a terminal and of a log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ml.cli.render import verdicts
from tests.policies import cases


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_gate_that_passes_takes_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
) -> None:
    """Of another it is said what it requires and why; no line is wider than the screen."""
    monkeypatch.setattr(verdicts, "LOG_WIDTH", width)
    slow = replace(cases.good(), latency=replace(cases.good().latency, hardware="a machine " * 9))
    decision = cases.judged(tmp_path, slow, cases.champion(0.9))
    verdicts.show(decision, every=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= width and "│" not in "".join(lines)
    assert lines[0] == "tiny 7 → local, against champion 3"
    begun = [line for line in lines if line.startswith(tuple(verdicts.STYLES))]
    by_gate = {one.gate: one.verdict for one in decision.results}
    names = [line[15:].split()[0] for line in begun]
    assert sorted(names) == sorted(by_gate) and by_gate[names[0]] == "fail"
    order = [list(verdicts.STYLES).index(by_gate[name]) for name in names]
    assert order == sorted(order)
    at = next(number for number, line in enumerate(lines) if "superiority" in line)
    below = " ".join(" ".join(lines[at + 1 : at + 8]).split())
    assert "required: gain_at_1 on test better than the champion's" in below
    assert "because: not shown to be better" in below.partition("required: ")[2]
    quality = next(line for line in lines if "quality" in line)
    required = "  (gain_at_1 on test ≥ 0.6)" if width > 80 else ""
    assert quality.endswith(f"gain_at_1 on test is 0.8{required}")
    assert "rejected: tiny 7 does not go to local" in " ".join(lines[-3:])


def test_gates_that_pass_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed is first; only it has a reason."""
    monkeypatch.setattr(verdicts, "LOG_WIDTH", 300)
    decision = cases.judged(tmp_path, cases.good(0.5), cases.champion(0.9))
    verdicts.show(decision)
    _, *lines = capsys.readouterr().err.splitlines()
    failed = [one.gate for one in decision.results if one.verdict == "fail"]
    passed = [one.gate for one in decision.results if one.verdict == "pass"]
    begun = [line for line in lines if line.startswith(tuple(verdicts.STYLES))]
    assert [line.split()[1] for line in begun[: len(failed)]] == failed
    assert [line.split()[0] for line in begun[len(failed) :]] == ["pending", "pass", "not"]
    assert begun[-2].split(maxsplit=3) == ["pass", f"{len(passed)}", "gates", ", ".join(passed)]
    skipped = [one.gate for one in decision.results if one.verdict == "not evaluated"]
    assert begun[-1].split(maxsplit=4) == ["not", "evaluated", "4", "gates", ", ".join(skipped)]
    assert "gain_at_1 on test is 0.4000 worse than the champion's" in " ".join(lines)


def test_what_waits_is_no_champion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The version that had to be beaten is named as what it is."""
    verdicts.show(cases.judged(tmp_path, cases.good(), cases.champion()), "3")
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
        verdicts.show(decision)
        told = " ".join(capsys.readouterr().err.split())
        assert decision.outcome == "pending" and ("with warnings: leakage" in told) is is_shown
        sentence = "warn leakage warning: feature.auc words is 0.93 (warning limit 0.9)"
        assert (sentence in told) is is_shown
        waived = [each["owner"] for each in cases.result(decision, "leakage").waivers]
        assert waived == ([] if is_shown else ["ana"])
