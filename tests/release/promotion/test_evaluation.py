"""A project's evaluation that is a pipeline: what is measured beside the model is a step of it."""

from __future__ import annotations

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import UserError
from ml.release.declaration import projects
from ml.release.evidence import evidence
from ml.release.promotion import gate_check
from ml.release.promotion.propose import propose
from tests.local import BACKEND
from tests.release.conftest import World

EVALUATE = """
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
experiment_name: tiny
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
  model: {type: custom_model, path: "azureml:tiny@latest"}
outputs:
  evaluation: {type: uri_folder}
settings: {default_compute: "azureml:cpu-cluster"}
jobs:
  recipe:
    type: command
    command: cp ${{inputs.data}}/questions.csv ${{outputs.baseline}}
    environment: azureml:ml-cpu:1
    inputs: {data: "${{parent.inputs.data}}"}
    outputs: {baseline: {type: uri_folder}}
  evaluate:
    type: command
    code: ..
    command: >-
      test -f ${{inputs.baseline}}/questions.csv && python evaluate.py --data ${{inputs.data}}
      --model ${{inputs.model}} --evaluation ${{outputs.evaluation}}
    environment: azureml:ml-cpu:1
    inputs:
      data: ${{parent.inputs.data}}
      model: ${{parent.inputs.model}}
      baseline: ${{parent.jobs.recipe.outputs.baseline}}
    outputs: {evaluation: "${{parent.outputs.evaluation}}"}
"""


@pytest.fixture
def pipeline(world: World) -> World:
    """The tiny project with such an evaluation."""
    (world.project.root / "ml/projects/tiny/jobs/evaluate.yml").write_text(EVALUATE)
    return world


def test_the_second_model_takes_the_recipe_over(pipeline: World) -> None:
    """The step that evaluated is the evidence's; data are what came from outside, as assets."""
    first = propose(BACKEND, "tiny", pipeline.run(0.8))
    assert first.decision.allowed, first.decision
    lineage = first.evidence.lineage
    assert lineage is not None
    done = next(run for run in LocalRuns().all() if run.steps)
    assert [step.reused_from for step in done.steps] == ["", ""]
    assert lineage.evaluation_run == done.step("evaluate").id
    assert set(first.evidence.data) == {"data"}
    assert propose(BACKEND, "tiny", pipeline.run(0.95)).decision.allowed
    again = next(run for run in LocalRuns().all() if run.steps and run.name != done.name)
    assert again.step("recipe").reused_from == done.step("recipe").name
    assert not again.step("evaluate").reused_from


def test_what_was_evaluated_is_recalled(pipeline: World) -> None:
    """Another run with the same model: no new run, the step with the same outputs."""
    project, model = projects.find(BACKEND.root, "tiny"), pipeline.runs[0.8].outputs["model"]
    evaluation = gate_check.evaluation_plan(project, model)
    assert BACKEND.cached(evaluation, "evaluation") is None
    run = gate_check.evaluate(BACKEND, project, evaluation)
    before = len(list(LocalRuns().all()))
    found = BACKEND.cached(evaluation, "evaluation")
    assert found is not None and found.id == run.id and len(list(LocalRuns().all())) == before
    first, again = (evidence.evaluation_of(each) for each in (run, found))
    assert first == again and first.model == "tiny"


def test_a_step_that_fails_fails_the_evaluation(pipeline: World) -> None:
    """The step is named, and nothing is registered."""
    path = pipeline.project.root / "ml/projects/tiny/jobs/evaluate.yml"
    path.write_text(EVALUATE.replace("cp ${{inputs.data}}/questions.csv", "false"))
    with pytest.raises(UserError) as refused:
        propose(BACKEND, "tiny", pipeline.run(0.8))
    assert "step `recipe` failed" in refused.value.problems[0].actual
    assert refused.value.problems[0].hint
