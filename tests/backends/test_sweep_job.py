"""Sweeps on this machine: budgets, metrics that cannot be ranked, limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.backend import LocalBackend
from ml.backends.local.execution.sweep import concurrency
from ml.backends.local.processes.process import cores
from ml.backends.local.runs import records
from ml.backends.runs import Run
from ml.core.errors import Place, Problem, UserError
from ml.core.home import tracking_uri
from ml.specs.plan.plans import Constraint, Dimension, EarlyTermination, Hints, Point
from tests.backends.conftest import LOG, Sweeps

HERE = Place("jobs/job.yml", 9)


def failure(run: Run) -> Problem:
    """The error of a sweep that failed."""
    assert run.status == "Failed"
    assert run.best is None
    assert run.error is not None
    return run.error


def test_the_same_seed_draws_the_same_trials(home: Path, sweep: Sweeps) -> None:
    """In whatever order they end; a sweep without a seed records the one that it used."""
    plan = sweep(LOG + "log('score', 1.0)")
    first, second = LocalBackend().run(plan), LocalBackend().run(plan)
    assert [t.parameters for t in first.trials] == [t.parameters for t in second.trials]
    drawn = LocalBackend().run(replace(plan, seed=None))
    seed = records.lineage(drawn.folder)["sampling"]["seed"]
    again = LocalBackend().run(replace(plan, seed=seed))
    assert [t.parameters for t in again.trials] == [t.parameters for t in drawn.trials]


def test_the_first_of_equal_trials_is_the_best(home: Path, sweep: Sweeps) -> None:
    """The first that started, so that a seed gives the same best trial in every run."""
    script = LOG + "log('score', 1.0); time.sleep(0.5 * os.getcwd().endswith('/0/work'))"
    run = LocalBackend().run(sweep(script, max_total_trials=2))
    assert run.best == run.trials[0].name


def test_trials_share_the_cores(home: Path, sweep: Sweeps) -> None:
    """Each gets its share of the threads, and its values as AZUREML_SWEEP_… too."""
    script = LOG + "log('score', float(os.environ['OMP_NUM_THREADS']))\n"
    script += "log('x', float(os.environ['AZUREML_SWEEP_x']))"
    run = LocalBackend().run(sweep(script))
    assert run.metrics["score"] == max(1, cores() // min(2, cores()))
    assert all(trial.metrics["x"] == trial.parameters["x"] for trial in run.trials)


@pytest.mark.parametrize(
    ("machine", "wanted", "total", "expected"),
    [(8, 4, 24, 4), (2, 8, 24, 2), (8, 8, 3, 3), (1, 4, 9, 1)],
)
def test_concurrency(
    sweep: Sweeps,
    monkeypatch: pytest.MonkeyPatch,
    machine: int,
    wanted: int,
    total: int,
    expected: int,
) -> None:
    """As many as the plan allows, and at most one for each core."""
    monkeypatch.setattr("ml.backends.local.execution.sweep.cores", lambda: machine)
    assert concurrency(sweep("", max_concurrent_trials=wanted, max_total_trials=total)) == expected


def test_a_nan_is_not_ranked(home: Path, sweep: Sweeps) -> None:
    """The trial completed, as on Azure ML, but it is not ranked, and a warning says so."""
    script = LOG + "x = float(sys.argv[1]); log('score', float('nan') if x > 0.5 else x)"
    run = LocalBackend().run(sweep(script, max_total_trials=4))
    diverged = [t for t in run.trials if t.parameters["x"] > 0.5]
    assert diverged
    assert {w.code for t in diverged for w in t.warnings} == {"metric-not-finite"}
    assert run.status == "Completed"
    assert run.best is not None
    assert run.trial(run.best).parameters["x"] <= 0.5
    (warning,) = run.warnings
    assert warning.code == "metric-not-finite"
    assert warning.actual.startswith(f"{len(diverged)} of 4 trials: {diverged[0].name} logged nan")


def test_failed_trials_of_a_completed_sweep_are_warnings(home: Path, sweep: Sweeps) -> None:
    """One for each kind of failure: how many trials had it, and one of their logs."""
    script = LOG + "x = float(sys.argv[1])\nif x > 0.5: sys.exit('too large')\nlog('score', x)"
    run = LocalBackend().run(sweep(script, {"model": "custom_model"}, max_total_trials=4))
    assert (run.status, run.error) == ("Completed", None)
    failed = [trial for trial in run.trials if trial.status == "Failed"]
    warnings = {warning.code: warning for warning in run.warnings}
    assert warnings.keys() == {"script-failed", "output-empty"}
    assert all(warning.severity == "warning" for warning in run.warnings)
    assert warnings["script-failed"].actual.startswith(
        f"{len(failed)} of 4 trials: the command exited"
    )
    assert "too large" in warnings["script-failed"].actual
    assert str(failed[0].folder) in warnings["script-failed"].hint
    assert records.read(run.folder) == run


@pytest.mark.parametrize(
    ("script", "code", "found", "hint"),
    [
        *(
            (f"log('score', float('{x}'))", "metric-not-finite", f"logged {x} as `score`", "")
            for x in ("nan", "inf", "-inf")
        ),
        (
            "log('scores', 1.0); log('loss', 2.0)",
            *("metric-missing", "`loss`, `scores`", "did you mean `primary_metric: scores`"),
        ),
        ("print('I log nothing')", "metric-missing", "no metric at all", "std_log.txt"),
        ("sys.exit('no data here')", "no-trial-completed", "none of 3 trials completed", ""),
        ("sys.exit('no data here')", "no-trial-completed", "no data here", ""),
    ],
)
def test_why_no_trial_is_the_best(
    home: Path, sweep: Sweeps, script: str, code: str, found: str, hint: str
) -> None:
    """No finite value, another metric's name, no metric, or every trial failed."""
    error = failure(LocalBackend().run(sweep(LOG + script)))
    assert error.code == code and found in error.actual and hint in error.hint
    assert error.place == Place("jobs/job.yml", 20) or code != "metric-not-finite"


