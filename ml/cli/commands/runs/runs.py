"""`ml runs list | show | logs | diff | best | …`: the runs of this machine at hand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.commands.runs import changes
from ml.cli.options import AsJson, Experiment, On, Project, RunName, Since
from ml.cli.render import json_out
from ml.core.errors import Problem, Refused

if TYPE_CHECKING:
    from ml.backends.runs import Entry, RunStore

NO_RUN = "no run; start one: ml run SPEC"

app = typer.Typer(help="The runs of this machine.", no_args_is_help=True)


@app.command("list")
def list_(
    experiment: Experiment = None,
    project: Project = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Completed, Failed, Canceled, Running; repeatable.")
    ] = None,
    since: Since = None,
    display_name: Annotated[
        str | None, typer.Option(help="Of this `display_name` alone; else the spec's file name.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="With this tag of the spec; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = 20,
    with_size: Annotated[bool, typer.Option("--size", help="What each takes on the disk.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """The runs, the latest first."""
    from ml.cli import disk_limit
    from ml.cli.render import runs_text, tables, units

    backend = open_backend(on)
    storage = backend.storage
    entries = _filtered(backend.runs, experiment, project, since, status, display_name, tag)
    page = entries[:limit] if limit else entries
    if as_json:
        sizes = [{"bytes": storage.size(entry.run)} if with_size else {} for entry in page]
        lines = [runs_text.as_json(entry) | size for entry, size in zip(page, sizes, strict=True)]
        json_out.write(lines)
        return
    if not entries:
        is_filtered = any((experiment, project, status, since, display_name, tag))
        message = "no run passes the filters; all: ml runs list" if is_filtered else NO_RUN
        typer.echo(message, err=True)
        return
    swept = [entry for entry in reversed(entries) if entry.objective]
    primary = {entry.run.experiment: entry.objective[0] for entry in swept if entry.objective}
    rows = [runs_text.row(entry, primary) for entry in page]
    columns: tuple[str, ...] = runs_text.COLUMNS
    if with_size:
        columns = (*columns, "size")
        texts = [units.size(storage.size(entry.run)) for entry in page]
        rows = [[*row, taken] for row, taken in zip(rows, texts, strict=True)]
    tables.write(columns, rows)
    if len(page) < len(entries):
        typer.echo(f"{len(page)} of {len(entries)} runs; all: --limit 0", err=True)
    typer.echo(disk_limit.usage_text(storage), err=True)


@app.command()
def show(
    run: RunName = "latest",
    experiment: Experiment = None,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """One run, and its lineage: data, code, run, model versions, where they serve."""
    from ml.backends.runs import OPEN
    from ml.cli.render import live, runs_text, tables
    from ml.release.versions import descendants

    backend = open_backend(on)
    entry = _entry(backend.runs, run, experiment)
    came = descendants(backend.registry, entry.run)
    parent = backend.runs.parent(entry.run)
    part_of = parent.name if parent else ""
    if as_json:
        json_out.write(
            {
                **json_out.plain(live.as_json(backend, entry.run)),
                "kind": entry.kind,
                "project": entry.project,
                "part_of": part_of or None,
                "bytes": backend.storage.size(entry.run),
                "lineage": entry.lineage,
                "code_kept": _path(backend.runs.snapshot(entry)),
                "models": [version.to_json() for version in came],
            }
        )
        return
    lines = runs_text.run_lines(backend, entry, part_of, came)
    typer.echo(runs_text.aligned((label, tables.plain(text)) for label, text in lines))
    for problem in (*((entry.run.error,) if entry.run.error else ()), *entry.run.warnings):
        typer.echo(str(problem), err=True)
    if entry.run.status in OPEN:
        typer.echo(f"follow it: ml runs logs --follow {entry.run.name}", err=True)


@app.command()
def lineage(run: RunName = "latest", on: On = "local", as_json: AsJson = False) -> None:
    """The way from data to a run's models: every run on it, its code, environment, digests."""
    from ml.cli.commands.runs import lineage
    from ml.cli.render import runs_text, tables
    from ml.release.versions import descendants

    backend = open_backend(on)
    selected = backend.runs.find(run)
    links, came = backend.runs.lineage(selected), descendants(backend.registry, selected)
    if as_json:
        json_out.write(json_out.plain(lineage.as_json(links, came)))
        return
    lines = lineage.lineage_lines(links, came)
    typer.echo(runs_text.aligned((label, tables.plain(text)) for label, text in lines))


