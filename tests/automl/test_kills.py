"""A search that is killed at random moments ends with the leaderboard of one never killed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.core import home as homes
from ml.reports import explanation
from ml.reports.leaderboard import leaderboard
from ml.specs.plan.plans import AutoMLPlan
from tests.automl.conftest import people, write
from tests.backends.executors import begin, go_on, kill, only, settled, start

Plans = Callable[..., AutoMLPlan]
# The longest time before one is in seconds. What `make test` kills is in test_search.py.
KILLS, LONGEST = 20, 5.0
MORE = """\
training: {allowed_training_algorithms: [light_gbm, logistic_regression, decision_tree]}
limits: {max_trials: 6, max_concurrent_trials: 1}
n_cross_validations: 2
test_data_size: 0.2
"""


def board() -> tuple[object, ...]:
    """What a leaderboard says besides times: every trial, its score and spread, the final score."""
    run, store = only(), LocalRuns()
    assert run.status == "Completed", run.error
    written = leaderboard(run, explanation.explain(run, store).sweep)
    entries = [
        (of.trial.sample_number, of.family, of.value, of.spread, of.origin, of.trial.values)
        for of in written.entries
    ]
    return entries, written.facts


@pytest.mark.slow
@pytest.mark.torture(only=True)
@pytest.mark.attack("an AutoML job is killed at random moments")
def test_a_search_that_is_killed_has_the_leaderboard_of_one_that_is_not(
    home: Path, plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number of trials, without a limit of time, one trial at a time."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write(tmp_path / "table", people(160))
    search = plan(MORE)
    LocalBackend().run(search)
    expected = board()
    assert len(expected[0]) == 6  # type: ignore[arg-type]
    shutil.rmtree(homes.jobs())
    chance = random.Random(5)
    for _ in range(KILLS):
        has_begun = bool(list(homes.jobs().glob("*/job.json")))
        if not has_begun:
            shutil.rmtree(homes.jobs(), ignore_errors=True)
        executor = start(go_on if has_begun else begin(search))
        executor.join(chance.uniform(0, LONGEST))
        kill(executor)
    executor = start(go_on)
    executor.join()
    settled(only())
    assert board() == expected
