"""The operations of azure-ai-ml that notes list, each by the unmodified client, and every spec.

Jobs are submitted to a workspace that starts none: what counts is that the stand-in knows each
request and takes its body. That submitted jobs run is in the other tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml import load_job
from azure.ai.ml.entities import (
    BatchEndpoint,
    Data,
    Environment,
    ManagedOnlineEndpoint,
    Model,
)
from azure.core.exceptions import ResourceNotFoundError

from ml.backends.azure import submission
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import configured
from ml.backends.base import FAMILIES
from ml.core.errors import errors
from ml.specs.check.check import check
from ml.specs.plan import planning
from ml.specs.sdk import load
from ml.specs.search.hints import is_hints
from tests.conftest import ROOT
from tests.stand_ins.azure.running import StandIn

PROJECTS = ROOT / "ml" / "projects"
SPECS = sorted(
    path
    for folder in ("jobs", "schedules")
    for path in PROJECTS.glob(f"*/{folder}/*.yml")
    if not is_hints(path)
)


@pytest.fixture
def furnished(idle: StandIn) -> StandIn:
    """With every asset of the repository."""
    store = AzureBackend().assets
    for state in store.compare(ROOT):
        if state.status == "missing":
            store.create(state)
    idle.requests()
    return idle


@pytest.mark.slow
def test_every_spec_of_the_repository_is_accepted(furnished: StandIn, tmp_path: Path) -> None:
    """Jobs and schedules of the projects, as `ml run --on azure` sends them. Their code is there:
    it came with the components, and is found by its hash.
    """
    backend = AzureBackend()
    sent = []
    (tmp_path / "model.txt").write_text("a model")
    # The schedule of demand_forecast names the latest one.
    model = Model(name="demand-forecast", version="1", path=tmp_path / "model.txt")
    backend.workspace.client.models.create_or_update(model)
    for path in SPECS:
        changes = {"inputs.model": str(tmp_path)} if path.stem in {"evaluate", "score"} else {}
        spec = load.load(path, changes)
        assert not errors(check(spec))
        if spec.kind.family in FAMILIES:
            assert backend.resources.apply(spec).change == "created"
        else:
            job = backend._submit(submission.prepare(planning.plan(spec)))
            sent.append(job.name)
    assert not [each for each in furnished.requests() if re.match("PUT .*/codes/", each)]
    assert {job.name for job in backend.workspace.client.jobs.list()} == set(sent)
    assert len(sent) >= 4


JOB = """\
type: command
command: echo ${{inputs.word}} ${{inputs.data}}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
inputs:
  word: hello
  data: {type: uri_folder, path: azureml:words:1}
code: code
"""
SWEEP = """\
type: sweep
trial: {command: "echo ${{search_space.x}}", environment: azureml:ml-cpu:1}
sampling_algorithm: random
search_space: {x: {type: uniform, min_value: 0, max_value: 1}}
objective: {goal: maximize, primary_metric: m}
limits: {max_total_trials: 2, max_concurrent_trials: 1, timeout: 7200}
compute: azureml:cpu-cluster
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:cpu-cluster}
jobs:
  only: {command: echo, environment: azureml:ml-cpu:1}
