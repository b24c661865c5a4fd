"""What every backend keeps: subclass it and give it a `backend` fixture."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.base import Backend, Event
from ml.core.errors import Place, Severity
from ml.specs.plan.plan import Distribution, EarlyTermination
from tests.backends.conftest import LOG, Plans, Sweeps


class BackendContract:
    """The promises of `ml.backends.base`, with jobs that take a moment each."""

    @pytest.fixture
    def client(self) -> MlflowClient:
        """The tracking server that the backend's runs report to."""
        raise NotImplementedError

    def test_a_command_that_succeeds(
        self, backend: Backend, client: MlflowClient, command: Plans
    ) -> None:
        """Completed; what it logged and wrote can be read, from the Run and from MLflow."""
        script = LOG + (
            "log('loss', 0.5); log('loss', 0.25, 1)\n"
            "Path(sys.argv[1], 'model.txt').write_text(sys.argv[2])\n"
        )
        line = "python script.py ${{outputs.model}} ${{inputs.word}}"
        plan = command(script, line, {"model": "custom_model"}, word="hello")
        run = backend.run(plan)
        assert (run.status, run.error, run.warnings) == ("Completed", None, ())
        assert run.metrics == {"loss": 0.25}
        assert (run.outputs["model"] / "model.txt").read_text() == "hello"
        assert run.ended is not None
        tracked = client.get_run(run.id)
        assert tracked.info.status == "FINISHED"
        assert tracked.data.params == {"word": "hello"}
        assert client.get_experiment(tracked.info.experiment_id).name == "tests"
        assert [m.value for m in client.get_metric_history(run.id, "loss")] == [0.5, 0.25]

    def test_a_command_that_fails(
        self, backend: Backend, client: MlflowClient, command: Plans
    ) -> None:
        """A Run with its error, not an exception: the code, the line, the end of the log."""
        run = backend.run(command("print('the cause'); raise SystemExit(3)"))
        assert run.status == "Failed"
        assert run.error is not None
        assert run.error.code == "script-failed"
        assert str(run.error.place) == "jobs/job.yml:7"
        assert "exited with 3" in run.error.found
        assert "the cause" in run.error.found
        assert client.get_run(run.id).info.status == "FAILED"

    def test_a_command_that_takes_too_long(
        self, backend: Backend, client: MlflowClient, command: Plans
    ) -> None:
        """`limits.timeout` cancels the job."""
        plan = replace(command("import time; time.sleep(60)"), timeout_s=0.5)
        run = backend.run(plan)
        assert run.status == "Canceled"
        assert run.error is not None
        assert run.error.code == "timed-out"
        assert client.get_run(run.id).info.status == "KILLED"

    def test_a_sweep(self, backend: Backend, client: MlflowClient, sweep: Sweeps) -> None:
        """Trials in their order; the best has its outputs and metrics promoted to the sweep."""
        script = LOG + "log('score', float(sys.argv[1])); Path(sys.argv[2]).write_text(sys.argv[1])"
        plan = sweep(script, {"note": "uri_file"})
        line = "python script.py ${{search_space.x}} ${{outputs.note}}"
        plan = replace(plan, trial=replace(plan.trial, command=line))
        run = backend.run(plan)
        assert run.status == "Completed"
        assert [trial.name for trial in run.trials] == [f"{run.name}_{n}" for n in range(3)]
        scores = {trial.name: trial.metrics["score"] for trial in run.trials}
        assert scores == {trial.name: trial.parameters["x"] for trial in run.trials}
        assert run.best == max(scores, key=scores.__getitem__)
        assert float(run.outputs["note"].read_text()) == max(scores.values())
        assert run.metrics == run.trial(run.best).metrics
        assert run.parameters == run.trial(run.best).parameters
        for trial in run.trials:
            tracked = client.get_run(trial.id)
            assert tracked.data.tags["mlflow.parentRunId"] == run.id
            assert tracked.info.status == "FINISHED"
        tags = client.get_run(run.id).data.tags
        assert tags["best_child_run_id"] == run.trial(run.best).id

    def test_a_trial_that_fails_does_not_end_the_sweep(
        self, backend: Backend, sweep: Sweeps
    ) -> None:
        """Others go on, and the best is one that completed."""
        script = LOG + "x = float(sys.argv[1]); log('score', x); sys.exit(x > 0.5)"
        run = backend.run(sweep(script, max_total_trials=4))
        statuses = {trial.name: trial.status for trial in run.trials}
        assert set(statuses.values()) == {"Completed", "Failed"}
        assert run.status == "Completed"
        assert run.best is not None
        assert statuses[run.best] == "Completed"

    def test_early_termination(self, backend: Backend, client: MlflowClient, sweep: Sweeps) -> None:
        """The policy ends what lags: Canceled, with the policy's name, and never the best."""
        script = LOG + (
            "good = float(sys.argv[1]) < 0.5\n"
            "for step in range(4):\n"
            "    log('score', 1.0 if good else 0.0, step)\n"
            "time.sleep(0 if good else 60)\n"
        )
        policy = EarlyTermination("median_stopping", Place("jobs/job.yml", 30), 1, 4)
        run = backend.run(sweep(script, max_total_trials=6, early_termination=policy))
        assert run.status == "Completed"
        for trial in run.trials:
            expected = ("Completed", "") if trial.metrics["score"] else ("Canceled", policy.type)
            assert (trial.status, trial.ended_by) == expected
        ended = [trial for trial in run.trials if trial.ended_by]
        assert ended
        tracked = client.get_run(ended[0].id)
        assert tracked.info.status == "KILLED"
        assert "threshold" in tracked.data.tags["ended_by"]

    def test_events_tell_the_story(self, backend: Backend, sweep: Sweeps) -> None:
        """Started, each trial's start and end, ended; every event has the run as it then was."""
        told: list[Event] = []
        run = backend.run(sweep(LOG + "log('score', 1.0)"), told.append)
        kinds = [event.kind for event in told if event.kind != "trial_metric"]
        assert kinds[0] == "started"
        assert kinds[-1] == "ended"
        assert kinds.count("trial_started") == kinds.count("trial_ended") == 3
        assert told[-1].run == run
        assert all(event.trial for event in told if event.kind.startswith("trial"))

    def test_what_cannot_be_honoured_is_refused(self, backend: Backend, command: Plans) -> None:
        """Either a refusal that names the line, or the job runs as it is written."""
        plan = command("print(1)")
        place = Place("jobs/job.yml", 12)
        several = replace(plan, instance_count=2, places={"resources.instance_count": place})
        launched = replace(plan, distribution=Distribution("pytorch", 2, place))
        for asking in (several, launched):
            for refusal in backend.refusals(asking):
                severity: Severity = "error"
                assert (refusal.place, refusal.severity) == (place, severity)
                assert refusal.hint
        assert backend.refusals(plan) == ()
