"""How the sweep of an AutoML job ends: by itself, and its ensembles come last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.core.errors import Place
from ml.specs.plan.plans import Dimension, StoppingCriteria, SweepPlan
from ml.sweeps.objective import is_enough
from tests.backends.conftest import LOG

Sweeps = Callable[..., SweepPlan]
SCRIPT = LOG + "log('score', float(sys.argv[1]))\n"
# The value of x, or of an ensemble the number of its members.
OF_MODEL = LOG + (
    "import json\nmodel = json.loads(os.environ['AZUREML_SWEEP_model'])\n"
    "log('score', model.get('x', len(model.get('members', ()))))\n"
)


@pytest.mark.parametrize(
    ("scores", "ending", "enough"),
    [
        ((0.5, 0.6), StoppingCriteria(exit_score=0.6), True),
        ((0.5, 0.6), StoppingCriteria(exit_score=0.7), False),
        ((), StoppingCriteria(exit_score=0.0, patience=0), False),
        ((None, 0.6), StoppingCriteria(exit_score=0.6), True),
        ((0.9, 0.1, 0.1), StoppingCriteria(patience=2), True),
        ((0.9, 0.1, 0.95), StoppingCriteria(patience=2), False),
        ((0.9, 0.1, 0.1), StoppingCriteria(patience=2, landmarks=2), False),
        ((0.9, 0.1, 0.1), StoppingCriteria(), False),
    ],
)
def test_when_a_search_has_enough(
    scores: tuple[float | None, ...], ending: StoppingCriteria, enough: bool
) -> None:
    assert is_enough(scores, "maximize", ending) is enough
    mirrored = [None if of is None else -of for of in scores]
    exit_score = None if ending.exit_score is None else -ending.exit_score
    theirs = StoppingCriteria(exit_score, ending.patience, ending.landmarks)
    assert is_enough(mirrored, "minimize", theirs) is enough


def test_an_exit_score_ends_the_search(home: Path, sweep: Sweeps) -> None:
    """The job is complete, with the trials that it took."""
    plan = sweep(SCRIPT, max_total_trials=9, max_concurrent_trials=1, ending=StoppingCriteria(0.0))
    run = LocalBackend().run(plan)
    assert (run.status, len(run.trials)) == ("Completed", 1)


def test_ensembles_are_the_last_trials(home: Path, sweep: Sweeps) -> None:
    """They are made of the best ones, once those have ended, and count as trials."""
    place = Place("jobs/job.yml", 1)
    branch = {"family": "one", "x": Dimension("x", "uniform", (0.0, 1.0), place)}
    plan = sweep(
        OF_MODEL, max_total_trials=4, ending=StoppingCriteria(ensembles=("voting_ensemble",))
    )
    plan = replace(
        plan,
        trial=replace(plan.trial, command="python script.py"),
        search_space={"model": Dimension("model", "choice", (branch,), place)},
    )
    run = LocalBackend().run(plan)
    assert (run.status, len(run.trials)) == ("Completed", 4)
    last = run.trials[-1]
    assert run.best == last.name and last.metrics["score"] == 3
    members = json.loads(str(last.parameters["model"]))["members"]
    scores = [run.trials[number].metrics["score"] for number in members]
    assert scores == sorted(scores, reverse=True)


def test_an_ensemble_gets_the_best_trial_of_each_family(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where other families have all the best trials."""
    monkeypatch.setattr("ml.backends.local.execution.sweep.MEMBERS", 1)
    place, bounds = Place("jobs/job.yml", 1), {"one": (0.5, 1.0), "two": (0.0, 0.1)}
    branches = tuple(
        {"family": family, "x": Dimension("x", "uniform", of, place)}
        for family, of in bounds.items()
    )
    plan = of_families(sweep, OF_MODEL, 60.0, ("voting_ensemble",))
    plan = replace(
        plan,
        max_total_trials=9,
        search_space={"model": Dimension("model", "choice", branches, place)},
    )
    run = LocalBackend().run(plan)
    models = [json.loads(str(trial.parameters["model"])) for trial in run.trials]
    members = [models[number] for number in models[-1]["members"]]
    best = [
        max((of for of in models[:-1] if of["family"] == family), key=lambda of: of["x"])
        for family in bounds
    ]
    assert members == best


@pytest.mark.parametrize("ends", [True, False])
def test_no_cache_is_left_of_a_search_that_is_complete(
    home: Path, sweep: Sweeps, ends: bool
) -> None:
    """One that failed may be resumed, and then its trials read it."""
    script = SCRIPT if ends else "import os, sys\n"
    script += "os.makedirs(os.getcwd().split('/trials/')[0] + '/cache', exist_ok=True)\n"
    script += "" if ends else "sys.exit('error[single-class]: the target has only No')\n"
    run = LocalBackend().run(sweep(script, max_total_trials=2, ending=StoppingCriteria()))
    assert run.status == ("Completed" if ends else "Failed")
    assert (run.folder / "cache").exists() is not ends


