"""The project's jobs, held against each other: several files say the same things."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, PipelinePlan, SweepPlan
from ml.specs.sdk.load import load

JOBS = Path(__file__).parents[3] / "ml/projects/faq_matching/jobs"


@pytest.fixture(scope="module")
def pipeline() -> PipelinePlan:
    """The pipeline that `make demo` runs."""
    job_plan = plan(load(JOBS / "pipeline.yml"))
    assert isinstance(job_plan, PipelinePlan)
    return job_plan


@pytest.mark.parametrize("name", ["sweep-random.yml", "sweep-bayesian.yml"])
def test_every_sweep_has_one_space(name: str, pipeline: PipelinePlan) -> None:
    """The space and the trial's command of each sweep are those of the pipeline's."""
    alone, step = plan(load(JOBS / name)), pipeline.steps["sweep"].plan
    assert isinstance(alone, SweepPlan) and isinstance(step, SweepPlan)

    def space(sweep: SweepPlan) -> dict[str, tuple[str, tuple[object, ...]]]:
        return {key: (choice.kind, choice.args) for key, choice in sweep.search_space.items()}

    assert space(alone) == space(step)
    words = step.trial.command.replace("$[[", "").replace("]]", "").split()
    assert alone.trial.command.split() == words
    assert (alone.primary_metric, alone.goal) == (step.primary_metric, step.goal)


@pytest.mark.parametrize("step", ["recipe", "evaluate"])
def test_the_pipeline_evaluates_as_a_proposal_does(
    step: str, pipeline: PipelinePlan, tmp_path: Path
) -> None:
    """What `ml release propose` would run is what the pipeline ran: it is taken over."""
    proposed = plan(load(JOBS / "evaluate.yml", {"inputs.model": str(tmp_path)}))
    assert isinstance(proposed, PipelinePlan)
    alone, ran = proposed.steps[step].plan, pipeline.steps[step].plan
    assert isinstance(alone, CommandPlan) and isinstance(ran, CommandPlan)

    def matters(job: CommandPlan) -> list[object]:
        ports = (sorted(job.inputs), {name: out.type for name, out in job.outputs.items()})
        return [job.command, job.code, job.environment.reference, job.environment_variables, ports]

    assert matters(alone) == matters(ran)


def test_the_recipe_waits_for_no_model(pipeline: PipelinePlan) -> None:
    """It knows nothing of the sweep, so the two run side by side and it is reused by itself."""
    assert pipeline.steps["recipe"].after == ("prepare",)
    assert set(pipeline.steps["recipe"].plan.inputs) == {"faq"}
