"""`ml report`: a run as one page of HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="A run's name or id, or `latest`.")] = "latest",
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="The file to write.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Where it is, as JSON.")] = False,
) -> None:
    """Write a run's report, a page that opens without a network, and print where it is."""
    from ml.backends.choice import open_backend
    from ml.core import faults, files
    from ml.reports.pages import default_path, report

    backend = open_backend()
    page = report(backend.runs.find(run), backend)
    path = (out or default_path(page.run.name)).absolute()
    with faults.as_refusals():
        files.replace(path, page.html)
    if as_json:
        document = {
            "run": page.run.name,
            "status": page.run.status,
            "path": str(path),
            "bytes": path.stat().st_size,
            "verdict": list(page.sentences),
            "notes": list(page.notes),
        }
        typer.echo(json.dumps(document, indent=1))
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
