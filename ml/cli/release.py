"""`ml release propose | apply | status`: from a finished run to what an environment serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ml.specs.problems import Exit

if TYPE_CHECKING:
    from ml.backends.base import Event
    from ml.release.status import Status

app = typer.Typer(help="Propose a candidate; bring an environment to what is declared.")

Project = Annotated[str, typer.Argument(help="A folder under ml/projects.")]
To = Annotated[str, typer.Option(help="The environment.")]
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON.")]


@app.command()
def propose(
    project: Project,
    run: Annotated[
        str | None,
        typer.Option(help="A run, sweep or pipeline; without it, the latest that completed."),
    ] = None,
    to: To = "local",
    reason: Annotated[
        str, typer.Option(help="Why a champion that is not beaten should be replaced.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Score the best run, register its model, ask the gates, and declare it if they pass."""
    from ml.cli import costs, verdicts
    from ml.release.propose import propose as go

    prices = costs.of_instance(to)
    made = go(project, run, to, reason=reason, watch=_watch, prices=prices)
    if as_json:
        found = {
            "project": made.project,
            "environment": made.environment,
            "run": made.run.name,
            "model": made.model,
            "version": made.version,
            "digest": made.digest,
            "champion": made.champion,
            "release": str(made.release) if made.release else None,
            "decision": made.decision.to_json(),
        }
        typer.echo(json.dumps(found, indent=1))
    else:
        typer.echo(f"{made.run.name} is {made.model} {made.version} ({made.digest[:19]})", err=True)
        verdicts.show(made.decision)
        if made.release:
            typer.echo(f"declared in {made.release}", err=True)
            typer.echo(f"next: ml release apply {project} --approved-by NAME", err=True)
    if made.decision.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def apply(
    project: Project,
    to: To = "local",
    approved_by: Annotated[str, typer.Option(help="Who stands for the promotion.")] = "",
    port: Annotated[int | None, typer.Option(help="Serve on this port; else a free one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the gates again, start the declared version beside the old one, and switch."""
    from ml.cli import verdicts
    from ml.release.apply import apply as go

    done = go(project, to, approved_by, port=port, watch=_watch, told=_told_step)
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
        typer.echo(json.dumps(found, indent=1))
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
            typer.echo(f'next: ml invoke {done.endpoint} "a question"', err=True)
        elif [one.gate for one in done.decision.blocking] == ["sign-off"]:
            typer.echo(f"next: ml release apply {project} --approved-by NAME", err=True)
    if done.outcome == "refused":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def status(
    project: Annotated[str | None, typer.Argument(help="One project; else all.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is declared, what is champion, and what serves; the audit log is verified on the way."""
    from ml.release.status import status as look

    found = look(project)
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found], indent=1))
        return
    if not found:
        typer.echo("nothing is declared; next: ml release propose PROJECT", err=True)
    for one in found:
        typer.echo(_told(one))


@app.command()
def schema() -> None:
    """The JSON Schema of release.yml, for editors; `make schema` writes it where they look."""
    from ml.cli import json_out
    from ml.release.declaration import schema as of

    json_out.write(of())


def _watch(event: Event) -> None:
    """Say that a model is being evaluated: it takes a while."""
    if event.kind == "started":
        typer.echo(f"evaluating ({event.run.folder / 'logs' / 'std_log.txt'})", err=True)


def _told_step(sentence: str) -> None:
    typer.echo(f"canary: {sentence}", err=True)


def _told(one: Status) -> str:
    lines = [f"{one.project} in {one.environment}: {one.verdict}"]
    lines.append(f"  declared  {one.model} {one.declared} ({one.digest[:19]})")
    lines.append(f"  champion  {one.champion or 'none yet'}")
    lines.append(f"  serving   {one.serving or 'nothing'}{f' at {one.url}' if one.url else ''}")
    return "\n".join([*lines, f"  audit     {one.audit}"])
