"""`ml gate`: the decision of the gates on a registered model version."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.options import Environment
from ml.core.errors import Exit


def command(
    model: Annotated[str, typer.Argument(help="A registered model, such as faq-matching.")],
    version: Annotated[str, typer.Argument(help="Its version.")],
    to: Environment = "local",
    as_json: Annotated[bool, typer.Option("--json", help="The decision as JSON.")] = False,
) -> None:
    """Decide whether a model version may be promoted; exit 3 when a gate says no."""
    from ml.cli.render import verdicts
    from ml.release.declaration.desired_state import check_environment
    from ml.release.promotion.gate_check import check_registered

    decision = check_registered(open_backend(), model, version, check_environment(to)).decision
    if as_json:
        typer.echo(json.dumps(decision.to_json(), indent=1))
    else:
        verdicts.show(decision)
    if decision.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)
