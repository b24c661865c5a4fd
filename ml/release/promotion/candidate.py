"""The run to propose, and the evaluation of its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.runs import Filter, Run, Watch, unwatched
from ml.core import documents, repository
from ml.core.errors import Exit, Problem, Refused
from ml.release.declaration.projects import Project
from ml.release.versions import EVALUATION, MODEL
from ml.specs.plan.plan import CommandPlan, PipelinePlan, SweepPlan
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load


def evaluation_plan(project: Project, model: Path) -> CommandPlan | PipelinePlan:
    """The project's evaluate.yml with its `model` set; Refused for another kind of job."""
    evaluation = plan(load(project.evaluate, {f"inputs.{MODEL}": str(model)}))
    if isinstance(evaluation, SweepPlan) or EVALUATION not in evaluation.outputs:
        raise Refused(
            Problem(
                "not-an-evaluation",
                "this job has no output `evaluation`",
                "a command or pipeline job with the input `model` and the output `evaluation`",
                place=evaluation.place,
            )
        )
    return evaluation


def choose(backend: Backend, project: Project, reference: str | None) -> Run:
    """The run to propose: the one asked for, else the latest sweep or pipeline that completed.

    A sweep stands for its best trial, and a pipeline for the run that wrote its `model`. Raises
    Refused when there is none, when it did not complete, or when it left no model.
    """
    run = backend.runs.find(reference) if reference else _latest(backend, project)
    if run.trials and run.best is None:
        raise _unfit(run, "has no completed trial")
    if run.steps and run.status == "Completed" and MODEL in run.outputs:
        run = _writer(backend, run, MODEL)
    if run.trials and run.best is not None:
        run = run.trial(run.best)
    if run.status != "Completed":
        raise _unfit(run, f"is {run.status}")
    if MODEL not in run.outputs:
        raise _unfit(run, "has no output `model`")
    return run


def _writer(backend: Backend, pipeline: Run, output: str) -> Run:
    """The step (the trial, of a sweep) that wrote the pipeline's output; the first to do so."""
    wrote = pipeline.outputs[output].resolve()
    for run in pipeline.below():
        if output in run.outputs and run.outputs[output].resolve() == wrote and not run.steps:
            if not run.reused_from:
                return run
            try:
                return backend.runs.find(run.reused_from)
            except Refused:  # cleaned away since: the step that took it over has all that it had
                return run
    return pipeline


def evaluated_before(backend: Backend, project: Project, model: Path) -> Run | None:
    """A pipeline's step that was this evaluation of this model; None when there is none.

    Command, code, environment and data are the same by content, so a new run would give the same
    result.
    """
    return backend.cached(evaluation_plan(project, model), EVALUATION)


def evaluate(backend: Backend, project: Project, model: Path, watch: Watch = unwatched) -> Run:
    """Run the project's evaluation of a model; raises Refused with exit code 1 when it fails."""
    evaluation = evaluation_plan(project, model)
    if refused := backend.refusals(evaluation):
        raise Refused(*refused, exit_code=Exit.CANNOT_HONOUR)
    run = backend.run(replace(evaluation, display_name=f"evaluate {project.name}"), watch)
    if run.status != "Completed":
        why = run.error or Problem("evaluation-failed", f"{run.name} is {run.status}")
        hint = f"its log: {run.folder / 'logs' / 'std_log.txt'}"
        raise Refused(replace(why, hint=why.hint or hint), exit_code=Exit.RUN_FAILED)
    return _writer(backend, run, EVALUATION) if run.steps else run


def _latest(backend: Backend, project: Project) -> Run:
    # A run belongs to the project when its experiment is that of the evaluation.
    experiment = str(load(project.evaluate).get("experiment_name"))
    completed = Filter(experiment=experiment, statuses=("Completed",))
    candidates = [
        entry.run
        for entry in completed.apply(backend.runs.entries())
        if entry.run.trials or (entry.run.steps and MODEL in entry.run.outputs)
    ]
    if not candidates:
        raise Refused(
            Problem(
                "no-candidate",
                f"no sweep or pipeline of the experiment `{experiment}` has completed on this "
                "machine",
                "a completed one, or a run named with --run",
                f"ml run {_sweep_of(project)}",
            )
        )
    return max(candidates, key=lambda run: run.started)


def _sweep_of(project: Project) -> str:
    """The path of a sweep or pipeline job of the project, for a hint."""
    for path in repository.yaml_files(project.folder / "jobs"):
        if path != project.evaluate and documents.read(path, repository.shown(path)).get(
            "type"
        ) in (
            "sweep",
            "pipeline",
        ):
            return repository.shown(path)
    return repository.shown(project.folder / "jobs") + "/SWEEP.yml"


def _unfit(run: Run, why: str) -> Refused:
    return Refused(
        Problem(
            "unfit-run",
            f"the run `{run.name}` {why}",
            "a completed run with the output `model`",
            "name another with --run",
        )
    )
