"""Parallel steps as plans: mini-batches, thresholds and tries, of a step and of a component."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.cli.render.plan_text import as_text
from ml.core.errors import Exit, UserError
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, Parallel, PipelinePlan
from ml.specs.sdk.load import load

STEP = """\
type: pipeline
experiment_name: tests
inputs: {size: 5}
jobs:
  batch:
    type: parallel
    compute: azureml:cpu
    inputs: {rows: {type: uri_folder, path: data}, factor: 3}
    outputs: {scored: {type: uri_file}}
    input_data: ${{inputs.rows}}
    SETTINGS
    task:
      type: run_function
      code: src
      entry_script: file.txt
      environment: azureml:e:1
      program_arguments: --factor ${{inputs.factor}}
      append_row_to: ${{outputs.scored}}
"""
COMPONENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/parallelComponent.schema.json
type: parallel
name: scoring
version: 1
inputs: {rows: {type: uri_folder}, factor: {type: integer, default: 2}}
outputs: {scored: {type: uri_file}}
mini_batch_size: "4"
resources: {instance_count: 2}
mini_batch_error_threshold: 5
input_data: ${{inputs.rows}}
max_concurrency_per_instance: 2
retry_settings: {max_retries: 1, timeout: 30}
task:
  type: run_function
  code: .
  entry_script: score.py
  environment: {image: python, conda_file: ../conda.yml}
  program_arguments: --factor ${{inputs.factor}}
  append_row_to: ${{outputs.scored}}
"""


def planned(repo: Path, text: str) -> CommandPlan:
    """The plan of the one step."""
    (repo / "pipeline.yml").write_text(text)
    pipeline = plan(load(Path("pipeline.yml")))
    assert isinstance(pipeline, PipelinePlan)
    assert "mini-batches" in as_text(pipeline)
    step = pipeline.steps["batch"].plan
    assert isinstance(step, CommandPlan)
    return step


def task(repo: Path, settings: str = "mini_batch_size: '5'") -> Parallel:
    """What a step with these settings says of its mini-batches."""
    mini_batches = planned(repo, STEP.replace("SETTINGS", settings)).parallel
    assert mini_batches is not None
    return mini_batches


def refused(repo: Path, settings: str, script: str = "file.txt") -> UserError:
    """The refusal of a step with these settings."""
    with pytest.raises(UserError) as error:
        planned(repo, STEP.replace("SETTINGS", settings).replace("file.txt", script))
    return error.value


def test_a_step_of_its_own(repo: Path) -> None:
    """Defaults are the documents'; the command is the arguments of the entry script."""
    step = planned(repo, STEP.replace("SETTINGS", "resources: {instance_count: 2}"))
    assert step.command == "--factor ${{inputs.factor}}"
    assert (step.code, step.instance_count) == (repo / "src", 2)
    assert step.environment.reference == "azureml:e:1"
    assert step.parallel is not None
    place = step.parallel.place
    assert step.parallel == Parallel("file.txt", "rows", place, append_row_to="scored")
    assert (step.parallel.max_retries, step.parallel.run_timeout_s) == (2, 60)
    assert (step.parallel.error_threshold, step.parallel.mini_batch_error_threshold) == (-1, -1)
    assert str(place) == "pipeline.yml:12"


def test_a_component(repo: Path) -> None:
    """The step's settings stand over the component's; its code and environment are found by it."""
    (repo / "components").mkdir()
    (repo / "components" / "score.py").write_text("def run(batch): return batch\n")
    (repo / "components" / "scoring.yml").write_text(COMPONENT)
    text = (
        "type: pipeline\nexperiment_name: tests\njobs:\n  batch:\n    type: parallel\n"
        "    component: ./components/scoring.yml\n    compute: azureml:cpu\n"
        "    inputs: {rows: {type: uri_folder, path: data}}\n"
        "    mini_batch_error_threshold: 10\n    retry_settings: {max_retries: 3}\n"
        "    environment_variables: {WHO: me}\n"
    )
    step = planned(repo, text)
    assert step.parallel is not None
    mini_batches = step.parallel
    assert (mini_batches.mini_batch_size, mini_batches.max_concurrency_per_instance) == (4, 2)
    assert (mini_batches.mini_batch_error_threshold, mini_batches.max_retries) == (10, 3)
    assert mini_batches.run_timeout_s == 30
    assert (step.instance_count, step.environment_variables) == (2, {"WHO": "me"})
    assert step.code == repo / "components"
    assert step.environment.conda_file == repo / "conda.yml"
    assert step.inputs["factor"].value == 2


@pytest.mark.parametrize(
    ("written", "size"), [("'7'", 7), ("10kb", 10240), ("'2MB'", 2 << 20), ("1gb", 1 << 30)]
)
def test_sizes(repo: Path, written: str, size: int) -> None:
    """A number of files, or of bytes with azure-ai-ml's factors."""
    assert task(repo, f"mini_batch_size: {written}").mini_batch_size == size


def test_partition_keys(repo: Path) -> None:
    """They stand beside a size, and it is for the backend to prefer them."""
    mini_batches = task(repo, "partition_keys: [Store, Brand]\n    mini_batch_size: '2'")
    assert mini_batches.partition_keys == ("Store", "Brand")


def test_a_missing_entry_script_is_refused(repo: Path) -> None:
    """On its line, before anything runs."""
    error = refused(repo, "mini_batch_size: '1'", "no.py")
    (problem,) = error.problems
    assert (problem.code, str(problem.place)) == ("missing-script", "pipeline.yml:15")
    assert error.exit_code == Exit.WRONG_CALL


def test_unsupported_tasks_are_refused(repo: Path) -> None:
    """A number from an input of the pipeline is read too late here: 33, with its line."""
    text = STEP.replace("SETTINGS", "retry_settings: {max_retries: '${{parent.inputs.size}}'}")
    (repo / "pipeline.yml").write_text(text)
    (problem,) = plan(load(Path("pipeline.yml"))).not_here
    assert problem.code == "unsupported-step" and str(problem.place) == "pipeline.yml:11"
