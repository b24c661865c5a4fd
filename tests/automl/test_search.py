"""A search as a job of this machine: killed, resumed, and what is shown of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.automl.conftest import SPEC, people, write
from tests.conftest import ROOT

MORE = """\
n_cross_validations: 2
test_data_size: 0.25
limits: {max_trials: 4, max_concurrent_trials: 1}
training: {allowed_training_algorithms: [light_gbm, logistic_regression]}
"""
ML = str(ROOT / ".venv/bin/ml")


def ml(*words: str, at: Path) -> str:
    done = subprocess.run([ML, *words], cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def board(at: Path, run: str = "latest") -> Any:
    return json.loads(ml("sweep", "leaderboard", run, "--json", at=at))


@pytest.mark.slow
@pytest.mark.attack("the machine of a search goes off while a trial runs")
def test_a_search_that_is_killed_ends_as_one_that_is_not(tmp_path: Path, own_home: Path) -> None:
    """The same trials with the same scores, and the same ensemble of them."""
    write(tmp_path / "table", people(120))
    text = SPEC.format(task="classification", metric="auc_weighted", target="churn", more=MORE)
    (tmp_path / "search.yml").write_text(text)
    ml("run", "search.yml", at=tmp_path)
    whole = board(tmp_path)
    jobs = own_home / "jobs"
    (first,) = (path for path in jobs.iterdir() if path.is_dir())
    started = subprocess.Popen(
        [ML, "run", "search.yml"], cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    # The second trial has begun to write.
    while not (of := [log for log in jobs.glob("*/trials/1/logs/*") if first not in log.parents]):
        assert started.poll() is None
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    name = of[0].relative_to(jobs).parts[0]
    ml("runs", "resume", name, at=tmp_path)
    resumed = board(tmp_path, name)

    def scores(of: Any) -> list[tuple[str, float]]:
        return [(trial["family"], trial["value"]) for trial in of["trials"]]

    assert scores(resumed) == scores(whole)
    assert "voting_ensemble" in dict(scores(whole)) and len(scores(whole)) == 4
    assert resumed["search"]["test"] == whole["search"]["test"]
    shown = subprocess.run(
        [ML, "sweep", "leaderboard", name], cwd=tmp_path, capture_output=True, text=True
    )
    assert (
        "test rows; validation score: " in shown.stderr
        and "column city: a category" in shown.stderr
    )
    said = ml("sweep", "explain", name, at=tmp_path)
    assert "of the portfolio" in said and "ensemble" in said
