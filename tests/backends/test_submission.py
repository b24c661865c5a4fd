"""What a dry run for Azure shows: the uploads, and the job with its components."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.azure import submission
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import Workspace
from ml.core.errors import UserError
from ml.specs.plan import planning
from ml.specs.sdk import load
from tests.backends.test_azure_operations import SPECS

PIPELINE = "type: pipeline\nsettings: {default_compute: azureml:cpu-cluster}\n"
COMMAND = "type: command, command: echo, environment: azureml:e:1"
# Steps as azureml-examples write them: what a step runs is inline, or in a file of its own.
STEPS = {
    "command": f"{{{COMMAND}}}",
    "command without a type": "{command: echo, environment: {image: python}, code: .}",
    "command with data": (
        "{type: command, command: 'cat ${{inputs.x}} ${{inputs.n}} > ${{outputs.y}}', "
        "environment: azureml:e:1, environment_variables: {A: b}, "
        "inputs: {n: 3, x: {type: uri_file, path: 'https://example.org/x', mode: download}}, "
        "outputs: {y: {type: uri_folder, mode: upload}}, "
        "resources: {instance_count: 2, shm_size: 2g}, services: {tb: {type: tensor_board}}, "
        "distribution: {type: pytorch, process_count_per_instance: 1}, limits: {timeout: 60}, "
        "identity: {type: user_identity}}"
    ),
    "component, inline": f"{{type: command, component: {{{COMMAND}, name: c, version: '1'}}}}",
    "component, of a file": "{type: command, component: ./component.yml, inputs: {rate: 0.5}}",
    "component, prefixed": "{type: command, component: file:./component.yml, inputs: {rate: 0.5}}",
    "sweep": (
        "{type: sweep, trial: ./component.yml, sampling_algorithm: random, "
        "search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}, "
        "objective: {goal: maximize, primary_metric: m}, "
        "early_termination: {type: bandit, slack_factor: 0.1, delay_evaluation: 1}, "
        "limits: {max_total_trials: 2, max_concurrent_trials: 1, timeout: 7200}}"
    ),
    "parallel": (
        "{type: parallel, mini_batch_size: '1', input_data: '${{inputs.data}}', "
        "inputs: {data: {type: uri_folder, path: ./data, mode: ro_mount}}, "
        "outputs: {out: {type: uri_file}}, resources: {instance_count: 1}, "
        "max_concurrency_per_instance: 1, retry_settings: {max_retries: 1, timeout: 60}, "
        "task: {type: run_function, code: ./code, entry_script: a.py, environment: {image: p}, "
        "program_arguments: '--out ${{outputs.out}}', append_row_to: '${{outputs.out}}'}}"
    ),
    "automl": (
        "{type: automl, task: classification, primary_metric: accuracy, target_column_name: y, "
        "training_data: {type: mltable, path: ./data}, limits: {max_trials: 1}, "
        "training: {enable_stack_ensemble: false}, outputs: {best_model: {type: mlflow_model}}}"
    ),
    "pipeline": "{type: pipeline, component: ./nested.yml}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a component, a pipeline component, a script and data."""
    files = {
        "pyproject.toml": "",
        "component.yml": "type: command\nname: c\nversion: '1'\ninputs: {rate: {type: number}}\n"
        "command: echo ${{inputs.rate}}\nenvironment: azureml:e:1\ncode: ./code\n",
        "nested.yml": "type: pipeline\nname: n\nversion: '1'\njobs:\n"
        "  inner: {component: ./component.yml, inputs: {rate: 1}}\n"
        f"  below: {{{COMMAND}}}\n",
        "code/a.py": "def run(batch): return batch\n",
        "data/MLTable": "paths: [{file: ./a.csv}]\ntransformations: [read_delimited: {}]\n",
        "data/a.csv": "x,y\n1,a\n2,b\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def requests(spec: Path) -> list[str]:
    """The lines of a dry run."""
    prepared = submission.prepare(planning.plan(load.load(spec)))
    return submission.requests(Workspace("s", "g", "w"), prepared)


@pytest.mark.parametrize("step", STEPS)
def test_a_dry_run_shows_each_kind_of_step(folder: Path, home: Path, step: str) -> None:
    """The request holds the components, which azure-ai-ml registers when it submits the job."""
    (folder / "pipeline.yml").write_text(f"{PIPELINE}jobs:\n  one: {STEPS[step]}\n")
    body = json.loads(requests(folder / "pipeline.yml")[-1])["properties"]
    job = body["jobs"]["one"]
    assert body["jobType"] == "Pipeline"
    if step == "automl":
        assert job["type"] == "automl"
        return
    component = (job.get("componentId") or job["trial"])["properties"]["componentSpec"]
    kind = step.split(",")[0].split()[0]
    assert component["type"] == (kind if kind in {"parallel", "pipeline"} else "command")


def test_what_azure_does_not_take_has_its_line(folder: Path, home: Path) -> None:
    """azure-ai-ml loads the older spelling of a binding, and refuses to send it."""
    (folder / "pipeline.yml").write_text(
        f"{PIPELINE}jobs:\n  one: {{{COMMAND}, outputs: {{y: {{type: uri_folder}}}}}}\n"
        f"  two: {{{COMMAND}, inputs: {{x: '${{{{jobs.one.outputs.y}}}}'}}}}\n"
    )
    backend = AzureBackend(workspace=Workspace("s", "g", "w"))
    with pytest.raises(UserError) as refused:
        backend.requests(planning.plan(load.load(folder / "pipeline.yml")))
    (problem,) = refused.value.problems
    assert "${{parent.jobs.one.outputs.y}}" in problem.actual
    assert str(problem.place) == "pipeline.yml:5"


def test_a_pipeline_that_runs_a_component(folder: Path, home: Path) -> None:
    """The request holds the steps of the pipeline component."""
    (folder / "pipeline.yml").write_text(f"{PIPELINE}component: ./nested.yml\n")
    body = json.loads(requests(folder / "pipeline.yml")[-1])["properties"]
    assert {*body["jobs"]} == {"inner", "below"}


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_a_dry_run_of_every_job_of_the_repository(spec: Path, home: Path, tmp_path: Path) -> None:
    """It ends with the body of the request."""
    loaded = load.load(spec, {"inputs.model": str(tmp_path)} if spec.stem == "evaluate" else {})
    if not loaded.kind.is_job:
        return
    prepared = submission.prepare(planning.plan(loaded))
    assert json.loads(submission.requests(Workspace("s", "g", "w"), prepared)[-1])["properties"]
