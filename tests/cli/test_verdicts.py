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
    verdicts.show(decision)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= width and "│" not in "".join(lines)
    assert lines[0] == "tiny 7 → local, against champion 3"
    begun = [line for line in lines if line.startswith(tuple(verdicts.STYLES))]
    assert [line[11:].split()[0] for line in begun] == [one.gate for one in decision.results]
    at = next(number for number, line in enumerate(lines) if "superiority" in line)
    assert lines[at + 1].split()[0] == "required:"
    assert any("because: not shown to be better" in line for line in lines[at + 1 : at + 4])
    quality = next(line for line in lines if "quality" in line)
    assert quality.endswith("test.gain_at_1 0.8  (test.gain_at_1 ≥ 0.6)")
    assert "refused: tiny 7 does not go to local" in " ".join(lines[-3:])


def test_what_waits_is_no_champion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The version that had to be beaten is named as what it is."""
    verdicts.show(cases.judged(tmp_path, cases.good(), cases.champion()), "3")
    assert "against version 3, which is declared and waits" in capsys.readouterr().err
