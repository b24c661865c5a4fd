"""`infra`: parse, call, print; a mistake of the caller ends with its exit code and no traceback."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from infra import schema as schemas
from infra import settings as environments
from ml.specs.problems import Problem, Refused

app = typer.Typer(
    name="infra",
    help="The Azure ML environment: its settings, and what they would provision, offline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Stacks = Annotated[list[str] | None, typer.Argument(help="Environments; all where none is named.")]


@app.callback()
def _group() -> None:
    # Keeps `settings` a word of its own while it is the only one.
    pass


@app.command()
def settings(
    stacks: Stacks = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema of a stack file, for editors.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Check the stack files; exit 2 with every problem, each with its line."""
    if schema:
        _write(schemas.schema())
        return
    problems: list[Problem] = []
    found: dict[str, object] = {}
    for stack in stacks or environments.stacks():
        try:
            found[stack] = asdict(environments.load(stack))
        except Refused as refused:
            problems.extend(refused.problems)
    if problems:
        raise Refused(*problems)
    if as_json:
        _write(found)
        return
    for stack in found:
        typer.echo(f"{stack}: sound")


def _write(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    try:
        app(argv)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        raise SystemExit(int(refused.exit_code)) from None
