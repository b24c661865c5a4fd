"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A name or id, or `latest`.")]
Experiment = Annotated[str | None, typer.Option(help="Only this experiment.")]
Project = Annotated[str | None, typer.Option(help="Only this folder under ml/projects.")]
Since = Annotated[str | None, typer.Option(help="Only runs started since: 7d, 12h, 2026-11-20.")]
Environment = Annotated[
    str, typer.Option("--env", "--to", help="`local`, or one of release.yml.", metavar="ENV")
]
On = Annotated[str, typer.Option("--on", help="The backend: local (this machine).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