def test_the_sweeps_timeout_cancels_all_its_trials(home: Path, sweep: Sweeps) -> None:
    """Trials that completed before stay, and the best of them is the sweep's."""
    script = LOG + "x = float(sys.argv[1]); log('score', x); time.sleep(60 * (x > 0.5))"
    run = LocalBackend().run(sweep(script, max_total_trials=9, timeout_s=3.0))
    assert run.status == "Canceled"
    assert run.ended_by == "timeout"
    assert run.error is not None
    assert run.error.code == "timed-out"
    ended = {trial.ended_by for trial in run.trials if trial.status == "Canceled"}
    assert ended == {"sweep_timeout"}


def test_a_trials_timeout_cancels_that_trial(home: Path, sweep: Sweeps) -> None:
    """The sweep continues."""
    script = LOG + "x = float(sys.argv[1]); log('score', x); time.sleep(60 * (x > 0.5))"
    run = LocalBackend().run(sweep(script, max_total_trials=4, trial_timeout_s=1.5))
    assert run.status == "Completed"
    for trial in run.trials:
        late = trial.parameters["x"] > 0.5
        assert trial.ended_by == ("trial_timeout" if late else "")


def test_a_grid_ends_with_its_last_point(home: Path, sweep: Sweeps) -> None:
    """Before max_total_trials."""
    space = {"x": Dimension("x", "choice", (0.1, 0.2), HERE)}
    script = LOG + "log('score', float(sys.argv[1]))"
    plan = sweep(script, algorithm="grid", search_space=space, max_total_trials=10)
    run = LocalBackend().run(plan)
    assert [trial.parameters["x"] for trial in run.trials] == [0.1, 0.2]
    assert run.metrics["score"] == 0.2


