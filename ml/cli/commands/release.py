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
    from ml.backends.base import Event

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
    made = go(open_backend(), project, run, to, reason=reason, watch=_watch, prices=prices)
    if as_json:
        found = {
            "project": made.project,
            "environment": made.environment,
            "run": made.run.name,
            "model": made.model,
            "version": made.version,
            "digest": made.digest,
            "champion": made.champion,
            "rival": made.rival,
            "release": str(made.release) if made.release else None,
            "written": [str(path) for path in made.written],
            "decision": made.decision.to_json(),
        }
        json_out.write(found)
    else:
        typer.echo(f"{made.run.name} is {made.model} {made.version} ({made.digest[:19]})", err=True)
        verdicts.show(made.decision, made.rival or "")
        if made.rival:
            typer.echo(release_text.rival(made), err=True)
        elif made.unapplied:
            typer.echo(f"version {made.unapplied} was declared and never applied", err=True)
        for path in made.written:
            typer.echo(f"written: {shown(path)}", err=True)
        if made.release:
            typer.echo(_next(project, to), err=True)
    if made.decision.outcome == "refused":
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

    desired_state.demand_here(to, on)
    found = look(open_backend(), project, to, watch=_watch)
    if as_json:
        json_out.write(found.to_json())
    else:
        if found.decision:
            verdicts.show(found.decision)
        typer.echo(release_text.plan(found))
        if found.unsigned:
            typer.echo(_next(project, to), err=True)
    if found.stops:
        if not as_json:
            typer.echo(str(found.stops), err=True)
        raise typer.Exit(found.stops.exit_code)
    if found.decision and found.decision.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def apply(
    project: Project,
    to: Environment = "local",
    on: On = None,
    approved_by: Annotated[str, typer.Option(help="Who stands for the promotion.")] = "",
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

    desired_state.demand_here(to, on)
    done = go(
        open_backend(),
        project,
        to,
        approved_by,
        port=port,
        watch=_watch,
        told=lambda sentence: typer.echo(f"canary: {sentence}", err=True),
        waiting=lambda: typer.echo(f"another apply to {to} goes on; waiting", err=True),
    )
    if done is None:
        (is_now,) = look(open_backend().registry, project, to)
        if as_json:
            json_out.write({"outcome": "nothing-declared", **is_now.to_json()})
        else:
            typer.echo(release_text.status(is_now), err=True)
            typer.echo(f"next: ml release propose {project}{_env(to)}", err=True)
        return
    if as_json:
        found = {
            "outcome": done.outcome,
            "endpoint": done.endpoint,
            "model": done.model,
            "version": done.version,
            "digest": done.digest,
            "replaced": done.replaced,
            "canary": done.canary.to_json() if done.canary else None,
            "url": done.router.url if done.router else None,
            "decision": done.decision.to_json(),
        }
        json_out.write(found)
    else:
        verdicts.show(done.decision)
        if done.canary and done.canary.replayed:
            typer.echo(
                f"canary: {done.canary.replayed} of the requests were the project's samples, "
                "since there was too little traffic",
                err=True,
            )
        if done.router:
            was = "serves now" if done.started else "was serving already"
            typer.echo(f"{done.model} {done.version} {was}: {done.router.url}", err=True)
            typer.echo(f"next: {example(done.endpoint, done.model)}", err=True)
        elif [one.gate for one in done.decision.blocking] == ["sign-off"]:
            typer.echo(_next(project, to), err=True)
    if done.outcome == "refused":
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
    done = go(project, fault, told=lambda sentence: typer.echo(f"canary: {sentence}", err=True))
    if as_json:
        found = {**asdict(done), "outcome": done.outcome.to_json(), "noticed": done.noticed}
        json_out.write(found)
    else:
        release_text.show_drill(done)
    if not done.noticed:
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

    done = roll_back(open_backend().registry, project, to, why)
    if as_json:
        json_out.write(
            {
                "project": done.project,
                "environment": done.environment,
                "declared": asdict(done.declared),
                "replaced": asdict(done.replaced),
                "written": [str(path) for path in done.written],
            }
        )
        return
    back, was = done.declared, done.replaced
    typer.echo(f"{back.model} {back.version} is declared in place of {was.version}", err=True)
    for path in done.written:
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

    found = look(open_backend().registry, project, to)
    if as_json:
        json_out.write([one.to_json() for one in found])
        return
    for one in found:
        typer.echo(release_text.status(one), err=one.declared is None)
    if not any(one.declared for one in found):
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
