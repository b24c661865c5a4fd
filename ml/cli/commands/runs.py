"""`ml runs list | show | logs | open | cancel | resume | clean`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ml.backends.storage import size_of
from ml.cli.app import open_backend
from ml.cli.options import (
    AsJson,
    Experiment,
    On,
    Project,
    RunName,
    Since,
    moment,
    repeated_on,
)
from ml.cli.render.output import align, write_json, write_table
from ml.core.errors import Problem, UserError
from ml.core.terminal import printable

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.backends.runs import Entry, RunStore

app = typer.Typer(no_args_is_help=True)

RunNames = Annotated[list[str], typer.Argument(metavar="RUN…", help="Names or ids.")]


@app.command("list")
def list_(
    experiment: Experiment = None,
    project: Project = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Completed, Failed, Canceled, Running; repeatable.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of runs; 0 for all.")] = 20,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""
    from ml.cli.render import runs_text

    backend = open_backend(on)
    # Fetch one more than the limit, to know whether there are others.
    most = limit + 1 if limit else 0
    entries = _filtered(backend, experiment, project, since, status, most)
    page = entries[:limit] if limit else entries
    if as_json:
        write_json([runs_text.list_json(entry) for entry in page])
        return
    if not entries:
        is_filtered = any((experiment, project, status, since))
        everything = f"no run passes the filters; all runs: ml runs list{repeated_on(on)}"
        message = everything if is_filtered else "no run; start one: ml run SPEC" + repeated_on(on)
        typer.echo(message, err=True)
        return
    swept = [entry for entry in reversed(entries) if entry.objective]
    primary = {entry.run.experiment: entry.objective[0] for entry in swept if entry.objective}
    rows = [runs_text.row(entry, primary) for entry in page]
    write_table(runs_text.COLUMNS, rows)
    if len(page) < len(entries):
        of_all = (
            f"{len(page)} of {len(entries)}" if backend.runs.records else f"the {len(page)} latest"
        )
        typer.echo(f"{of_all} runs; all: --limit 0", err=True)


@app.command()
def show(
    run: RunName = "latest",
    experiment: Experiment = None,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Show a run and its lineage: data, code, run, model versions, where they serve."""
    from ml.backends.runs import OPEN
    from ml.cli.render import runs_text
    from ml.release.versions import descendants

    backend = open_backend(on)
    entry = _entry(backend.runs, run, experiment)
    versions = descendants(backend, entry.run)
    parent = backend.runs.parent(entry.run)
    if as_json:
        write_json(
            {
                **runs_text.run_json(backend, entry.run),
                "kind": entry.kind,
                "project": entry.project,
                "part_of": parent.name if parent else None,
                "bytes": size_of(entry.run.folder),
                "lineage": entry.lineage,
                "code_kept": entry.snapshot,
                "models": versions,
            }
        )
        return
    lines = runs_text.run_lines(backend, entry, parent.name if parent else "", versions)
    typer.echo(align((label, printable(text)) for label, text in lines))
    for problem in (*((entry.run.error,) if entry.run.error else ()), *entry.run.warnings):
        typer.echo(str(problem), err=True)
    if entry.run.status in OPEN:
        typer.echo(f"follow it: ml runs logs --follow {entry.run.name}{repeated_on(on)}", err=True)


@app.command()
def logs(
    run: RunName = "latest",
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    rank: Annotated[
        str,
        typer.Option(
            help="The log of this process alone: 0, 1 … or ps_0; process_0 of a parallel step."
        ),
    ] = "0",
    on: On = "local",
) -> None:
    """Print the log of a run; of a sweep or a pipeline, each trial's and step's under its name."""
    from ml.cli.render.logs import write

    store = open_backend(on).runs
    if not write(store, store.find(run), tail, follow, rank, repeated_on(on)):
        typer.echo("it printed nothing", err=True)


