"""A candidate before it is registered: train a project, evaluate its model, compare it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ml.backends.base import Backend
from ml.backends.runs import Run
from ml.core.errors import Exit, Problem, Refused
from ml.release.comparison import Comparison, versus_champion
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.promotion.gate_check import evaluate
from ml.release.versions import MODEL
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load

# The job that trains a project with its own settings.
JOB = "jobs/train.yml"


@dataclass(frozen=True)
class Candidate:
    """A run with a model, and the model beside the champion."""

    run: Run
    comparison: Comparison


def try_out(
    backend: Backend, project: str, environment: str, say: Callable[[str], None]
) -> Candidate:
    """Train a project, evaluate its model there too, and compare it with the champion.

    `say` gets progress. Raises Refused with exit code 1 when a job fails, and as planning and
    comparing do. Nothing is registered.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    run = train(backend, target)
    say(f"{run.name} is trained; evaluating its model")
    evaluated = evaluate(backend, target, run.outputs[MODEL])
    return Candidate(run, versus_champion(backend, target, run, evaluated, environment))


def train(backend: Backend, project: Project) -> Run:
    """A completed run of the project's training job; raises Refused with exit code 1 otherwise."""
    job = plan(load(project.folder / JOB))
    if refused := backend.refusals(job):
        raise Refused(*refused, exit_code=Exit.CANNOT_HONOUR)
    run = backend.run(job)
    if run.status != "Completed":
        failed = Problem("training-failed", f"{run.name} is {run.status}", place=job.place)
        raise Refused(run.error or failed, exit_code=Exit.RUN_FAILED)
    if MODEL not in run.outputs:
        expected = "an output `model` of the job"
        raise Refused(Problem("no-model", f"{run.name} has no model", expected, place=job.place))
    return run