"""
AUTOML = """\
type: automl
task: regression
primary_metric: r2_score
target_column_name: y
training_data: {type: mltable, path: azureml:table:1}
compute: azureml:cpu-cluster
"""
WORKSPACE = r"workspaces/[^/]+"
Work = Callable[[Any, Path], object]


def submitted(text: str, name: str) -> Work:
    def submit(client: Any, folder: Path) -> None:
        (folder / f"{name}.yml").write_text(text)
        job = load_job(folder / f"{name}.yml")
        job.name = name
        client.jobs.create_or_update(job)

    return submit


def endpoint(client: Any, folder: Path) -> None:
    client.online_endpoints.begin_create_or_update(
        ManagedOnlineEndpoint(name="words", auth_mode="aad_token")
    ).result()


def batch_endpoint(client: Any, folder: Path) -> None:
    client.batch_endpoints.begin_create_or_update(BatchEndpoint(name="batch")).result()


def schedule(client: Any, folder: Path) -> None:
    from azure.ai.ml.entities import CronTrigger, JobSchedule

    (folder / "nightly.yml").write_text(PIPELINE)
    job = load_job(folder / "nightly.yml")
    trigger = CronTrigger(expression="0 3 * * *")
    client.schedules.begin_create_or_update(
        JobSchedule(name="nightly", trigger=trigger, create_job=job)
    ).result()


def data(name: str, kind: str) -> Work:
    def create(client: Any, folder: Path) -> None:
        client.data.create_or_update(
            Data(name=name, version="1", path=str(folder / name), type=kind)
        )

    return create


def environment(client: Any, folder: Path) -> None:
    client.environments.create_or_update(Environment(name="e", version="1", image="python"))


def inline_environment(client: Any, folder: Path) -> None:
    inline = JOB.replace("azureml:ml-cpu:1", "{image: python}")
    submitted(inline, "inline")(client, folder)


def model(client: Any, folder: Path) -> None:
    client.models.create_or_update(Model(name="m", path=str(folder / "words"), version="1"))


# Operation → how azure-ai-ml does it, and a request by which one knows it (method and path).
# In this order: later ones use what earlier ones made.
OPERATIONS: dict[str, tuple[Work, str]] = {
    "workspaces.get": (lambda c, f: c.workspaces.get(c.workspace_name), f"GET .*{WORKSPACE}$"),
    "compute.get": (lambda c, f: c.compute.get("cpu-cluster"), "GET .*/computes/cpu-cluster$"),
    "compute.list": (lambda c, f: list(c.compute.list()), "GET .*/computes$"),
    "datastores.get": (
        lambda c, f: c.datastores.get("workspaceblobstore"),
        "GET .*/datastores/workspaceblobstore$",
    ),
    "data.create": (data("words", "uri_folder"), "PUT .*/data/words/versions/1$"),
    "upload": (data("table", "mltable"), "PUT .*/data/table/versions/1$"),
    "data.get": (lambda c, f: c.data.get("words", "1"), "GET .*/data/words/versions/1$"),
    "data.list": (lambda c, f: list(c.data.list("words")), "GET .*/data/words/versions$"),
    "environments.create": (environment, "PUT .*/environments/e/versions/1$"),
    "environments.get": (lambda c, f: c.environments.get("e", "1"), "GET .*/environments/e/v"),
    "environments.list": (lambda c, f: list(c.environments.list("e")), "GET .*/environments/e/v"),
    "environment, inline": (inline_environment, "PUT .*/environments/CliV2AnonymousEnvironment/"),
    "code": (submitted(JOB, "coded"), "PUT .*/codes/[^/]+/versions/1$|GET .*/codes/"),
    "command": (submitted(JOB, "command"), "PUT .*/jobs/command$"),
    "sweep": (submitted(SWEEP, "sweep"), "PUT .*/jobs/sweep$"),
    "pipeline": (submitted(PIPELINE, "pipeline"), "PUT .*/components/azureml_anonymous/versions/"),
    "automl": (submitted(AUTOML, "automl"), "PUT .*/jobs/automl$"),
    "jobs.get": (lambda c, f: c.jobs.get("command"), "GET .*/jobs/command$"),
    "jobs.list": (lambda c, f: list(c.jobs.list()), "GET .*/jobs$"),
    "cancel": (
        lambda c, f: c.jobs.begin_cancel("command").result(),
        "POST .*/jobs/command/cancel$",
    ),
    "stream": (lambda c, f: c.jobs.stream("command"), "GET /history/.*/runs/command/details$"),
    "models.create": (model, "PUT .*/models/m/versions/1$"),
    "models.get": (lambda c, f: c.models.get("m", "1"), "GET .*/models/m/versions/1$"),
    "models.list": (lambda c, f: list(c.models.list("m")), "GET .*/models/m/versions$"),
    "endpoint": (endpoint, "PUT .*/onlineEndpoints/words$"),
    "endpoints.list": (lambda c, f: list(c.online_endpoints.list()), "GET .*/onlineEndpoints$"),
    "endpoint, deleted": (
        lambda c, f: c.online_endpoints.begin_delete("words").result(),
        "DELETE .*/onlineEndpoints/words$",
    ),
    "batch endpoint": (batch_endpoint, "PUT .*/batchEndpoints/batch$"),
    "batch endpoint, got": (lambda c, f: c.batch_endpoints.get("batch"), "GET .*/batchEndpoints/b"),
    "schedule": (schedule, "PUT .*/schedules/nightly$"),
    "schedules.get": (lambda c, f: c.schedules.get("nightly"), "GET .*/schedules/nightly$"),
}


@pytest.mark.slow
def test_the_operations_of_the_client(furnished: StandIn, tmp_path: Path) -> None:
    """Each sends the request that it is known by, and takes the answer.

    Deployments, traffic and scoring are in the contract's releases: they need a server.
    """
    assert len(OPERATIONS) >= 30
    for name, text in (("words", "a"), ("table", "paths: [{file: ./a.csv}]\n"), ("code", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("MLTable" if name == "table" else "a.txt")).write_text(text)
    client = configured().client
    for name, (work, expected) in OPERATIONS.items():
        work(client, tmp_path)
        requests = furnished.requests()
        assert any(re.search(expected, line) for line in requests), (name, requests)


@pytest.mark.slow
@pytest.mark.parametrize("collection", ["jobs", "schedules", "batch_endpoints"])
def test_what_is_not_there(idle: StandIn, collection: str) -> None:
    """404 in the service's shape, which the client raises as what it is."""
    with pytest.raises(ResourceNotFoundError):
        getattr(configured().client, collection).get("nothing")