@app.command("open")
def open_(
    run: RunName = "latest",
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the addresses; open no browser.")
    ] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Open a run's page in Azure ML's studio, its report and its services in the browser.

    Prints their addresses, too; with --json it only prints. A job on Azure has the services of its
    spec: Jupyter, TensorBoard, VS Code, SSH.
    """
    from ml.cli.render import links

    backend = open_backend(on)
    addresses = links.links(backend, backend.runs.find(run))
    if as_json:
        write_json(addresses)
        return
    if lines := [(printable(label), printable(text)) for label, text in addresses.lines()]:
        typer.echo(align(lines))
    if addresses.report is None:
        typer.echo(f"no report yet; write it: {addresses.report_command}", err=True)
    if not print_only and links.has_desktop():
        links.open_in_browser(addresses)


@app.command()
def cancel(run: RunNames, on: On = "local", as_json: AsJson = False) -> None:
    """Cancel runs and the processes that they started; keep their outputs."""
    from ml.cli.render.runs_text import outcome, run_json

    backend = open_backend(on)
    ended = [backend.cancel(name) for name in run]
    if as_json:
        write_json([run_json(backend, canceled) for canceled in ended])
        return
    for canceled in ended:
        typer.echo(f"{canceled.name}: {outcome(canceled)}", err=True)


@app.command()
def resume(
    run: RunName,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="New time limit of a sweep, including the time before.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the summary.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Resume a run that was killed, interrupted or ended by a full disk.

    A command starts again, as on a spot node. Completed trials and steps are kept; interrupted ones
    run again. All have the plan and the code of the first start, and find their mounted outputs,
    such as checkpoints.
    """
    from ml.cli.render import progress
    from ml.cli.render.runs_text import run_json

    backend = open_backend(on)
    if (resumption := backend.resumption) is None:
        name = backend.runs.find(run).name
        actual = f"{name} is a run of `{on}`, which this command cannot resume"
        hint = f"ml runs logs --follow {name} --on {on}, or ml run SPEC --on {on} --again"
        raise UserError(Problem("not-resumable", actual, "a run of this machine", hint))
    original = resumption.find(run)
    plan = resumption.plan_of(original, timeout)
    if original.status == "Completed":
        typer.echo(f"{original.name} is complete: there is nothing to resume", err=True)
        ended = original
    else:
        with progress.watching(plan, not quiet and not as_json) as watch:
            ended = resumption.resume(
                original, watch, timeout, lambda line: typer.echo(line, err=True)
            )
    if as_json:
        write_json(run_json(backend, ended))
    elif ended is not original:
        typer.echo(progress.summary(backend, plan, ended), err=True)
    raise typer.Exit(ended.exit_code)


@app.command()
def clean(
    keep: Annotated[int | None, typer.Option(min=0, help="Keep only the N newest runs.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Remove runs that ended before: 7d.")
    ] = None,
    experiment: Experiment = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Free disk space: remove the runs that the options select, and unreferenced copies.

    What a registered version, a declared release, a live endpoint or a running run needs stays.
    The metrics of removed runs stay in MLflow's store.
    """
    from ml.cli import disk

    before = moment("--older-than", older_than) if older_than else None
    disk.clean(
        open_backend(on), keep, before, experiment, dry_run=dry_run, yes=yes, as_json=as_json
    )


def _filtered(
    backend: Backend,
    experiment: str | None,
    project: str | None,
    since: str | None,
    status: list[str] | None,
    most: int,
) -> list[Entry]:
    """Return the runs that pass the filters, latest first.

    A backend without local records (Azure) fetches at most `most` of them; 0 for all.
    """
    from ml.backends.runs import STATUSES, Filter

    statuses = {name.lower(): name for name in STATUSES}
    for text in status or []:
        if text.lower() not in statuses:
            expected = f"one of: {', '.join(statuses.values())}"
            raise UserError(Problem("no-such-status", f"--status {text}", hint=expected))
    wanted = Filter(
        experiment=experiment,
        project=project,
        statuses={statuses[text.lower()] for text in status or []},
        since=moment("--since", since) if since else None,
    )
    if (records := backend.runs.records) is None:
        return backend.runs.newest(wanted, most)
    entries = backend.runs.entries()
    for name in records.unreadable(entries):
        repair = f"ml runs resume {name}{repeated_on(backend.name)}"
        typer.echo(f"{name} has a record that cannot be read: {repair}", err=True)
    return wanted.apply(entries)


def _entry(store: RunStore, wanted: str, experiment: str | None = None) -> Entry:
    """Return a run with its logged parameters and, if it has not ended, its current metrics."""
    from ml.backends.runs import OPEN, TrackingUnavailable

    run = store.find(wanted, experiment)
    if run.status in OPEN:
        with suppress(TrackingUnavailable):
            run = replace(run, metrics=store.metrics(run))
    with suppress(TrackingUnavailable):
        run = replace(run, parameters=store.parameters(run))
    return store.entry(run)
