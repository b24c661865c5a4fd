"""What serves, by a changed policy: `ml gate --released` trains, records and changes nothing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.release import audit
from ml.release.promotion import gate_check
from policies.promotion import engine, gate_settings
from tests.conftest import ROOT
from tests.local import BACKEND, LOG
from tests.release.conftest import World
from tests.release.test_commands import ml


def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The organisation policy with that change."""
    text = (ROOT / "policies/promotion/gates.yml").read_text()
    assert old in text
    file = tmp_path / "gates.yml"
    file.write_text(text.replace(old, new))
    monkeypatch.setattr(gate_check, "load", partial(gate_settings.load, policy=file))


@pytest.mark.slow
def test_a_changed_policy_evaluates_what_serves(
    served: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A model of 0.8 passes until all projects have to reach 0.9 on the test split."""
    state = len([*LocalRuns().all()]), audit.verify(LOG), endpoint.live("tiny")
    code, out, err = ml(capsys, "gate", "--released")
    assert (code, out, err) == (0, "✔ tiny 1 in local: passes\n", "")
    policy(tmp_path, monkeypatch, "    at_least: {}", "    at_least: {test.gain_at_1: 0.9}")
    code, out, _ = ml(capsys, "gate", "--released")
    assert code == 3 and out.startswith("? tiny in local: error[gate-looser-than-policy]")
    assert "projects/tiny/gates.yml:4" in out
    policy(tmp_path, monkeypatch, "    at_least: {}", "    at_least: {validation.gain_at_1: 0.9}")
    code, out, _ = ml(capsys, "gate", "--released")
    assert code == 3 and out.startswith("✘ tiny 1 in local: would be rejected\n    quality: ")
    assert "validation" in out and "0.9" in out
    code, out, _ = ml(capsys, "gate", "--released", "--json")
    (result,) = json.loads(out)
    assert code == 3 and (result["project"], result["error"]) == ("tiny", "")
    decision = result["decision"]
    assert (decision["outcome"], decision["request"]["version"]) == ("rejected", "1")
    assert {"freshness", "non-inferiority", "sign-off"}.isdisjoint(
        {row["gate"] for row in decision["results"]}
    )
    assert (len([*LocalRuns().all()]), audit.verify(LOG), endpoint.live("tiny")) == state


@pytest.mark.slow
def test_a_list_that_was_narrowed_rejects_the_champion_too(
    served: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A way back to it is allowed; what the changed policy says of it is to be seen."""
    policy(tmp_path, monkeypatch, "json, npz, onnx", "npz, onnx")
    code, out, _ = ml(capsys, "gate", "--released")
    assert code == 3 and "    format: " in out
    assert [*gate_check.check_released(BACKEND, "dev")] == []


@pytest.mark.parametrize(
    "words", [("gate",), ("gate", "tiny"), ("gate", "tiny", "1", "--released")]
)
def test_a_version_or_what_serves(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ml(capsys, *words)
    assert code == 2 and "no-version" in err and "ml gate --released" in err


def test_only_gates_of_a_promotion_are_left_out() -> None:
    """A new gate judges what serves."""
    left_out = {*engine.RULES} - {*engine.RELEASED_RULES}
    assert left_out == {
        *("freshness", "first-promotion", "non-inferiority", "superiority", "order", "sign-off")
    }
