"""`ml affected`, `ml smoke`: what a change touches, and a small run of the projects it touches."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ml.cli.options import AsJson
from ml.cli.render.output import write_json
from ml.core import repository
from ml.core.errors import Exit, Problem, Refused

# The job that a smoke test runs, and the tag of it that makes it small: `inputs.trees=2 …`.
JOB, TAG = "jobs/train.yml", "smoke"

Base = Annotated[str, typer.Option(metavar="REF", help="A git revision, such as origin/main.")]


def affected(base: Base, as_json: AsJson = False) -> None:
    """List what a change touches: projects, stacks, policies, environments, framework folders.

    The change is everything since the commit that HEAD and REF share, uncommitted files included.
    """
    from ml.repository.affected import affected, as_text

    result = affected(repository.root(), base)
    if as_json:
        write_json(asdict(result))
    else:
        typer.echo(as_text(result))


def smoke(
    projects: Annotated[
        list[str] | None, typer.Argument(help="Folders under ml/projects.", metavar="PROJECT…")
    ] = None,
    base: Annotated[
        str, typer.Option(metavar="REF", help="Those that differ from this git revision.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run each project's jobs/train.yml on this machine, small by its tag `smoke`.

    The tag holds changes as `ml run --set` takes them: `smoke: inputs.trees=2 inputs.matches=3`.
    Exit 1 when a run fails.
    """
    from ml.repository.affected import affected

    if bool(projects) == bool(base):
        expected, hint = "projects, or --base REF", "for example: ml smoke --base origin/main"
        raise Refused(Problem("no-projects", "there is nothing to run", expected, hint))
    names = projects or affected(repository.root(), base).projects
    results = [_smoke(name) for name in names]
    if as_json:
        write_json(results)
    if any(result["status"] not in {"Completed", "none"} for result in results):
        raise typer.Exit(Exit.RUN_FAILED)


def _smoke(project: str) -> dict[str, Any]:
    """The outcome of one project: `status` is that of the run, "none" without a training job."""
    from ml.backends.choice import open_backend
    from ml.cli.commands.run import parse_changes
    from ml.cli.render import progress
    from ml.specs.plan import planning
    from ml.specs.sdk import load

    spec = repository.root() / "ml" / "projects" / project / JOB
    if not spec.parent.parent.is_dir():
        raise Refused(Problem("no-such-project", f"ml/projects/{project}", "a folder with a model"))
    if not spec.is_file():
        typer.echo(f"{project}: no {JOB}", err=True)
        return {"project": project, "status": "none"}
    tags = load.load(spec).document.data.get("tags") or {}
    plan = planning.plan(load.load(spec, parse_changes(str(tags.get(TAG, "")).split())))
    backend = open_backend()
    if refusals := backend.refusals(plan):
        raise Refused(*refusals, exit_code=Exit.CANNOT_HONOUR)
    with progress.watching(plan, False) as watch:
        run = backend.run(plan, watch)
    sys.stderr.write(f"{progress.summary(backend, plan, run, False)}\n")
    return {
        "project": project,
        "status": run.status,
        "seconds": round(run.active_s, 1),
        "metrics": run.metrics,
        "error": str(run.error) if run.error else "",
    }
