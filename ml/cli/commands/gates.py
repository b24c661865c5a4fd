"""`ml gate`, `ml evidence`, `ml audit`: evaluate the gates, verify evidence and the audit log."""

from __future__ import annotations

from typing import Annotated

import typer

from ml.cli.app import open_backend
from ml.cli.options import AsJson, Environment, EveryGate, On
from ml.cli.render.output import write_json
from ml.core.errors import Exit, UserError

MODEL = typer.Argument(help="A registered model, such as faq-matching.", show_default=False)
VERSION = typer.Argument(help="Its version.", show_default=False)
Model = Annotated[str, MODEL]
Version = Annotated[str, VERSION]

evidence = typer.Typer()
audit = typer.Typer()


def gate(
    model: Annotated[str, MODEL] = "",
    version: Annotated[str, VERSION] = "",
    released: Annotated[
        bool,
        typer.Option(
            "--released", help="What each project serves, by today's gates; changes nothing."
        ),
    ] = False,
    to: Environment = "local",
    on: On = "local",
    every: EveryGate = False,
    as_json: AsJson = False,
) -> None:
    """Decide whether a model version may be promoted; exit 3 when a gate rejects it.

    The champion itself is never rejected.
    """
    from ml.cli.render import release_text
    from ml.release.declaration.desired_state import place_of
    from ml.release.promotion.gate_check import check_registered, check_released

    if released is bool(model or version) or bool(model) is not bool(version):
        actual = "give MODEL and VERSION together, and not with --released"
        raise UserError.with_code(
            "no-version", actual, "ml gate MODEL VERSION, or ml gate --released"
        )
    backend = open_backend(place_of(to, on))
    if released:
        results = [*check_released(backend, to)]
        if as_json:
            write_json([result.to_json() for result in results])
        else:
            lines = [release_text.released(result, to) for result in results]
            typer.echo("\n".join(lines) or f"nothing serves in {to}")
        if not all(result.decision and result.decision.allowed for result in results):
            raise typer.Exit(Exit.GATE_SAID_NO)
        return
    decision = check_registered(backend, model, version, to).decision
    if as_json:
        write_json(decision.to_json())
    else:
        release_text.show_decision(decision, every=every)
    if decision.outcome == "rejected":
        raise typer.Exit(Exit.GATE_SAID_NO)


@evidence.command("verify")
def verify_evidence(
    model: Model, version: Version, on: On = "local", as_json: AsJson = False
) -> None:
    """Hash the evidence, the predictions and the model again, and recompute every metric
    and the overlap of training and test data.

    Lists every difference; exit 3 when there is one. `ml gate` checks freshness and thresholds.
    """
    from ml.release.evidence.verification import checks

    registry = open_backend(on).registry
    registered = registry.find(model, version)
    if (shared := registry.shared) is not None:
        shared.download(registered)
    results = checks(registered)
    sound = all(check.sound for check in results)
    if as_json:
        write_json(
            {
                "model": registered.model,
                "version": registered.version,
                "digest": registered.digest,
                "sound": sound,
                "checks": [
                    {"check": check.name, "sound": check.sound, "differs": check.differs}
                    for check in results
                ],
            }
        )
    else:
        for check in results:
            typer.echo(f"{check.name}: {'unchanged' if check.sound else 'DIFFERS'}", err=True)
            for difference in check.differs:
                typer.echo(f"  {difference}", err=True)
    if not sound:
        raise typer.Exit(Exit.GATE_SAID_NO)


@evidence.command("schema")
def evidence_schema() -> None:
    """Print the JSON Schema of evidence.json."""
    from ml.measures.schema import json_schema
    from policies.promotion.evidence import Evidence

    write_json(json_schema(Evidence))


@audit.callback()
def _group() -> None:
    # A callback makes `ml audit` a group, even with a single command.
    pass


@audit.command("verify")
def verify_audit(
    holding: Annotated[
        str, typer.Option(help="A hash that you saved earlier; fails if no line has it.")
    ] = "",
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Find a line that was changed, removed or moved; exit 3 when there is one.

    Compares the log with the decisions in the committed release.yml and in the declarations of
    this machine. Nothing else reveals a log that was rewritten since: save the last hash
    elsewhere and pass it to --holding.
    """
    from ml.release import audit

    backend = open_backend(on)
    log = backend.audit_log
    try:
        lines = audit.verify(log, holding or None)
        against = [*audit.against(backend, lines), *([f"the hash {holding}"] if holding else [])]
    except UserError as refused:
        if not as_json:
            raise
        (problem,) = refused.problems
        line = problem.place.line if problem.place else None
        write_json({"log": log.place, "sound": False, "line": line, "why": problem.actual})
        raise typer.Exit(refused.exit_code) from None
    last = str(lines[-1]["hash"]) if lines else None
    if as_json:
        document = {"log": log.place, "sound": True, "lines": len(lines), "last": last}
        write_json({**document, "against": against})
    elif last is None:
        typer.echo(f"{log.place}: no line yet", err=True)
    else:
        count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
        typer.echo(f"{log.place}: {count}, none changed; last hash {last}", err=True)
        for sentence in against:
            typer.echo(f"  compared with {sentence}", err=True)
        if not holding:
            after = "since those decisions" if against else "at any time"
            typer.echo(
                f"this does not show that the end was cut off or rewritten {after}: note that hash "
                "elsewhere and pass it to --holding",
                err=True,
            )
