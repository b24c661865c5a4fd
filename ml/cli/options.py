"""Arguments and options that several commands have, in the same words."""

from __future__ import annotations

from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A name or id, or `latest`.")]
Experiment = Annotated[str | None, typer.Option(help="Of this experiment alone.")]
Project = Annotated[str | None, typer.Option(help="Of this folder under ml/projects alone.")]
Since = Annotated[str | None, typer.Option(help="Started since: 7d, 12h, 2026-11-20.")]
Environment = Annotated[
    str, typer.Option("--env", "--to", help="`local`, or one of release.yml.", metavar="ENV")
]
On = Annotated[str, typer.Option("--on", help="Where: local (this machine).")]
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
