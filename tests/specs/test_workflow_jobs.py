"""What a job may ask of Azure when a workflow submits it: nothing that is not on the list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ml.core.errors import UserError
from ml.specs.check import workflow_jobs
from ml.specs.check.clusters import Bounds
from ml.specs.plan import planning
from ml.specs.sdk import load
from tests.conftest import ROOT

CLUSTERS = frozenset({"cpu-cluster", "gpu-spot"})
BOUNDS = Bounds(hours=2, nodes=4, trials=20, trials_at_once=3)
COMMAND = "command: echo\nenvironment: azureml:ml-cpu:1\ncompute: azureml:cpu-cluster\n"
JOB = f"type: command\ncode: .\n{COMMAND}"
FAQ = "path: azureml:faq-matching-faq:1"
SWEEP = """\
type: sweep
compute: azureml:gpu-spot
trial:
  code: .
  command: echo ${{search_space.a}}
  environment: azureml:ml-cpu:1
  environment_variables: {EPOCHS: "2"}
search_space: {a: {type: choice, values: [1, 2]}}
sampling_algorithm: {type: random, seed: 1}
objective: {goal: maximize, primary_metric: a}
early_termination: {type: median_stopping, evaluation_interval: 1}
limits: {max_total_trials: 2, trial_timeout: 60}
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:cpu-cluster, continue_on_step_failure: false}
jobs:
  step:
"""
STEP = "    type: command\n    command: echo\n    environment: azureml:ml-cpu:1\n"
PARALLEL = """\
    type: parallel
    mini_batch_size: "1"
    error_threshold: 0
    retry_settings: {max_retries: 1, timeout: 60}
    inputs: {rows: {type: mltable, path: azureml:faq-matching-faq:1, mode: eval_mount}}
    outputs: {scored: {type: uri_file, mode: rw_mount}}
    input_data: ${{inputs.rows}}
    task:
      type: run_function
      code: .
      entry_script: a.py
      environment: azureml:ml-cpu:1
