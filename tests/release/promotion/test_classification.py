"""A project of another task goes the same way: proposed, gated, served, compared, replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.measures.metrics import BINARY
from ml.release.declaration import desired_state
from ml.release.evidence.verification import checks
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from tests.local import BACKEND
from tests.release import tiny_classes
from tests.release.test_commands import ml


@pytest.mark.slow
def test_a_classification_from_propose_to_the_next_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thresholds on the AUC and the log loss, paired by the log loss, a slice and a canary."""
    project = tiny_classes.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    weak, fair, good = (project.train(skill).name for skill in (0.02, 0.3, 0.8))
    try:
        refused = propose(BACKEND, "tiny", weak)
        assert [one.gate for one in refused.decision.blocking] == ["quality"]
        assert "log_loss on test misses 0.55" in str(refused.decision.blocking)
        made = propose(BACKEND, "tiny", fair)
        assert made.decision.allowed, made.decision.blocking
        assert made.evidence.evaluation.task == "binary" and made.evidence.mismatches == ()
        stated = made.evidence.evaluation.metrics["test"]
        assert stated.keys() == BINARY.keys()
        assert stated["auc"].low and stated["auc"].count == 500
        done = apply(BACKEND, "tiny", "local", "ana")
        assert done and done.outcome == "applied"
        assert 0 < float(str(ask(BACKEND, "tiny", {"amount": 90}).body["fraud"])) < 1

        better = propose(BACKEND, "tiny", good)
        gates = {one.gate: one for one in better.decision.results}
        assert better.decision.allowed, better.decision.blocking
        assert gates["superiority"].actual.startswith("log_loss on test is 0.")
        done = apply(BACKEND, "tiny", "local", "ana")
        assert done and done.canary and (done.outcome, done.replaced.version) == ("applied", "2")
        code, out, _ = ml(capsys, "compare", "tiny:3", "tiny:2", "--format", "md")
        assert code == 0 and "brier" in out and "auc" in out

        worse = propose(BACKEND, "tiny", fair)
        assert {"non-inferiority", "superiority"} <= {one.gate for one in worse.decision.blocking}
        entry = desired_state.read(BACKEND, "tiny", "local")
        assert entry and entry.version == "3"
        third = BACKEND.registry.find("tiny", "3")
        assert all(check.sound for check in checks(third))
        path = third.evidence_folder / "predictions.csv"
        path.write_text(path.read_text().replace(",1,0,0,", ",1,1,0,", 1))
        assert {one.name for one in checks(third) if not one.sound} >= {
            "predictions.csv",
            "metrics",
        }
    finally:
        endpoint.stop("tiny")


@pytest.mark.slow
def test_a_test_that_was_trained_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split puts one row in both: its metrics are right, and of no use."""
    project = tiny_classes.make(tmp_path)
    reading = project.folder / "reading.py"
    also = 'or (split == "test" and row["id"] == "0")]'
    reading.write_text(reading.read_text().replace("== split]", f"== split {also}"))
    monkeypatch.chdir(tmp_path)
    made = propose(BACKEND, "tiny", project.train(0.8).name)
    assert {one.check for one in made.evidence.evaluation.leakage} == {
        *("feature.auc", "joint.auc", "model.auc"),
        "identifiers.shared",
    }
    assert [one.gate for one in made.decision.blocking] == ["leakage"]
    assert "1 of 501 by id were trained on: 0" in str(made.decision.blocking)


@pytest.mark.slow
def test_shuffled_labels_end_near_a_half_and_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be learnt from them: an AUC that is far from 0.5 would have leaked."""
    project = tiny_classes.make(tmp_path)
    reading = project.folder / "reading.py"
    code, labels = reading.read_text(), 'labels = [int(row["fraud"]) for row in found]'
    assert labels in code
    dealt = labels.replace("[", "numpy.random.default_rng(0).permutation([", 1) + ")"
    reading.write_text(code.replace(labels, dealt))
    monkeypatch.chdir(tmp_path)
    made = propose(BACKEND, "tiny", project.train(0.8).name)
    auc = made.evidence.evaluation.metrics["test"]["auc"].value
    assert auc is not None and abs(auc - 0.5) < 0.1
    gates = {one.gate: one for one in made.decision.results}
    assert gates["quality"].verdict == "fail" and made.decision.outcome == "rejected"
    assert gates["leakage"].verdict == "pass"
