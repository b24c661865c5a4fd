"""Train or choose a run to propose, and compare its model with the champion; register nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ml.backends.base import Backend
from ml.backends.runs import Filter, Run, narrated
from ml.core import documents, repository
from ml.core.errors import Exit, Problem, UserError
from ml.release.comparison import Comparison, versus_champion
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.promotion.gate_check import evaluate, evaluation_plan, writer_of
from ml.release.versions import MODEL, parts
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load

# The job that trains a project with its own settings.
JOB = "jobs/train.yml"
# The name of the model output of every AutoML job; their schema allows no other.
BEST_MODEL = "best_model"


@dataclass(frozen=True)
class ComparedRun:
    """A run, and the comparison of its model with the champion."""

    run: Run
    comparison: Comparison


def try_out(
    backend: Backend, project: str, environment: str, say: Callable[[str], None]
) -> ComparedRun:
    """Train a project, evaluate its model on the same backend, and compare it with the champion.

    `say` receives progress. Raise UserError with exit code 1 if a job fails, and the errors of
    planning and comparing. Nothing is registered.
    """
    desired_state.check_environment(environment)
    target = projects.find(backend.root, project)
    run = train(backend, target, say)
    say(f"{run.name} is trained; evaluating its model")
    evaluated = evaluate(backend, target, evaluation_plan(target, run.outputs[MODEL]), say)
    return ComparedRun(run, versus_champion(backend, target, run, evaluated, environment))


def train(backend: Backend, project: Project, say: Callable[[str], None]) -> Run:
    """Run the project's training job and return the completed run; `say` receives its progress.

    Raise UserError with exit code 1 if it does not complete.
    """
    job = plan(load(project.folder / JOB))
    if refused := backend.refusals(job):
        raise UserError(*refused, exit_code=Exit.CANNOT_HONOUR)
    run = backend.run(job, narrated(say))
    if run.status != "Completed":
        actual = f"the training run {run.name} is {run.status}"
        hint = f"ml runs logs {run.name} --on {backend.name}"
        failed = Problem("training-failed", actual, "Completed", hint, job.place)
        raise UserError(run.error or failed, exit_code=Exit.RUN_FAILED)
    if MODEL not in run.outputs:
        hint = "add the output `model` to the job"
        actual = f"the training run {run.name} has no output `model`"
        raise UserError.with_code("no-model", actual, hint=hint, place=job.place)
    return run


def choose(backend: Backend, project: Project, reference: str | None) -> Run:
    """Return the run to propose: `reference`, or the latest completed sweep or pipeline.

    A sweep is replaced by its best trial, a pipeline by the run that wrote its `model`. Raise
    UserError if there is none, if it did not complete, or if it has no model.
    """
    run = backend.runs.find(reference) if reference else _latest(backend, project)
    if run.trials and run.best is None:
        raise _unfit(run, "has no completed trial")
    if run.steps and run.status == "Completed" and MODEL in run.outputs:
        run = writer_of(backend, run, MODEL)
    elif run.best is not None:
        run = run.trial(run.best)
    if run.status != "Completed":
        raise _unfit(run, f"is {run.status}")
    run = _named_by_pipeline(backend, run)
    if MODEL not in run.outputs and BEST_MODEL in run.outputs:
        run = replace(run, outputs={**run.outputs, MODEL: run.outputs[BEST_MODEL]})
    if MODEL not in run.outputs:
        raise _unfit(run, "has no output `model`")
    return run


def _named_by_pipeline(backend: Backend, run: Run) -> Run:
    """Return the run; if it wrote its pipeline's `model`, its output is renamed to `model`."""
    above = backend.runs.parent(run) if MODEL not in run.outputs else None
    while above is not None:
        if above.steps and MODEL in above.outputs:
            writer = writer_of(backend, above, MODEL)
            return writer if writer.id == run.id else run
        above = backend.runs.parent(above)
    return run


def _latest(backend: Backend, project: Project) -> Run:
    # Runs of the project are those in the experiment of its evaluation job.
    experiment = str(load(project.evaluate).get("experiment_name"))
    completed = Filter(experiment=experiment, statuses=("Completed",))
    candidates = [
        entry.run
        for entry in completed.apply(backend.runs.entries())
        if entry.run.trials or (entry.run.steps and MODEL in entry.run.outputs)
    ]
    if not candidates:
        raise UserError.with_code(
            "no-candidate",
            f"no sweep or pipeline of the experiment `{experiment}` has completed on this machine",
            "a completed one, or a run named with --run",
            f"ml run {_sweep_of(project, experiment)}",
        )
    return max(candidates, key=lambda run: run.started)


def _sweep_of(project: Project, experiment: str) -> str:
    """Return the path of a sweep or pipeline job of that experiment, preferably `sweep.yml`."""
    files = repository.yaml_files(project.folder / "jobs")
    for path in sorted(files, key=lambda path: path.stem != "sweep"):
        job = documents.read(path)
        is_kind = path != project.evaluate and job.get("type") in ("sweep", "pipeline")
        if is_kind and job.get("experiment_name") == experiment:
            return repository.shown(path)
    return repository.shown(project.folder / "jobs") + "/SWEEP.yml"


def _unfit(run: Run, why: str) -> UserError:
    # Steps whose model the pipeline does not output.
    others = "".join(f"--run {part.name}; " for part in parts(run, MODEL) if part != run)
    return UserError.with_code(
        "unsuitable-run",
        f"the run `{run.name}` {why}",
        "a completed run with the output `model`",
        f"{others}name another with --run",
    )
