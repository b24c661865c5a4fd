"""Every rule also applies to the files and the parts that a spec names, at their own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.specs.broken import COMMAND, DEPLOYMENT, LIMITS, SPACE
from tests.specs.conftest import Check

# A component with a fault (line 6), and an environment with one (line 5).
COMPONENT = """\
type: command
name: leaf
command: echo hello
environment: azureml:e:1
resources:
  instance_count: 0
"""
ENVIRONMENT = """\
name: broken
image: i:1
conda_file:
  dependencies: [numpy]
  variables: {A: b}
"""
INNER = "type: pipeline\nname: inner\njobs: {leaf: {type: command, component: ./leaf.part}}\n"
BATCH = "$schema: https://azuremlschemas.azureedge.net/latest/batchDeployment.schema.json\n"
PIPELINE = "type: pipeline\ncompute: azureml:c\njobs:\n"
SWEEP = "objective: {goal: maximize, primary_metric: gain}\n" + SPACE + LIMITS
TASK = (
    "    task:\n      type: run_function\n      code: src\n      entry_script: file.txt\n"
    "      environment: file:environment.part\n"
)
CASES = {
    "step": ("leaf.part:6", PIPELINE + "  a: {type: command, component: ./leaf.part}\n"),
    "nested": ("leaf.part:6", PIPELINE + "  a: {type: pipeline, component: ./inner.part}\n"),
    "step-inline": (
        "spec.yml:11",
        PIPELINE + "  a:\n    component:\n      "
        "" + COMPONENT.replace("\n", "\n      ").rstrip() + "\n",
    ),
    "schedule": (
        "leaf.part:6",
        "name: s\ntrigger: {type: cron, expression: 0 * * * *}\ncreate_job:\n"
        "  type: pipeline\n  jobs: {a: {type: command, component: ./leaf.part}}\n",
    ),
    "batch-component": (
        "leaf.part:6",
        BATCH + "name: one\nendpoint_name: words\ntype: pipeline\ncomponent: file:inner.part\n",
    ),
    "trial": ("leaf.part:6", "type: sweep\ntrial: file:leaf.part\n" + SWEEP),
    "environment": ("environment.part:5", COMMAND.replace("azureml:e:1", "file:environment.part")),
    "environment-of-deployment": (
        "environment.part:5",
        DEPLOYMENT + "environment: file:environment.part\n",
    ),
    "environment-of-batch": (
        "environment.part:5",
        BATCH + "name: one\nendpoint_name: words\nmodel: azureml:m:1\n"
        "environment: file:environment.part\n",
    ),
    "environment-of-component": (
        "environment.part:5",
        PIPELINE + "  a: {type: command, component: ./around-environment.part}\n",
    ),
    "environment-of-parallel": (
        "environment.part:5",
        PIPELINE + "  a:\n    type: parallel\n    inputs: {rows: {type: uri_folder, path: data}}\n"
        "    input_data: ${{inputs.rows}}\n" + TASK,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reference(name: str, repo: Path, problems: Check) -> None:
    """An error in what is named stops the spec, and has the line where it is written."""
    place, text = CASES[name]
    (repo / "leaf.part").write_text(COMPONENT)
    (repo / "inner.part").write_text(INNER)
    (repo / "environment.part").write_text(ENVIRONMENT)
    (repo / "around-environment.part").write_text(
        "type: command\nname: x\ncommand: echo\nenvironment: file:environment.part\n"
    )
    actual = [(str(problem.place), problem.code) for problem in problems(text)]
    code = "bad-conda-file" if place.startswith("environment") else "number-out-of-range"
    assert (place, code) in actual, actual