@pytest.mark.parametrize("code", [os.EX_DATAERR, 1])
def test_a_search_of_wrong_data_ends_with_its_first_trial(
    home: Path, sweep: Sweeps, code: int
) -> None:
    """Its exit code says that every trial would be refused; others may be of one family."""
    script = f"import sys\nprint('error[few-folds]: 60 rows')\nsys.exit({code})\n"
    plan = sweep(script, max_total_trials=5, max_concurrent_trials=1, ending=StoppingCriteria())
    run = LocalBackend().run(plan)
    assert run.error is not None and "error[few-folds]" in run.error.actual
    assert len(run.trials) == (1 if code == os.EX_DATAERR else 3)


def test_the_time_of_a_search_is_what_it_may_use(home: Path, sweep: Sweeps) -> None:
    """Its best model counts; a sweep that runs out of time is canceled."""
    slow = SCRIPT + "time.sleep(600 if float(sys.argv[1]) > 0.5 else 0)\n"
    plan = sweep(slow, max_total_trials=30, timeout_s=4.0, ending=StoppingCriteria())
    run = LocalBackend().run(plan)
    assert run.status == "Completed" and run.best is not None and run.ended_by == ""
    assert {trial.status for trial in run.trials} == {"Completed", "Canceled"}


def of_families(
    sweep: Sweeps, script: str, seconds: float, ensembles: tuple[str, ...]
) -> SweepPlan:
    """A search of numbers x of one family, one trial at a time, with so many seconds."""
    place = Place("jobs/job.yml", 1)
    branch = {"family": "one", "x": Dimension("x", "uniform", (0.0, 1.0), place)}
    plan = sweep(
        script,
        max_total_trials=30,
        max_concurrent_trials=1,
        timeout_s=seconds,
        ending=StoppingCriteria(ensembles=ensembles),
    )
    return replace(
        plan,
        trial=replace(plan.trial, command="python script.py"),
        search_space={"model": Dimension("model", "choice", (branch,), place)},
    )


def test_a_trial_that_takes_the_time_of_the_ensembles_is_ended(home: Path, sweep: Sweeps) -> None:
    """Once two have ended an ensemble of them comes in the time that is kept back for it; without
    one the trial has all the time.
    """
    slow = OF_MODEL + (
        "time.sleep(600 if 'x' in model and os.getcwd().split('/trials/')[1][0] == '2' else 0)\n"
    )
    plan = of_families(sweep, slow, 12.0, ("voting_ensemble", "stack_ensemble"))
    run = LocalBackend().run(plan)
    kinds = ["members" in str(trial.parameters["model"]) for trial in run.trials]
    assert (run.status, kinds) == ("Completed", [False, False, False, True, True])
    assert [trial.ended_by for trial in run.trials] == ["", "", "time_of_ensembles", "", ""]
    assert run.best == run.trials[3].name and run.ended_by == ""


def test_a_trial_that_would_not_end_in_time_is_not_begun(home: Path, sweep: Sweeps) -> None:
    """As long as those before it took: what is left is the ensemble's."""
    # Two trials fit, half a second from one or three: 85 % of the time is for them.
    slow = OF_MODEL + "time.sleep(3 if 'x' in model else 0)\n"
    run = LocalBackend().run(of_families(sweep, slow, 9.5, ("voting_ensemble",)))
    assert run.status == "Completed" and {trial.status for trial in run.trials} == {"Completed"}
    assert "members" in str(run.trials[-1].parameters["model"])


def test_the_start_of_an_interpreter_is_not_the_time_of_a_search(home: Path, sweep: Sweeps) -> None:
    """Packages may take longer to load than all that a short search may take."""
    slow = "import mlflow.store.tracking.sqlalchemy_store\n" + SCRIPT
    run = LocalBackend().run(
        sweep(slow, max_total_trials=2, timeout_s=1.0, ending=StoppingCriteria())
    )
    assert run.status == "Completed" and run.best is not None


def test_a_table_that_no_trial_can_fit_ends_the_search(home: Path, sweep: Sweeps) -> None:
    """The first ones tell why; the others would say the same."""
    script = "raise SystemExit('error[single-class]: the target has only No')"
    plan = sweep(script, max_total_trials=40, max_concurrent_trials=1, ending=StoppingCriteria())
    run = LocalBackend().run(plan)
    assert (run.status, len(run.trials)) == ("Failed", 3)
    assert run.error is not None and "error[single-class]" in run.error.actual