def test_a_trial_that_ended_in_time_is_not_ended_by_the_policy(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that completed before its metrics were read stays Completed, however poor."""
    monkeypatch.setattr("ml.backends.local.execution.sweep.METRICS_S", 3600)
    policy = EarlyTermination("median_stopping", HERE)
    script = LOG + "log('score', float(sys.argv[1]))"
    # One at a time: beside another, a trial that has logged but not yet ended may be ended rightly.
    plan = sweep(script, early_termination=policy, max_total_trials=5, max_concurrent_trials=1)
    run = LocalBackend().run(plan)
    assert {(trial.status, trial.ended_by) for trial in run.trials} == {("Completed", "")}


def test_when_the_policy_ends_everything_the_sweep_says_so(home: Path, sweep: Sweeps) -> None:
    """The sweep fails, with a hint about the policy."""
    script = LOG + "log('score', float(sys.argv[1]) * 0); log('score', -1.0, 1); time.sleep(60)"
    policy = EarlyTermination("truncation_selection", HERE, 1, 2, truncation_percentage=99)
    plan = sweep(script, early_termination=policy, trial_timeout_s=4.0, max_total_trials=2)
    error = failure(LocalBackend().run(plan))
    assert error.code == "no-trial-completed"


def test_the_record_of_a_sweep_is_the_sweep(home: Path, sweep: Sweeps) -> None:
    """job.json alone holds every trial; read back it equals what `run` returned."""
    run = LocalBackend().run(sweep(LOG + "log('score', float(sys.argv[1]))"))
    assert records.read(run.folder) == run
    data = json.loads((run.folder / "job.json").read_text())
    assert [trial["name"] for trial in data["trials"]] == [trial.name for trial in run.trials]
    assert data["lineage"]["objective"] == {"primary_metric": "score", "goal": "maximize"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["random", "bayesian"])
def test_a_sweep_of_real_mlflow_trials(home: Path, sweep: Sweeps, algorithm: str) -> None:
    """With median stopping: every metric that a trial logged is in the store."""
    script = (
        "import sys, mlflow\n"
        "x = float(sys.argv[1])\n"
        "for step in range(60):\n"
        "    mlflow.log_metric('score', x + step / 1000, step=step)\n"
    )
    policy = EarlyTermination("median_stopping", HERE, 1, 20)
    plan = sweep(script, algorithm=algorithm, max_total_trials=6, early_termination=policy)
    run = LocalBackend().run(plan)
    assert run.status == "Completed"
    client = MlflowClient(tracking_uri())
    for trial in run.trials:
        logged = [m.value for m in client.get_metric_history(trial.id, "score")]
        if trial.status == "Completed":
            assert len(logged) == 60
        else:
            assert trial.ended_by == "median_stopping"
            assert 20 <= len(logged) <= 60


def test_hints_reach_the_trials(home: Path, sweep: Sweeps) -> None:
    """The point comes first, no trial breaks the constraint, and each says where it came from."""
    hints = Hints(
        (Point({"x": 0.25}, Place("s.hints.yml", 2), "known"),),
        (Constraint("x <= 0.5", Place("s.hints.yml", 4)),),
        "s.hints.yml",
    )
    plan = sweep(LOG + "log('score', float(sys.argv[1]))", hints=hints, max_total_trials=4)
    (hints,) = [line for line in LocalBackend().differences(plan) if "hints" in line]
    assert "1 point to try first, 1 constraint that leaves 0." in hints
    assert "Azure ML does not read them" in hints
    run = LocalBackend().run(plan)
    assert run.trials[0].parameters["x"] == 0.25
    assert all(trial.parameters["x"] <= 0.5 for trial in run.trials)
    kinds = [records.read_sample(trial.folder).origin["kind"] for trial in run.trials]
    assert kinds == ["given", "random", "random", "random"]
    assert records.lineage(run.folder)["sampling"]["hints"] == "s.hints.yml"


def test_constraints_that_leave_nothing_are_refused_early(home: Path, sweep: Sweeps) -> None:
    """A caller that does not check the differences first gets a failed sweep without trials."""
    hints = Hints((), (Constraint("x > 2", Place("s.hints.yml", 4)),), "s.hints.yml")
    plan = sweep("", hints=hints)
    with pytest.raises(UserError, match="none of 10,000 sampled points"):
        LocalBackend().differences(plan)
    run = LocalBackend().run(plan)
    assert (run.status, run.trials) == ("Failed", ())
    assert run.error is not None
    assert run.error.place == Place("s.hints.yml", 4)


def test_a_policys_verdict_is_recorded_in_numbers(home: Path, sweep: Sweeps) -> None:
    """As tags of the trial that it ended: the value and the threshold."""
    policy = EarlyTermination("bandit", HERE, 1, 1, slack_amount=0.1)
    script = LOG + (
        "x = float(sys.argv[1])\nlog('score', 0.9 if x == 0.25 else 0.5, 0)\n"
        "time.sleep(60 * (x != 0.25))"
    )
    hints = Hints((Point({"x": 0.25}, HERE), Point({"x": 0.5}, HERE)), (), "s.hints.yml")
    plan = sweep(
        script,
        early_termination=policy,
        hints=hints,
        max_total_trials=2,
        max_concurrent_trials=1,
        trial_timeout_s=30.0,
    )
    run = LocalBackend().run(plan)
    assert run.trials[1].ended_by == "bandit"
    tags = MlflowClient(tracking_uri()).get_run(run.trials[1].id).data.tags
    assert tags["ended_by"] == "bandit at interval 1: best so far 0.5, threshold 0.8"
    assert [tags[f"ended_by.{name}"] for name in ("interval", "value", "threshold")] == [
        "1",
        "0.5",
        "0.8",
    ]


def test_every_trial_has_its_sample_before_its_process_starts(home: Path, sweep: Sweeps) -> None:
    """The script can read the file, and the values in it are its own."""
    script = LOG + (
        "import json\n"
        "seen = json.loads(Path('../sampling.json').read_text())\n"
        "assert str(seen['values']['x']) == sys.argv[1]\n"
        "log('score', float(sys.argv[1]))\n"
    )
    run = LocalBackend().run(sweep(script))
    assert run.status == "Completed"
    samples = [json.loads((trial.folder / records.SAMPLE).read_text()) for trial in run.trials]
    assert [one["number"] for one in samples] == [0, 1, 2]
    assert {one["origin"]["kind"] for one in samples} == {"random"}
    assert [one["values"] for one in samples] == [dict(trial.parameters) for trial in run.trials]
