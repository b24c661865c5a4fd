"""`ml evidence`: verify the evidence of a model version offline; print its schema."""

from __future__ import annotations

from typing import Annotated

import typer

from ml.cli.render import json_out
from ml.core.errors import Exit

app = typer.Typer(help="The evidence that is kept with every model version.")


@app.command()
def verify(
    model: Annotated[str, typer.Argument(help="A registered model, such as faq-matching.")],
    version: Annotated[str, typer.Argument(help="Its version.")],
    as_json: Annotated[bool, typer.Option("--json", help="Every check as JSON.")] = False,
) -> None:
    """Hash the evidence, the predictions and the model again, and recompute every metric
    and what training and test share.

    Says all that differs; exit 3 when something does. Freshness and thresholds are `ml gate`'s.
    """
    from ml.backends.choice import open_backend
    from ml.release.evidence.verification import checks

    registered = open_backend().registry.find(model, version)
    results = checks(registered)
    sound = all(check.sound for check in results)
    if as_json:
        json_out.write(
            {
                "model": registered.model,
                "version": registered.version,
                "digest": registered.digest,
                "sound": sound,
                "checks": [
                    {"check": check.name, "sound": check.sound, "differs": list(check.differs)}
                    for check in results
                ],
            }
        )
    else:
        for check in results:
            typer.echo(f"{check.name}: {'as it was kept' if check.sound else 'DIFFERS'}", err=True)
            for difference in check.differs:
                typer.echo(f"  {difference}", err=True)
    if not sound:
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def schema() -> None:
    """Print the JSON Schema of evidence.json."""
    from policies.promotion.evidence import json_schema

    json_out.write(json_schema())
