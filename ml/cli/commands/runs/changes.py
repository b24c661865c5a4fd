"""`ml runs cancel | resume | keep | clean`: what changes runs of this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.options import AsJson, Experiment, On, RunName
from ml.cli.render import json_out
from ml.core.errors import Exit


def cancel(
    run: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names or ids.")],
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """End runs that go on, with all that they started; what they wrote is kept."""
    from ml.cli.render import live

    backend = open_backend(on)
    ended = [backend.cancel(name) for name in run]
    if as_json:
        json_out.write([json_out.plain(live.as_json(backend, canceled)) for canceled in ended])
        return
    for canceled in ended:
        typer.echo(f"{canceled.name}: {live.outcome(canceled)}", err=True)


def resume(
    run: RunName,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Another limit for a sweep: all its time, also that before.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the summary.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Go on with a sweep or a pipeline that was killed, interrupted or failed for want of room.

    What had come to its end is kept; what was cut off runs again. The plan, the code and the data
    are those that it was begun with.
    """
    from ml.cli.render import live

    backend = open_backend(on)
    original = backend.resumable(run)
    plan = backend.resume_plan(original, timeout)
    if original.status == "Completed":
        typer.echo(f"{original.name} is complete: there is nothing to go on with", err=True)
        ended = original
    else:
        with live.watching(plan, not quiet and not as_json) as watch:
            ended = backend.resume(original, watch, timeout, _say)
    if as_json:
        json_out.write(json_out.plain(live.as_json(backend, ended)))
    elif ended is not original:
        sys.stderr.write(f"{live.summary(backend, plan, ended)}\n")
    raise typer.Exit(Exit.DONE if ended.status == "Completed" else Exit.RUN_FAILED)


def keep(
    run: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names or ids.")],
    undo: Annotated[bool, typer.Option("--undo", help="Protect them no more.")] = False,
    on: On = "local",
) -> None:
    """Protect runs: their outputs never make room for others, and `clean` leaves them."""
    backend = open_backend(on)
    for protected in [backend.runs.find(name) for name in run]:
        backend.storage.keep(protected, not undo)
        state = "may make room for others again" if undo else "is protected; --undo ends that"
        typer.echo(f"{protected.name} {state}", err=True)


def clean(
    keep: Annotated[
        int | None, typer.Option(min=0, help="Runs beyond the latest so many go.")
    ] = None,
    older_than: Annotated[str | None, typer.Option(help="Runs that ended before go: 7d.")] = None,
    experiment: Experiment = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say it; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Make room: runs that are asked for, and copies that nothing refers to any more.

    What a registered version, a declared release, a live endpoint or a running run needs stays.
    The metrics of removed runs stay in MLflow's store.
    """
    from ml.cli.commands.runs.clean import clean as go
    from ml.cli.render.units import moment

    before = moment("--older-than", older_than) if older_than else None
    go(open_backend(on), keep, before, experiment, dry_run=dry_run, yes=yes, as_json=as_json)


def _say(line: str) -> None:
    typer.echo(line, err=True)