"""
COMPONENT = (
    "type: command\nname: c\nversion: 1\ncode: .\ncommand: echo\nenvironment: azureml:ml-cpu:1\n"
)
STEPS = "jobs: {inner: {component: ./c.txt, type: command}}\n"
NESTED = f"type: pipeline\nname: n\nversion: 1\n{STEPS}"
OTHER_RUN = "azureml://datastores/workspaceblobstore/paths/azureml/train-1/model"


DECLARED = {
    "data": "name: faq-matching-faq\nversion: 1\ntype: uri_folder\npath: .\n",
    "environment": "name: ml-cpu\nversion: 1\nimage: ubuntu\n",
}


def refused(folder: Path, text: str, files: Mapping[str, str] | None = None) -> list[str]:
    """The fields that the job asks for in vain, each with the file and the line; that it has no
    time limit is left out, which has tests of its own.
    """
    (folder / "pyproject.toml").write_text("")
    (folder / "main").mkdir(exist_ok=True)
    for kind, content in DECLARED.items():
        schema = f"$schema: https://azuremlschemas.azureedge.net/latest/{kind}.schema.json\n"
        (folder / "main" / f"{kind}.yml").write_text(schema + content)
    for name, content in (files or {}).items():
        (folder / name).write_text(content)
    (folder / "job.yml").write_text(text)
    spec = load.load(folder / "job.yml")
    assert spec.entity is not None, spec.problems
    found = workflow_jobs.problems(spec, CLUSTERS, BOUNDS, folder / "main")
    assert all(each.code == "forbidden-in-workflow" and each.place and each.hint for each in found)
    return [
        f"{each.actual[1:].split(': ')[0]} {each.place}".replace(f"{folder}/", "")
        for each in found
        if "limits.timeout: none" not in each.actual
    ]


ALLOWED = {
    "a command": JOB
    + "tags: {smoke: inputs.trees=2}\ndisplay_name: d\nexperiment_name: e\n"
    + f"inputs: {{faq: {{type: uri_folder, {FAQ}, mode: ro_mount}}, seed: 1, rate: 0.5}}\n"
    + "outputs: {model: {type: custom_model, mode: upload}}\nlimits: {timeout: 60}\n"
    + "resources: {instance_count: 2, shm_size: 1g}\nenvironment_variables: {EPOCHS: '2'}\n"
    + "distribution: {type: pytorch, process_count_per_instance: 1}\n",
    "a sweep": SWEEP,
    "a pipeline": PIPELINE
    + STEP
    + "    outputs: {o: {type: uri_folder}}\n  next:\n"
    + STEP
    + "    inputs: {o: '${{parent.jobs.step.outputs.o}}'}\n    compute: azureml:gpu-spot\n"
    + "    tags: {team: nlp}\n",
    "a parallel step": PIPELINE + PARALLEL,
    "a component in a file": PIPELINE + "    type: command\n    component: ./c.txt\n",
    "a pipeline in a pipeline": PIPELINE + "    type: pipeline\n    component: ./n.dat\n",
    "a sweep of a component": PIPELINE
    + "    type: sweep\n    trial: ./c.txt\n    objective: {goal: maximize, primary_metric: a}\n"
    + "    search_space: {a: {type: choice, values: [1]}}\n    sampling_algorithm: random\n"
    + "    limits: {max_total_trials: 2}\n",
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_what_a_workflow_submits(text: str, tmp_path: Path) -> None:
    inputs = "inputs: {a: {type: integer, default: 1, optional: true}}\n"
    files = {"c.txt": COMPONENT + inputs, "n.dat": NESTED}
    assert refused(tmp_path, text, files) == []


SWEPT = SWEEP.replace("trials: 2,", "trials: 2, timeout: 60,")
STEP_OF_FILE = PIPELINE + "    type: command\n    component: ./c.txt\n"
BOUNDED = {
    "at the bounds": (
        JOB + "limits: {timeout: 7200}\nresources: {instance_count: 4}\n",
        "",
    ),
    "a day": (JOB + "limits: {timeout: 7201}\n", "limits.timeout job.yml:6"),
    "two days": (JOB + "limits: {timeout: 180000}\n", "limits.timeout job.yml:6"),
    "no time": (JOB, "limits.timeout job.yml:1"),
    "a time of nothing": (JOB + "limits: {timeout: 0}\n", "limits.timeout job.yml:6"),
    "five nodes": (
        JOB + "limits: {timeout: 60}\nresources:\n  instance_count: 5\n",
        "resources.instance_count job.yml:8",
    ),
    "a sweep at the bounds": (
        SWEPT.replace("trials: 2,", "trials: 20, max_concurrent_trials: 3,"),
        "",
    ),
    "a sweep without a time": (SWEEP, "limits.timeout job.yml:12"),
    "trials": (
        SWEPT.replace("trials: 2,", "trials: 21, max_concurrent_trials: 3,"),
        "limits.max_total_trials job.yml:12",
    ),
    "trials at once": (
        SWEPT.replace("trials: 2,", "trials: 20, max_concurrent_trials: 4,"),
        "limits.max_concurrent_trials job.yml:12",
    ),
    "all trials at once": (
        SWEPT.replace("trials: 2,", "trials: 4,"),
        "limits.max_concurrent_trials job.yml:12",
    ),
    "a long trial": (
        SWEPT.replace("trial_timeout: 60", "trial_timeout: 7201"),
        "limits.trial_timeout job.yml:12",
    ),
    "nodes of a trial": (
        SWEPT + "resources: {instance_count: 5}\n",
        "resources.instance_count job.yml:13",
    ),
    "a step": (PIPELINE + STEP + "    limits: {timeout: 7200}\n", ""),
    "a long step": (
        PIPELINE + STEP + "    limits: {timeout: 7201}\n",
        "jobs.step.limits.timeout job.yml:8",
    ),
    "a step without a time": (PIPELINE + STEP, "jobs.step.limits.timeout job.yml:4"),
    "a file without a time": (STEP_OF_FILE, "jobs.step.limits.timeout job.yml:4"),
}


@pytest.mark.attack("A pull request's job takes the clusters for a month")
@pytest.mark.parametrize(("text", "expected"), BOUNDED.values(), ids=BOUNDED)
def test_what_a_job_may_take(text: str, expected: str, tmp_path: Path) -> None:
    assert took(tmp_path, text, COMPONENT) == [expected] * bool(expected)


@pytest.mark.parametrize(
    ("limits", "component", "expected"),
    [
        ("    limits: {timeout: 60}\n", "resources: {instance_count: 4}\n", []),
        (
            "    limits: {timeout: 60}\n",
            "resources: {instance_count: 5}\n",
            [
                "jobs.step.resources.instance_count job.yml:4",
                "jobs.step.component.resources.instance_count c.txt:7",
            ],
        ),
        # A component has no such field: the service is not known to keep it.
        ("", "limits: {timeout: 60}\n", ["jobs.step.limits.timeout job.yml:4"]),
    ],
)
def test_what_a_component_may_take(
    limits: str, component: str, expected: list[str], tmp_path: Path
) -> None:
    assert took(tmp_path, STEP_OF_FILE + limits, COMPONENT + component) == expected


def took(folder: Path, text: str, component: str) -> list[str]:
    """The fields by which the job takes too much, each with the file and the line."""
    refused(folder, text, {"c.txt": component})
    found = workflow_jobs.problems(load.load(folder / "job.yml"), CLUSTERS, BOUNDS, folder / "main")
    assert all("`platform:training`" in each.expected for each in found)
    return [
        f"{each.actual[1:].split(': ')[0]} {each.place}".replace(f"{folder}/", "") for each in found
    ]


def test_the_projects_of_this_repository_may_be_trained() -> None:
    for path in ROOT.glob("ml/projects/*/jobs/train.yml"):
        assert workflow_jobs.problems(load.load(path), CLUSTERS, BOUNDS, ROOT) == []
    for path in ROOT.glob("ml/projects/*/jobs/evaluate.yml"):
        spec = load.load(path, {"inputs.model": "/somewhere/model"})  # the workflow's own
        assert workflow_jobs.problems(spec, CLUSTERS, BOUNDS, ROOT) == []


REFUSED = {
    "the workspace's identity": (JOB + "identity: {type: managed}\n", "identity job.yml:6"),
    "the submitter's": (JOB + "identity: {type: user_identity}\n", "identity job.yml:6"),
    "serverless": (JOB.replace("azureml:cpu-cluster", "serverless"), "compute job.yml:5"),
    "no compute": (JOB.replace("compute: azureml:cpu-cluster\n", ""), "compute job.yml:1"),
    "the image builder": (JOB.replace("cpu-cluster", "image-builder"), "compute job.yml:5"),
    "a cluster's ARM id": (
        JOB.replace(
            "azureml:cpu-cluster",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices"
            "/workspaces/w/computes/cpu-cluster",
        ),
        "compute job.yml:5",
    ),
    "another spelling": (JOB.replace("cpu-cluster", "CPU-cluster"), "compute job.yml:5"),
    "another run's folder": (
        JOB + f"outputs:\n  o: {{type: uri_folder, path: '{OTHER_RUN}'}}\n",
        "outputs.o.path job.yml:7",
    ),
    "an asset": (
        JOB + "outputs:\n  o: {type: uri_folder, name: faq-matching-faq}\n",
        "outputs.o.name job.yml:7",
    ),
    "what another run wrote": (
        JOB + f"inputs:\n  o: {{type: uri_folder, path: '{OTHER_RUN}'}}\n",
        "inputs.o.path job.yml:7",
    ),
    "an asset that main does not declare": (
        JOB + "inputs:\n  o: {type: uri_folder, path: azureml:azureml_r_output_data_model:1}\n",
        "inputs.o.path job.yml:7",
    ),
    "an address": (
        JOB + "inputs:\n  o: {type: uri_file, path: https://example.com/x}\n",
        "inputs.o.path job.yml:7",
    ),
    "a file of the runner": (
        JOB + "inputs:\n  o: {type: uri_file, path: /proc/self/environ}\n",
        "inputs.o.path job.yml:7",
    ),
    "an address as a value": (
        JOB + f"inputs:\n  o: '{OTHER_RUN}'\n",
        "inputs.o.value job.yml:7",
    ),
    "the ARM id of data as a value": (
        JOB + "inputs:\n  o: /subscriptions/s/resourceGroups/g/providers/p/workspaces/w/data/d\n",
        "inputs.o.value job.yml:7",
    ),
    "a blob's address as a value": (
        JOB + "inputs:\n  o: https://account.blob.core.windows.net/azureml/train-1/model\n",
        "inputs.o.value job.yml:7",
    ),
    "a parent of a step": (
        PIPELINE + STEP + "    tags: {mlflow.parentRunId: r}\n",
        "jobs.step.tags.mlflow.parentRunId job.yml:8",
    ),
    "an address as a default": (
        PIPELINE + "    type: command\n    component: ./d.txt\n",
        "jobs.step.component.inputs.a.default d.txt:8",
    ),
    "an address among the choices": (
        SWEEP.replace("[1, 2]", f"[1, '{OTHER_RUN}']"),
        "search_space.a.1.0.1 job.yml:8",
    ),
    "a parallel step's data": (
        PIPELINE + PARALLEL.replace("${{inputs.rows}}", OTHER_RUN),
        "jobs.step.input_data job.yml:11",
    ),
    "a service without settings": (JOB + "services: {a: {}}\n", "services job.yml:6"),
    "a parent job": (JOB + "parent_job_name: train-1234\n", "parent_job_name job.yml:6"),
    "a folder of the runner": (JOB.replace("code: .", "code: /etc"), "code job.yml:2"),
    "code of others": (JOB.replace("code: .", "code: azureml:c:1"), "code job.yml:2"),
    "an image": (
        JOB.replace("environment: azureml:ml-cpu:1", "environment: {image: ubuntu}"),
        "environment job.yml:4",
    ),
    "a Dockerfile": (
        JOB.replace("environment: azureml:ml-cpu:1", "environment: {build: {path: .}}"),
        "environment job.yml:4",
    ),
    "an environment of a registry": (
        JOB.replace("azureml:ml-cpu:1", "azureml://registries/r/environments/e/versions/1"),
        "environment job.yml:4",
    ),
    "an undeclared environment": (
        JOB.replace("ml-cpu:1", "ml-cpu:99"),
        "environment job.yml:4",
    ),
    "the newest environment of the workspace": (
        JOB.replace("ml-cpu:1", "ml-cpu@latest"),
        "environment job.yml:4",
    ),
    "the newest data of the workspace": (
        JOB + "inputs:\n  o: {type: uri_folder, path: azureml:faq-matching-faq@latest}\n",
        "inputs.o.path job.yml:7",
    ),
    "a service": (
        JOB + "services: {a: {type: ssh, ssh_public_keys: k}}\n",
        "services job.yml:6",
    ),
    "arguments of docker": (
        JOB + "resources: {docker_args: -v /:/host}\n",
        "resources.docker_args job.yml:6",
    ),
    "another size": (
        JOB + "resources: {instance_type: Standard_ND96}\n",
        "resources.instance_type job.yml:6",
    ),
    "a queue": (JOB + "queue_settings: {job_tier: premium}\n", "queue_settings job.yml:6"),
    "a name": (JOB + "name: train-1234\n", "name job.yml:6"),
    "a commit": (
        JOB + "properties: {mlflow.source.git.commit: abc}\n",
        "properties job.yml:6",
    ),
    "a parent": (
        JOB + "tags: {mlflow.parentRunId: r}\n",
        "tags.mlflow.parentRunId job.yml:6",
    ),
    "what the agent reads": (
        JOB + "environment_variables: {AZUREML_RUN_TOKEN: x}\n",
        "environment_variables.AZUREML_RUN_TOKEN job.yml:6",
    ),
    "what an older agent reads": (
        JOB + "environment_variables: {OBO_ENDPOINT: x}\n",
        "environment_variables.OBO_ENDPOINT job.yml:6",
    ),
    "a parent in capitals": (
        JOB + "tags: {MLFLOW.parentRunId: r}\n",
        "tags.MLFLOW.parentRunId job.yml:6",
    ),
    "a trial's image": (
        SWEEP.replace("environment: azureml:ml-cpu:1", "environment: {image: ubuntu}"),
        "trial.environment job.yml:6",
    ),
    "a pipeline's datastore": (
        PIPELINE.replace("continue_on_step_failure: false", "default_datastore: azureml:d") + STEP,
        "settings.default_datastore job.yml:2",
    ),
    "a step before all others": (
        PIPELINE.replace("continue_on_step_failure: false", "on_init: step") + STEP,
        "settings.on_init job.yml:2",
    ),
    "steps without a compute": (
        PIPELINE.replace("default_compute: azureml:cpu-cluster, ", "") + STEP,
        "jobs.step.compute job.yml:4",
    ),
    "a default that is serverless": (
        PIPELINE.replace("azureml:cpu-cluster", "serverless") + STEP,
        "settings.default_compute job.yml:2",
    ),
    "a step's identity": (
        PIPELINE + STEP + "    identity: {type: managed}\n",
        "jobs.step.identity job.yml:8",
    ),
    "a field that nobody knows": (
        PIPELINE + "    component: ./c.txt\n    foo: bar\n",
        "jobs.step.foo job.yml:6",
    ),
    "a registered component": (
        PIPELINE + "    type: command\n    component: azureml:c:1\n",
        "jobs.step.component job.yml:6",
    ),
    "a component of a registry": (
        PIPELINE + "    component: azureml://registries/r/components/c/versions/1\n",
        "jobs.step.component job.yml:5",
    ),
    "a parallel step's model": (
        PIPELINE + PARALLEL + "      model: azureml:m:1\n",
        "jobs.step.task.model job.yml:17",
    ),
    "Spark": (
        PIPELINE + "    type: spark\n    code: .\n    entry: {file: a.py}\n"
        "    resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}\n"
        "    conf: {spark.driver.cores: 1, spark.driver.memory: 1g, spark.executor.cores: 1, "
        "spark.executor.memory: 1g, spark.executor.instances: 1}\n",
        "jobs.step.type job.yml:5",
    ),
    "AutoML": (
        "type: automl\ntask: regression\nprimary_metric: r2_score\ntarget_column_name: y\n"
        "training_data: {type: mltable, path: azureml:d:1}\ncompute: azureml:cpu-cluster\n",
        "type job.yml:1",
    ),
}


@pytest.mark.attack("A pull request's job asks for the identity, cluster, data or place of others")
@pytest.mark.parametrize(("text", "where"), REFUSED.values(), ids=REFUSED)
def test_what_a_workflow_does_not_submit(text: str, where: str, tmp_path: Path) -> None:
    default = f"inputs:\n  a: {{type: string, default: '{OTHER_RUN}'}}\n"
    files = {"c.txt": COMPONENT, "d.txt": COMPONENT + default}
    assert where in refused(tmp_path, text, files)


@pytest.mark.attack("A pull request hides what its job asks for in a file of another ending")
@pytest.mark.parametrize(
    "field",
    ["identity: {type: user_identity}", "additional_includes: [../..]", "properties: {a: b}"],
)
def test_a_component_of_any_ending_is_read(field: str, tmp_path: Path) -> None:
    key = field.partition(":")[0]
    files = {"c.txt": COMPONENT + field + "\n", "n.dat": NESTED}
    step = PIPELINE + "    type: command\n    component: file:c.txt\n"
    assert f"jobs.step.component.{key} c.txt:7" in refused(tmp_path, step, files)
    nested = PIPELINE + "    type: pipeline\n    component: ./n.dat\n"
    (found,) = refused(tmp_path, nested, files)
    assert found == f"jobs.step.component.jobs.inner.component.{key} c.txt:7"


def test_what_is_no_job_is_told_as_such(tmp_path: Path) -> None:
    """azure-ai-ml may say nothing of it."""
    (tmp_path / "job.yml").write_text(
        "$schema: https://azuremlschemas.azureedge.net/latest/schedule.schema.json\n"
        "name: s\ntrigger: {type: recurrence, frequency: day, interval: 1}\ncreate_job: a.yml\n"
    )
    (tmp_path / "a.yml").write_text(PIPELINE + STEP)
    spec = load.load(tmp_path / "job.yml")
    (problem,) = workflow_jobs.problems(spec, CLUSTERS, BOUNDS, tmp_path)
    assert problem.code == "not-submitted" and not problem.actual.endswith(": ")
    assert problem.actual.startswith("azure-ai-ml rejects the job: ")


@pytest.mark.attack("A file of a pull request's job names a file of the runner, to be printed")
@pytest.mark.parametrize("where", ["environment", "component", "trial"])
def test_no_file_beyond_the_tree_is_read(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the ending of the file between, and its content is in no message."""
    secret = tmp_path / "home/entries.json"
    secret.parent.mkdir()
    secret.write_text('{"client_assertion": "SECRET"}')
    jobs = tmp_path / "tree/ml/projects/p/jobs"
    jobs.mkdir(parents=True)
    (tmp_path / "tree/pyproject.toml").touch()
    (jobs / "e.txt").write_text(f"image: ubuntu\nname: e\nversion: 1\nconda_file: {secret}\n")
    (jobs / "c.txt").write_text(COMPONENT.replace("azureml:ml-cpu:1", "file:./e.txt"))
    command = COMMAND.replace("azureml:ml-cpu:1", "file:./e.txt")
    text = {
        "environment": f"type: command\ncode: .\n{command}",
        "component": PIPELINE + "    type: command\n    component: ./c.txt\n",
        "trial": PIPELINE + "    type: sweep\n    trial: ./c.txt\n"
        "    objective: {goal: maximize, primary_metric: a}\n"
        "    search_space: {a: {type: choice, values: [1]}}\n"
        "    sampling_algorithm: random\n    limits: {max_total_trials: 2}\n",
    }[where]
    (jobs / "train.yml").write_text(text)
    monkeypatch.chdir(tmp_path / "tree")
    with pytest.raises(UserError) as refused:
        planning.plan(load.load(jobs / "train.yml"))
    assert {problem.code for problem in refused.value.problems} == {"path-escape"}
    assert "SECRET" not in str(refused.value)
