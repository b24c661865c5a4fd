"""`ml audit verify`: check that the audit log is unchanged."""

from __future__ import annotations

from typing import Annotated

import typer

from ml.cli.render import json_out
from ml.core.errors import Refused

app = typer.Typer(help="The log of decisions, each line chained to the one before.")


@app.callback()
def _group() -> None:
    # Keeps `verify` a word of its own while it is the only one.
    pass


@app.command()
def verify(
    holding: Annotated[
        str, typer.Option(help="A hash noted earlier, which a line must still have.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Find a line that was changed, removed or moved, and say which; exit 3 when there is one.

    Lines cut off the end leave a sound chain: note the last hash elsewhere and give it to
    --holding.
    """
    from ml.release import audit

    try:
        lines = audit.holding(holding) if holding else audit.verify()
    except Refused as refused:
        if not as_json:
            raise
        (problem,) = refused.problems
        line = problem.place.line if problem.place else None
        json_out.write(
            {"log": str(audit.path()), "sound": False, "line": line, "why": problem.found}
        )
        raise typer.Exit(refused.exit_code) from None
    last = str(lines[-1]["hash"]) if lines else None
    if as_json:
        json_out.write({"log": str(audit.path()), "sound": True, "lines": len(lines), "last": last})
    elif last is None:
        typer.echo(f"{audit.path()}: no line yet", err=True)
    else:
        count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
        typer.echo(f"{audit.path()}: {count}, none changed; last hash {last}", err=True)
        if not holding:
            typer.echo(
                "not looked for: an end that was cut off or written anew; note that hash elsewhere "
                "and give it to --holding",
                err=True,
            )