@app.command()
def logs(
    run: RunName = "latest",
    tail: Annotated[int | None, typer.Option(min=0, help="The last so many lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    rank: Annotated[
        str,
        typer.Option(help="Of one process of a job: 0, 1 … or ps_0; process_0 of a parallel step."),
    ] = "0",
    on: On = "local",
) -> None:
    """What a run printed; of a sweep or a pipeline, each trial's and step's after its name."""
    from ml.cli.commands.runs.logs import write

    store = open_backend(on).runs
    if not write(store, store.find(run), tail, follow, rank):
        typer.echo("it printed nothing", err=True)


@app.command()
def diff(one: RunName, other: RunName, on: On = "local", as_json: AsJson = False) -> None:
    """Where two runs differ: data, code and its files, parameters, metrics."""
    from ml.backends.comparison import differences
    from ml.cli.render import runs_text, tables

    store = open_backend(on).runs
    entries = _entry(store, one), _entry(store, other)
    deltas = differences(store, *entries)
    names = [entry.run.name for entry in entries]
    if as_json:
        document = [json_out.plain(asdict(difference)) for difference in deltas]
        json_out.write({"one": names[0], "other": names[1], "differences": document})
        return
    if not deltas:
        typer.echo("no difference", err=True)
        return
    tables.write(("", "", *names, "change"), [runs_text.cells(delta) for delta in deltas])


@app.command()
def best(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Among the parts of this run alone.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the latest sweep's.")] = None,
    goal: Annotated[str | None, typer.Option(help="maximize or minimize; as --metric.")] = None,
    experiment: Experiment = None,
    project: Project = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many.")] = 5,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """The best completed runs and trials by a metric, the best first."""
    from ml.backends import ranking
    from ml.cli.render import live, tables

    if goal not in (None, *ranking.GOALS):
        raise Refused(Problem("no-such-goal", f"--goal {goal}", " or ".join(ranking.GOALS)))
    backend = open_backend(on)
    store = backend.runs
    entries = [_entry(store, run)] if run else _filtered(store, experiment, project, since, None)
    ranked = ranking.rank(store, entries, metric, goal)
    top = ranked.runs[:limit]
    if as_json:
        document = [
            {
                "value": candidate.metrics[ranked.metric],
                **json_out.plain(live.as_json(backend, candidate)),
            }
            for candidate in top
        ]
        json_out.write({"metric": ranked.metric, "goal": ranked.goal, "runs": document})
    else:
        tables.write(
            ("run", ranked.metric, "experiment", "parameters"),
            [
                [
                    candidate.name,
                    live.number(candidate.metrics[ranked.metric]),
                    candidate.experiment,
                    live.parameters(candidate.parameters),
                ]
                for candidate in top
            ],
        )
        typer.echo(f"{ranked.goal} {ranked.metric}, of {len(ranked.runs)} measured", err=True)
    if ranking.different_data(store, top):
        typer.echo("note: they were not all made from the same data (ml runs diff A B)", err=True)


app.command()(changes.cancel)
app.command()(changes.resume)
app.command()(changes.keep)
app.command()(changes.clean)


def _filtered(
    store: RunStore,
    experiment: str | None,
    project: str | None,
    since: str | None,
    status: list[str] | None,
    display_name: str | None = None,
    tags: list[str] | None = None,
) -> list[Entry]:
    from ml.backends.runs import STATUSES, Filter
    from ml.cli.render.units import moment

    statuses = {name.lower(): name for name in STATUSES}
    for text in status or []:
        if text.lower() not in statuses:
            raise Refused(
                Problem(
                    "no-such-status", f"--status {text}", f"one of: {', '.join(statuses.values())}"
                )
            )
    entries = store.entries()
    for name in store.unreadable(entries):
        typer.echo(f"{name} has a record that cannot be read: ml runs resume {name}", err=True)
    return Filter(
        experiment=experiment,
        project=project,
        statuses={statuses[text.lower()] for text in status or []},
        since=moment("--since", since) if since else None,
        display_name=display_name,
        tags={
            key: value if equals else None
            for key, equals, value in (text.partition("=") for text in tags or [])
        },
    ).apply(entries)


def _entry(store: RunStore, wanted: str, experiment: str | None = None) -> Entry:
    """The run; one that has not ended has the metrics of this moment."""
    from ml.backends.runs import OPEN, TrackingUnavailable

    run = store.find(wanted, experiment)
    if run.status in OPEN:
        with suppress(TrackingUnavailable):
            run = replace(run, metrics=store.metrics(run))
    return store.entry(run)


def _path(path: object) -> str | None:
    return str(path) if path else None
