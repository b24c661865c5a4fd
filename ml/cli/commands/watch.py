"""`ml watch`: compare requests and answers of a model with its evaluation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.options import Environment
from ml.core.errors import Exit


def command(
    model: Annotated[str, typer.Argument(help="The model, which is its endpoint's name.")],
    env: Environment = "local",
    version: Annotated[str, typer.Option(help="This version; else the one that serves.")] = "",
    inputs: Annotated[
        Path | None,
        typer.Option(help="Requests in a file (.jsonl, .csv), not what the endpoint collected."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Right answers that came: lines of REQUEST_ID,LABEL (or ID/ROW of a table)."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Asked since: 7d, 12h, 2026-11-20.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The report's page; else in the local home."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Compare with the reference that was kept at the evaluation; exit 3 on a breach."""
    from ml.cli.render import json_out, tables, units
    from ml.release.declaration.desired_state import check_environment
    from ml.release.watch.report import watch
    from ml.reports.pages import write_watch_page

    report = watch(
        open_backend().registry,
        *(model, check_environment(env), version),
        inputs=inputs,
        labels=labels,
        since=units.moment("--since", since) if since else None,
    )
    place = write_watch_page(report, out)
    if as_json:
        json_out.write({**report.to_json(), "report": str(place)})
    else:
        for finding in report.findings:
            if finding.is_breach:
                typer.echo(tables.plain(f"{finding.column}: {finding.said}"))
        for note in report.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"{model} {report.version} in {env}: {report.said}")
        typer.echo(f"written to {place}, and beside it as JSON", err=True)
    if report.outcome == "breach":
        raise typer.Exit(Exit.GATE_SAID_NO)
