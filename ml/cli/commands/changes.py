"""`ml smoke`, `ml train`: small and full trainings of the projects that a change touches."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ml.cli.options import AsJson, Environment, On, repeated_on, seconds
from ml.cli.render.output import write_json
from ml.core import repository
from ml.core.errors import Exit, Problem, UserError

# The job spec that a smoke test runs, and its tag with the overrides: `inputs.trees=2 …`.
JOB, TAG = "jobs/train.yml", "smoke"

Projects = Annotated[
    list[str] | None, typer.Argument(help="Folders under ml/projects.", metavar="PROJECT…")
]
Since = Annotated[
    str,
    typer.Option("--base", metavar="REF", help="Projects that changed since this git revision."),
]


def smoke(projects: Projects = None, base: Since = "", as_json: AsJson = False) -> None:
    """Run each project's jobs/train.yml on this machine, with the overrides in its tag `smoke`.

    The tag has the format of `ml run --set`: `smoke: inputs.trees=2 inputs.matches=3`.
    Exit 1 when a run fails.
    """
    results = [_smoke(name) for name in _projects("smoke", projects, base)]
    if as_json:
        write_json(results)
    if any(result["status"] not in {"Completed", "none"} for result in results):
        raise typer.Exit(Exit.RUN_FAILED)


def train(
    projects: Projects = None,
    base: Since = "",
    to: Environment = "local",
    on: On = "local",
    timeout: Annotated[
        str,
        typer.Option(
            metavar="SPAN", help="On Azure: stop waiting after this time, 330m; the job goes on."
        ),
    ] = "",
    unfinished: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="FILE",
            help="On Azure: follow the jobs that this file of an earlier --json has for the same "
            "code, spec and data.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train each project's jobs/train.yml, evaluate the model and compare it with the champion.

    Registers nothing. On Azure, each call submits new jobs, within the limits of workflow jobs.
    Exit 1 when a training or an evaluation fails, or has not ended at the timeout.
    """
    deadline = time.monotonic() + seconds("--timeout", timeout) if timeout else None
    names = _projects("train", projects, base)
    results = [_train(name, to, on, deadline, unfinished, as_json) for name in names]
    if as_json:
        write_json(results)
    if any(result["error"] for result in results):
        raise typer.Exit(Exit.RUN_FAILED)


def _projects(command: str, projects: list[str] | None, base: str) -> Sequence[str]:
    from ml.repository.affected.projects import affected

    if bool(projects) == bool(base):
        expected, hint = "projects, or --base REF", f"for example: ml {command} --base origin/main"
        raise UserError(Problem("no-projects", "name either projects or --base", expected, hint))
    return projects or affected(repository.root(), base).projects


def _train(
    project: str,
    environment: str,
    on: str,
    deadline: float | None,
    unfinished: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """Train one project and return its entry for `ml train --json`.

    `error` is "" on success. An entry with an error has `jobs` only if they are still running, so
    that `--continue` can follow them. Without `as_json`, prints the comparison.
    """
    from ml.backends.base import UNFINISHED, Options, WorkflowRun
    from ml.cli import clusters
    from ml.cli.app import open_backend
    from ml.cli.commands.compare import print_comparison
    from ml.release.promotion.candidate import try_out

    def say(line: str) -> None:
        sys.stderr.write(f"{project}: {line}\n")

    jobs: dict[str, Any] = {}
    if unfinished is not None:  # newest first: it overrides the others
        for training in reversed(clusters.submitted(unfinished, project)):
            jobs |= training
    workflow = WorkflowRun(clusters.names(), clusters.bounds(environment), jobs, deadline=deadline)
    try:
        backend = open_backend(on, Options(say=say, workflow=workflow))
        trained = try_out(backend, project, environment, say)
    except UserError as refused:
        sys.stderr.write(f"{refused}\n")
        result = {"project": project, "run": "", "error": str(refused), "comparison": None}
        goes_on = any(problem.code == UNFINISHED for problem in refused.problems)
        return result | ({"jobs": workflow.jobs} if goes_on else {})
    if not as_json:
        comparison = replace(trained.comparison, missing=())  # a registration adds these
        print_comparison(comparison)
        if comparison.decision is None or comparison.decision.allowed:
            where = "" if environment == "local" else f" --env {environment}"
            words = f"{project} --run {trained.run.name}{where}{repeated_on(on)}"
            typer.echo(f"next: ml release propose {words}", err=True)
    return {
        "project": project,
        "run": trained.run.name,
        "error": "",
        "comparison": trained.comparison.to_json(),
        "jobs": workflow.jobs,
    }


def _smoke(project: str) -> dict[str, Any]:
    """Run the smoke test of one project and return its entry for `ml smoke --json`.

    `status` is the run's status, or "none" if the project has no training job.
    """
    from ml.cli.app import open_backend
    from ml.cli.commands.run import parse_changes
    from ml.cli.render import progress
    from ml.specs.plan import planning
    from ml.specs.sdk import load

    spec = repository.root() / "ml" / "projects" / project / JOB
    if not spec.parent.parent.is_dir():
        actual = f"there is no project ml/projects/{project}"
        raise UserError(Problem("no-such-project", actual, "a folder under ml/projects"))
    if not spec.is_file():
        typer.echo(f"{project}: no {JOB}", err=True)
        return {"project": project, "status": "none"}
    tags = load.load(spec).document.data.get("tags") or {}
    plan = planning.plan(load.load(spec, parse_changes(str(tags.get(TAG, "")).split())))
    backend = open_backend()
    if refusals := backend.refusals(plan):
        raise UserError(*refusals, exit_code=Exit.CANNOT_HONOUR)
    with progress.watching(plan, True) as watch:
        run = backend.run(plan, watch)
    sys.stderr.write(f"{progress.summary(backend, plan, run, False)}\n")
    return {
        "project": project,
        "status": run.status,
        "seconds": round(run.active_s, 1),
        "metrics": run.metrics,
        "error": str(run.error) if run.error else "",
    }
