"""`ml release`: from a finished run to what an environment serves, and back."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.options import Environment
from ml.cli.render import json_out
from ml.core.errors import Exit

if TYPE_CHECKING:
    from ml.backends.runs import Event

app = typer.Typer(help="Propose a candidate; bring an environment to what is declared.")


class Place(StrEnum):
    """Where an environment is."""

    local = "local"
    azure = "azure"


Project = Annotated[str, typer.Argument(help="A folder under ml/projects.")]
On = Annotated[
    Place | None,
    typer.Option(help="`local` rehearses one of release.yml on this machine."),
]
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON.")]


@app.command()
def propose(
    project: Project,
    run: Annotated[
        str | None,
        typer.Option(help="A run, sweep or pipeline; without it, the latest that completed."),
    ] = None,
    to: Environment = "local",
    reason: Annotated[
        str, typer.Option(help="Why a champion that is not beaten should be replaced.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Score the best run, register its model, ask the gates, and declare it if they pass."""
    from ml.cli.render import costs, release_text, verdicts
    from ml.core.repository import shown
    from ml.release.promotion.propose import propose as go

    prices = costs.of_instance(to)
    proposal = go(open_backend(), project, run, to, reason=reason, watch=_watch, prices=prices)
    if as_json:
        document = {
            "project": proposal.project,
            "environment": proposal.environment,
            "run": proposal.run.name,
            "model": proposal.model,
            "version": proposal.version,
            "digest": proposal.digest,
            "champion": proposal.champion,
            "rival": proposal.rival,
            "release": str(proposal.release) if proposal.release else None,
            "written": [str(path) for path in proposal.written],
            "decision": proposal.decision.to_json(),
        }
        json_out.write(document)
    else:
        typer.echo(
            f"{proposal.run.name} is {proposal.model} {proposal.version} ({proposal.digest[:19]})",
            err=True,
        )
        verdicts.show(proposal.decision, proposal.rival or "")
        if proposal.rival:
            typer.echo(release_text.rival(proposal), err=True)
        elif proposal.unapplied:
            typer.echo(f"version {proposal.unapplied} was declared and never applied", err=True)
        for path in proposal.written:
            typer.echo(f"written: {shown(path)}", err=True)
        if proposal.release:
            typer.echo(_next(project, to), err=True)
    if proposal.decision.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def plan(
    project: Project,
    to: Environment = "local",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Say what apply would do, step by step, and do none of it; exit 3 when it would refuse."""
    from ml.cli.render import release_text, verdicts
    from ml.release.declaration import desired_state
    from ml.release.rollout.plan import plan as look

    desired_state.require_local(to, on)
    rollout = look(open_backend(), project, to, watch=_watch)
    if as_json:
        json_out.write(rollout.to_json())
    else:
        if rollout.decision:
            verdicts.show(rollout.decision)
        typer.echo(release_text.plan(rollout))
        if rollout.unsigned:
            typer.echo(_next(project, to), err=True)
    if rollout.stops:
        if not as_json:
            typer.echo(str(rollout.stops), err=True)
        raise typer.Exit(rollout.stops.exit_code)
    if rollout.decision and rollout.decision.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def apply(
    project: Project,
    to: Environment = "local",
    on: On = None,
    approved_by: Annotated[str, typer.Option(help="The person who signs off the promotion.")] = "",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve on this port; else a free one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the gates again, start the declared version beside the old one, and switch."""
    from ml.cli.render import release_text, verdicts
    from ml.release.declaration import desired_state
    from ml.release.rollout.apply import apply as go
    from ml.release.rollout.invoke import example
    from ml.release.rollout.status import status as look

    desired_state.require_local(to, on)
    promotion = go(
        open_backend(),
        project,
        to,
        approved_by,
        port=port,
        watch=_watch,
        progress=lambda sentence: typer.echo(f"canary: {sentence}", err=True),
        waiting=lambda: typer.echo(f"another apply to {to} is running; waiting", err=True),
    )
    if promotion is None:
        (current,) = look(open_backend().registry, project, to)
        if as_json:
            json_out.write({"outcome": "nothing-declared", **current.to_json()})
        else:
            typer.echo(release_text.status(current), err=True)
            typer.echo(f"next: ml release propose {project}{_env(to)}", err=True)
        return
    if as_json:
        document = {
            "outcome": promotion.outcome,
            "endpoint": promotion.endpoint,
            "model": promotion.model,
            "version": promotion.version,
            "digest": promotion.digest,
            "replaced": promotion.replaced,
            "canary": promotion.canary.to_json() if promotion.canary else None,
            "url": promotion.router.url if promotion.router else None,
            "decision": promotion.decision.to_json(),
        }
        json_out.write(document)
    else:
        verdicts.show(promotion.decision)
        if promotion.canary and promotion.canary.replayed:
            typer.echo(
                f"canary: {promotion.canary.replayed} of the requests were the project's samples, "
                "since there was too little traffic",
                err=True,
            )
        if promotion.router:
            was = "serves now" if promotion.started else "was serving already"
            typer.echo(
                f"{promotion.model} {promotion.version} {was}: {promotion.router.url}", err=True
            )
            typer.echo(f"next: {example(promotion.endpoint, promotion.model)}", err=True)
        elif [result.gate for result in promotion.decision.blocking] == ["sign-off"]:
            typer.echo(_next(project, to), err=True)
    if promotion.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def drill(
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")],
    fault: Annotated[str, typer.Option(help="errors, slow or constant.")] = "errors",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Try what serves with a fault put in: its canary must take it back. Promotes nothing.

    Exit 0 when it was taken back and no request to the old version failed, 1 when not.
    """
    from ml.cli.render import json_out, release_text
    from ml.release.rollout.drill import drill as go
    from ml.serving.faulty import FAULTS

    if fault in FAULTS:
        typer.echo(f"a green in which {FAULTS[fault]}, beside what serves", err=True)
    result = go(
        project, fault, progress=lambda sentence: typer.echo(f"canary: {sentence}", err=True)
    )
    if as_json:
        document = {
            **asdict(result),
            "outcome": result.outcome.to_json(),
            "noticed": result.noticed,
        }
        json_out.write(document)
    else:
        release_text.show_drill(result)
    if not result.noticed:
        raise typer.Exit(Exit.RUN_FAILED)


@app.command()
def rollback(
    project: Project,
    to: Environment = "local",
    why: Annotated[str, typer.Option(help="What is wrong with the version that serves.")] = "",
    as_json: AsJson = False,
) -> None:
    """Declare the version before again, as `git revert` would; apply goes there at once."""
    from ml.core.repository import shown
    from ml.release.rollout.rollback import roll_back

    result = roll_back(open_backend().registry, project, to, why)
    if as_json:
        json_out.write(
            {
                "project": result.project,
                "environment": result.environment,
                "declared": asdict(result.declared),
                "replaced": asdict(result.replaced),
                "written": [str(path) for path in result.written],
            }
        )
        return
    back, was = result.declared, result.replaced
    typer.echo(f"{back.model} {back.version} is declared in place of {was.version}", err=True)
    for path in result.written:
        typer.echo(f"written: {shown(path)}", err=True)
    typer.echo(_next(project, to), err=True)


@app.command()
def status(
    project: Annotated[str | None, typer.Argument(help="One project; else all.")] = None,
    to: Annotated[
        str | None, typer.Option("--env", "--to", help="One environment; else all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is declared, champion, serving, tried and refused; the audit log is verified on the way.

    An environment that nothing is declared for is told on stderr: a model may yet come.
    """
    from ml.cli.render import release_text
    from ml.release.rollout.status import status as look

    states = look(open_backend().registry, project, to)
    if as_json:
        json_out.write([state.to_json() for state in states])
        return
    for state in states:
        typer.echo(release_text.status(state), err=state.declared is None)
    if not any(state.declared for state in states):
        typer.echo("nothing is declared; next: ml release propose PROJECT", err=True)


@app.command()
def schema() -> None:
    """The JSON Schema of release.yml, for editors; `make schema` writes it where they look."""
    from ml.release.declaration.release_file import schema as of

    json_out.write(of())


def _watch(event: Event) -> None:
    """Say that a model is being evaluated: it takes a while."""
    if event.kind == "started":
        typer.echo(f"evaluating ({event.run.folder / 'logs' / 'std_log.txt'})", err=True)


def _env(environment: str) -> str:
    return "" if environment == "local" else f" --env {environment}"


def _next(project: str, environment: str) -> str:
    """The commands that bring about what was just declared."""
    if environment == "local":
        return f"next: ml release apply {project} --approved-by NAME"
    return (
        "next: a pull request with the change that declares it; its merge is the sign-off. "
        f"To rehearse it here: ml release apply {project} --env {environment} --on local "
        "--approved-by NAME"
    )
