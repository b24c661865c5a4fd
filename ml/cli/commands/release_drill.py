"""`ml release drill`: a bad green on purpose, which the canary must take back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ml.core.errors import Exit

if TYPE_CHECKING:
    from ml.release.rollout.drill import Drilled


def drill(
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")],
    fault: Annotated[str, typer.Option(help="errors, slow or constant.")] = "errors",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Try what serves with a fault put in: its canary must take it back. Promotes nothing.

    Exit 0 when it was taken back and no request to the old version failed, 1 when not.
    """
    from ml.cli.render import json_out
    from ml.release.rollout.drill import drill as go
    from ml.serving.faulty import FAULTS

    if fault in FAULTS:
        typer.echo(f"a green in which {FAULTS[fault]}, beside what serves", err=True)
    done = go(project, fault, told=lambda sentence: typer.echo(f"canary: {sentence}", err=True))
    if as_json:
        found = {**asdict(done), "outcome": done.outcome.to_json(), "noticed": done.noticed}
        json_out.write(found)
    else:
        told(done)
    if not done.noticed:
        raise typer.Exit(Exit.RUN_FAILED)


def told(done: Drilled) -> None:
    """What became of the bad green, and of the requests."""
    outcome = done.outcome
    if outcome.kind == "rolled-back":
        took = f"{outcome.seconds:.0f} s"
        typer.echo(f"taken back at {outcome.step} % after {took}: {outcome.why}", err=True)
    else:
        typer.echo("its canary did not notice; green was taken back all the same", err=True)
    failed = f"{done.failed} requests to it failed" if done.failed else "none of its failed"
    every = f"{sum(outcome.requests.values()):,} requests in all"
    typer.echo(f"version {done.version} served throughout, {every}: {failed}", err=True)
