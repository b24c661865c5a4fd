"""The contract of every backend, held by the local one, Azure's and one in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.azure import endpoints
from ml.backends.azure.backend import AzureBackend
from ml.backends.base import Backend, Options
from ml.backends.local.backend import LocalBackend
from ml.backends.runs import Run, Watch, unwatched
from ml.core.errors import Exit, Place, UserError
from ml.core.home import tracking_uri
from ml.release.ab import records, routing
from ml.release.ab.experiment import Experiment
from ml.specs.plan.plans import Asset, Distribution, InputPlan, OutputPlan, Plan
from tests.backends.conftest import Plans, Sweeps
from tests.backends.contract import BackendContract
from tests.backends.deployments import SAMPLES
from tests.backends.specs import with_spec
from tests.stand_ins.azure.running import StandIn, register_environment
from tests.stand_ins.memory import MemoryBackend

HERE = Place("jobs/job.yml", 9)


class TestLocal(BackendContract):
    @pytest.fixture
    def backend(self, home: Path) -> Backend:
        return LocalBackend()

    def check_tracking(self, run: Run, status: str) -> None:
        """MLflow's own client sees the same run."""
        client = MlflowClient(tracking_uri())
        tracked = client.get_run(run.id)
        assert tracked.info.status == status
        assert client.get_experiment(tracked.info.experiment_id).name == run.experiment
        if not run.trials:  # a sweep's own are those of its best trial
            assert tracked.data.params == {k: str(value) for k, value in run.parameters.items()}
            assert tracked.data.metrics == run.metrics
        if run.ended_by not in ("", "timeout"):  # a trial, by a rule
            assert "threshold" in tracked.data.tags["ended_by"]
        if run.best:
            assert tracked.data.tags["best_child_run_id"] == run.trial(run.best).id
        for trial in run.trials:
            assert client.get_run(trial.id).data.tags["mlflow.parentRunId"] == run.id


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return MemoryBackend(tmp_path / "memory")

    @pytest.fixture
    def deployments(self) -> Path:
        """Its endpoints are those of the local backend."""
        assert MemoryBackend.endpoints is LocalBackend.endpoints
        pytest.skip("it serves as the local backend does")


class _FromPlans(AzureBackend):
    """The backend for plans that were made in code: it writes the spec that it passes on."""

    folder: Path

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        return super().run(with_spec(plan, self.folder), watch)


@pytest.mark.slow
class TestAzure(BackendContract):
    """The unmodified azure-ai-ml against the stand-in."""

    @pytest.fixture
    def backend(
        self, azure: StandIn, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Backend:
        azure.enter(monkeypatch)
        backend = _FromPlans(Options(again=True))
        backend.folder = tmp_path
        register_environment(backend.workspace.client, "ml-cpu", "1")
        monkeypatch.setattr(endpoints, "stack_of", lambda endpoint: "dev")
        return backend

    def post(
        self, backend: Backend, experiment: Experiment, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """The answer of the endpoint, which splits no keys."""
        assert isinstance(backend, AzureBackend)
        url, body = str(backend.endpoints.url(experiment.endpoint)), json.dumps(SAMPLES[0])
        status, text, _ = backend.workspace.score(url, body, headers)
        assert status == 200, text
        return dict(json.loads(text))

    def ask(self, backend: Backend, experiment: Experiment, key: str) -> str:
        """The caller names the deployment, as `ml ab assign` says."""
        arm = experiment.arm(experiment.ticket(key))
        (headers,) = routing.headers(backend, experiment, {key: arm}).values()
        return str(self.post(backend, experiment, headers)["model_digest"])

    def check_misrouted(self, backend: Backend, experiment: Experiment, key: str) -> None:
        """A key that the other version answered counts no more; who names none gets A."""
        for _ in range(5):
            assert self.post(backend, experiment, {})["model_digest"] == experiment.a.digest
        other = {"A": "B", "B": "A"}[experiment.arm(experiment.ticket(key))]
        (headers,) = routing.headers(backend, experiment, {key: other}).values()
        self.post(backend, experiment, headers)
        found = records.read(backend, experiment)
        assert (len(found.assigned), len(found.outcomes), found.misrouted) == (11, 11, 1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"distribution": Distribution("horovod", 1, HERE)}, "unsupported-distribution"),
        (
            {"inputs": {"d": InputPlan("d", "uri_folder", HERE, source="azureml://datastores/x")}},
            "data-not-local",
        ),
    ],
)
def test_refusals(command: Plans, changes: dict[str, object], code: str) -> None:
    """What one machine cannot honour, each with its code and what to do instead."""
    (problem,) = LocalBackend().refusals(replace(command(), **changes))
    assert problem.code == code
    assert problem.place is not None
    assert problem.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {"d": InputPlan("d", "uri_folder", HERE, source="x", path=Path("/"))}},
        {"inputs": {"d": InputPlan("d", "uri_folder", HERE)}},  # an optional input, not given
        {"instance_count": 2, "distribution": Distribution("pytorch", 2, HERE)},
        {"instance_count": 2},
    ],
)
def test_what_is_not_refused(command: Plans, changes: dict[str, object]) -> None:
    """Data that is here, an optional input without a value."""
    assert LocalBackend().refusals(replace(command(), **changes)) == ()


def test_differences_are_said(
    command: Plans, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute, environment, copies, registration, fields without meaning, trials at once."""
    monkeypatch.setattr("ml.backends.local.execution.sweep.cores", lambda: 2)
    plan = sweep("", max_concurrent_trials=8, max_total_trials=20)
    data = InputPlan("d", "uri_folder", HERE, source="x", path=Path("/"), mode="download")
    model = OutputPlan("m", "custom_model", HERE, asset=Asset("faq", "3"))
    places = {"resources.shm_size": HERE, "command": HERE}
    own = {"MLFLOW_TRACKING_URI": "azureml://elsewhere", "TEAM": "faq"}
    made = {"inputs": {"d": data}, "outputs": {"m": model}, "environment_variables": own}
    trial = replace(plan.trial, places=places, **made)
    said = "\n".join(LocalBackend().differences(replace(plan, trial=trial)))
    for part in (
        "`azureml:cpu-cluster` → this machine",
        "`azureml:ml-cpu:1` → this interpreter",
        "8 trials at once → 2",
        "variable `MLFLOW_TRACKING_URI` of the job → overridden by this run's value",
        "input `d` → a copy",
        "output `m` → registered here as `azureml:faq:3`",
        "`resources.shm_size` (jobs/job.yml:9) is ignored on this machine",
    ):
        assert part in said
    assert "TEAM" not in said


def test_an_input_that_has_gone_is_refused(home: Path, command: Plans) -> None:
    """Exit code 2, and no run is left behind."""
    gone = InputPlan("faq", "uri_folder", HERE, source="faq", path=home / "gone")
    with pytest.raises(UserError) as refused:
        LocalBackend().run(command(inputs={"faq": gone}))
    assert refused.value.exit_code == Exit.WRONG_CALL
    assert refused.value.problems[0].code == "input-not-found"
    assert not (home / "jobs").exists()
