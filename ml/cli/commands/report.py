"""`ml report`, `ml ui`: a run as one page of HTML, and MLflow's pages on all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ml.cli.options import AsJson, On, Port


def report(
    run: Annotated[str, typer.Argument(help="A run's name or id, or `latest`.")] = "latest",
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="The file to write.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Write a run's report, a page that opens without a network, and print where it is.

    The page includes the charts of the project's charts.py. Local runs keep them as artifacts too.
    """
    from ml.cli.app import open_backend
    from ml.cli.render.output import write_json
    from ml.core import faults, files
    from ml.reports.figures import keep
    from ml.reports.pages import default_path
    from ml.reports.pages import report as report_of

    backend = open_backend(on)
    page = report_of(backend.runs.find(run), backend, out)
    path = (out or default_path(page.run.name)).absolute()
    with faults.as_user_errors():
        files.replace(path, page.html)
        records = backend.runs.records
        if page.figures and records and (folder := records.artifacts(page.run)):
            keep(page.figures, folder)
    if as_json:
        write_json(
            {
                "run": page.run.name,
                "status": page.run.status,
                "path": path,
                "bytes": path.stat().st_size,
                "verdict": page.sentences,
                "notes": page.notes,
            }
        )
    else:
        typer.echo(" ".join(page.sentences), err=True)
        for note in page.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(path)
    if show and not _open_in_browser(path):
        typer.echo(f"no browser could be started here; open {path.as_uri()}", err=True)


def _open_in_browser(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.as_uri())


def ui(port: Port = None) -> None:
    """Serve MLflow's pages on the local store, in the foreground; Ctrl-C ends it."""
    from ml.cli.app import open_backend

    typer.echo("MLflow is starting; Ctrl-C ends it", err=True)
    serve = open_backend().serve_pages
    assert serve is not None  # the local backend has it
    serve(port, typer.echo)
    typer.echo("ended", err=True)
