"""`ml release`: propose, apply and roll back the version that an environment serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ml.cli.app import open_backend
from ml.cli.options import AsJson, Environment, EveryGate, Port, moment, repeated_on
from ml.cli.render.output import as_text, show_step, write_json
from ml.cli.render.release_text import (
    facts_text,
    named,
    next_text,
    pending_text,
    rejected_text,
    rollout_text,
    show_drill,
    status_text,
)
from ml.core.errors import Exit, Problem, UserError
from ml.core.terminal import printable

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.release.declaration.release_file import ReleaseEntry
    from ml.release.rollout.apply import Applied, RolloutPlan

app = typer.Typer()

Project = Annotated[str, typer.Argument(help="A folder under ml/projects.")]
On = Annotated[
    Literal["local", "azure"] | None,
    typer.Option(help="azure, or `local`: simulate an environment of release.yml here."),
]
Trained = Annotated[
    Path | None,
    typer.Option(
        help="The output of `ml train --json`: use those jobs and their outputs; submit no new job."
    ),
]


@app.command()
def propose(
    project: Project,
    run: Annotated[
        str | None,
        typer.Option(
            help="A run, sweep or pipeline; without it, the latest sweep or pipeline that "
            "completed, and in a later environment the attested version that the previous one "
            "declares."
        ),
    ] = None,
    to: Environment = "local",
    on: On = None,
    reason: Annotated[
        str, typer.Option(help="Why to replace a champion that the candidate does not beat.")
    ] = "",
    attestation: Annotated[
        Path | None,
        typer.Option(help="The attestation of the evidence that `ml release collect` wrote."),
    ] = None,
    trained: Trained = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the promotion pull request to this JSON file.")
    ] = None,
    every: EveryGate = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's model, register it, evaluate the gates, and declare it if they pass."""
    from ml.cli.render import costs, release_text
    from ml.core import files
    from ml.core.repository import shown
    from ml.release.declaration import desired_state
    from ml.release.promotion.propose import promotion
    from ml.release.promotion.propose import propose as go

    prices = costs.of_instance(to)
    backend = _open(to, desired_state.place_of(to, on or "local"), project, trained)
    proposal = go(
        backend,
        project,
        run,
        to,
        reason=reason,
        progress=show_step,
        prices=prices,
        attestation=attestation.read_bytes() if attestation else None,
    )
    if save is not None:
        files.replace(save, as_text(promotion(backend, proposal, to)))
    version, pending = proposal.candidate, proposal.pending_version
    if as_json:
        document = {
            "project": version.project,
            "environment": to,
            "run": proposal.run,
            "model": version.model,
            "version": version.version,
            "digest": version.digest,
            "champion": proposal.champion.version if proposal.champion else None,
            "pending_version": pending.version if pending else None,
            "release": proposal.written[0] if proposal.written else None,
            "written": proposal.written,
            "decision": proposal.decision.to_json(),
        }
        write_json(document)
    else:
        name = named(version.model, version.version, version.digest)
        typer.echo(f"{proposal.run} is {name}", err=True)
        release_text.show_decision(proposal.decision, pending.version if pending else "", every)
        typer.echo(facts_text(proposal.evidence.evaluation), err=True)
        if pending:
            typer.echo(pending_text(proposal, pending), err=True)
        elif proposal.unapplied:
            typer.echo(f"version {proposal.unapplied} was declared and never applied", err=True)
        for path in proposal.written:
            typer.echo(f"written: {shown(path)}", err=True)
        if proposal.written:
            typer.echo(next_text(project, to, on), err=True)
        # `ml gate` compares with the champion, not with the pending version.
        if proposal.decision.outcome == "rejected" and not pending:
            typer.echo(rejected_text(proposal.decision.request), err=True)
    if proposal.decision.outcome == "rejected":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def collect(
    project: Project,
    run: Annotated[
        str | None, typer.Option(help="A run; without it, jobs/train.yml is run first.")
    ] = None,
    to: Environment = "local",
    on: On = None,
    trained: Trained = None,
    save: Annotated[
        Path, typer.Option(help="The folder for the subjects and the predicate.")
    ] = Path(".local/check"),
) -> None:
    """Train, evaluate, register and collect the evidence, for `propose --attestation`.

    Writes subjects.txt and predicate.json, as actions/attest takes them.
    """
    from ml.cli.render import costs
    from ml.core import files
    from ml.release.declaration import desired_state
    from ml.release.evidence.evidence import statement
    from ml.release.promotion.propose import collect as go

    backend = _open(to, desired_state.place_of(to, on or "local"), project, trained)
    prices = costs.of_instance(to)
    version = go(backend, project, run, to, progress=show_step, prices=prices)
    stated = statement(version).to_json()
    subjects = [
        f"{subject['digest']['sha256']}  {subject['name']}\n" for subject in stated["subject"]
    ]
    files.replace(save / "subjects.txt", "".join(subjects))
    files.replace(save / "predicate.json", as_text(stated["predicate"]))
    typer.echo(f"{named(version.model, version.version, version.digest)}: its evidence is here")


@app.command()
def plan(
    project: Project,
    to: Environment = "local",
    on: On = None,
    every: EveryGate = False,
    as_json: AsJson = False,
) -> None:
    """Show what apply would do, step by step, without doing it; exit 3 when a gate would fail."""
    from ml.cli.render import release_text
    from ml.release.declaration import desired_state
    from ml.release.rollout.plan import plan as plan_release

    backend = _open(to, desired_state.place_of(to, on))
    planned = plan_release(backend, project, to, progress=show_step)
    if as_json:
        write_json(planned.to_json())
    else:
        if planned.decision:
            release_text.show_decision(planned.decision, every=every)
        typer.echo(rollout_text(planned))
        if planned.rollout:
            _show_project_changes(backend, planned.rollout, planned.project_changes)
        if planned.unsigned:
            typer.echo(next_text(project, to, on), err=True)
    if planned.stops:
        if not as_json:
            typer.echo(str(planned.stops), err=True)
        raise typer.Exit(planned.stops.exit_code)
    if planned.decision and planned.decision.outcome == "rejected":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def apply(
    project: Annotated[str | None, typer.Argument(help="One project; else all.")] = None,
    to: Environment = "local",
    on: On = None,
    approved_by: Annotated[str, typer.Option(help="The person who signs off the promotion.")] = "",
    port: Port = None,
    every: EveryGate = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the gates again, deploy the declared version, and shift traffic to it.

    Without PROJECT, applies every declared version; --json then prints a list.
    """
    from ml.release.declaration import desired_state
    from ml.release.rollout.plan import project_changes

    backend = _open(to, desired_state.place_of(to, on))
    if project is None:
        _apply_all(backend, to, approved_by, every, as_json)
        return
    promotion = _apply(backend, project, to, approved_by, port=port)
    changes = project_changes(promotion.rollout) if promotion else ()
    if as_json and promotion:
        write_json({**_document(promotion), "project_changes": changes})
    elif as_json:
        write_json(_nothing(backend, project, to))
    else:
        _show(backend, project, to, promotion, every)
        if promotion:
            _show_project_changes(backend, promotion.rollout, changes)
    if promotion is not None and promotion.outcome == "rejected":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def drill(
    project: Project,
    fault: Annotated[str, typer.Option(help="errors, slow or constant.")] = "errors",
    as_json: AsJson = False,
) -> None:
    """Roll out the serving version with a fault: its canary must roll it back. Promotes nothing.

    Exit 0 when it was rolled back and no request to the old version failed, 1 when not.
    """
    from ml.release.rollout.drill import drill as go
    from ml.release.rollout.faulty import FAULTS

    if fault in FAULTS:
        typer.echo(f"a faulty copy beside what serves: {FAULTS[fault]}", err=True)
    result = go(open_backend(), project, fault, progress=show_step)
    if as_json:
        judged = {"outcome": result.outcome.to_json(), "noticed": result.noticed}
        write_json({**asdict(result), **judged})
    else:
        show_drill(result)
    if not result.noticed:
        raise typer.Exit(Exit.RUN_FAILED)


@app.command()
def rollback(
    project: Project,
    to: Environment = "local",
    on: On = None,
    reason: Annotated[str, typer.Option(help="What is wrong with the version that serves.")] = "",
    version: Annotated[
        str | None,
        typer.Option(help="The version to return to: 2, 2@DIGEST, or none to withdraw."),
    ] = None,
    approved_by: Annotated[
        str, typer.Option(help="The person who signs off: the earlier version serves at once.")
    ] = "",
    through_canary: Annotated[
        bool, typer.Option("--through-canary", help="Try the earlier version in a canary first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Return to the previous version, as `git revert` would; --approved-by serves it at once.

    Repeated, it does not go back further; --version does. Where nothing was ever applied, it
    withdraws the declared version. Beyond `local`, commit the changed release.yml.
    """
    from ml.core.repository import shown
    from ml.release.declaration import desired_state
    from ml.release.rollout.rollback import roll_back

    if through_canary and not approved_by:
        actual = "--through-canary without --approved-by: nothing is served yet"
        hint = f"ml release rollback {project} --through-canary --approved-by NAME"
        raise UserError(Problem("approval-required", actual, "the person who signs off", hint))
    backend = open_backend(desired_state.place_of(to, on or ("local" if not approved_by else None)))
    result = roll_back(backend, project, to, reason, version, has_audit_log=bool(on or approved_by))
    back, was = result.declared, result.replaced
    live = backend.endpoints.live(backend.endpoints.name_of(was.model, to))
    serves = live is not None and (live.deployment.digest, live.deployment.deployment_digest) == (
        back.digest,
        back.deployment_digest or live.deployment.deployment_digest,
    )
    if not result.written:
        typer.echo(
            f"{back.model} {back.version} is declared already, by a rollback, and "
            f"{'serves' if serves else 'waits for apply'}",
            err=True,
        )
        if result.further:
            further = f"ml release rollback {project}{_env(to)} --version {result.further[0]}"
            typer.echo(f"further back: {further}", err=True)
    elif not as_json:
        typer.echo(
            f"{back.model} {back.version} is declared in place of {was.version}"
            if back.model
            else f"{was.model} {was.version} is withdrawn: nothing is declared for {to}",
            err=True,
        )
        for path in result.written:
            typer.echo(f"written: {shown(path)}", err=True)
    promotion = None
    if approved_by and back.model:
        promotion = _apply(backend, project, to, approved_by, back, through_canary=through_canary)
    if as_json:
        write_json(
            {
                "project": result.project,
                "environment": result.environment,
                "declared": asdict(back) if back.model else None,
                "replaced": asdict(was),
                "written": result.written,
                "applied": _document(promotion) if promotion else None,
            }
        )
    elif promotion:
        _show(backend, project, to, promotion)
    elif not back.model:
        propose = f"next: ml release propose {project}"
        typer.echo(propose if to == "local" else "next: commit it and merge it", err=True)
    elif result.written or not serves:
        typer.echo(next_text(project, to, on), err=True)
    if promotion is not None and promotion.outcome == "rejected":
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def status(
    project: Annotated[str | None, typer.Argument(help="One project; else all.")] = None,
    to: Annotated[str | None, typer.Option("--env", help="One environment; else all.")] = None,
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Show the declared version, champion, live version and last apply; verify the audit log.

    An environment for which nothing was ever declared is left out unless --env names it.
    """
    from ml.release.rollout.status import status as release_status

    states = release_status(open_backend(on or "local"), project, to)
    if as_json:
        write_json(states)
        return
    for state in states:
        if to or state.declared or state.serving or state.last_attempt:
            typer.echo(status_text(state), err=state.declared is None)
    if not any(state.declared for state in states):
        names = {state.project for state in states}
        name = names.pop() if len(names) == 1 else "PROJECT"
        command = f"ml release propose {name}{_env(to or 'local')}"
        typer.echo(f"nothing is declared; next: {command}", err=True)


@app.command()
def drift(
    to: Environment = "local",
    on: On = None,
    since: Annotated[
        str | None, typer.Option(help="Only requests since: 7d, 12h, 2026-11-20.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what serves with what is declared, and its requests with its evaluation.

    Covers every project; exit 3 when something differs.
    """
    from ml.release.declaration import desired_state
    from ml.release.watch.release_drift import drift as find_drift

    backend = open_backend(desired_state.place_of(to, on))
    drifts = [*find_drift(backend, to, moment("--since", since) if since else None)]
    if as_json:
        write_json([result.to_json() for result in drifts])
    for result in () if as_json else drifts:
        sign = "?" if result.unknown else "✘" if result.differences else "✔"
        typer.echo(f"{sign} {result.project}, {result.about}: {printable(result.words)}")
        for row in result.differences:
            words = f"    {row['what']}: {row['actual']}, expected {row['expected']}"
            typer.echo(printable(words))
    if any(result.differences for result in drifts):
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def schema() -> None:
    """Print the JSON Schema of release.yml, for editors; `make schema` writes it to its file."""
    from ml.release.declaration.release_file import schema as of

    write_json(of())


def _open(to: str, place: str, project: str = "", trained: Path | None = None) -> Backend:
    """Open the backend `place` ("local" or "azure"); on Azure, evaluations submit new jobs.

    With `trained`, a file of `ml train --json`, they reuse only its jobs, since others may not be
    trusted. Raises UserError unless the file has exactly one training of the project.
    """
    from ml.backends.base import Options, WorkflowRun
    from ml.cli import clusters

    if place == "local":
        return open_backend(place)
    names, bounds = clusters.names(), clusters.bounds(to)
    if trained is None:
        return open_backend(place, Options(workflow=WorkflowRun(names, bounds)))
    trainings = clusters.submitted(trained, project)
    if len(trainings) != 1:
        actual = f"{trained} has {len(trainings)} trainings of {project}"
        hint = f"ml train {project} --json > FILE"
        raise UserError(Problem("not-trained", actual, "one training", hint))
    return open_backend(
        place, Options(workflow=WorkflowRun(names, bounds, trainings[0], final=True))
    )


def _env(environment: str) -> str:
    return "" if environment == "local" else f" --env {environment}"


def _apply(
    backend: Backend,
    project: str,
    to: str,
    approved_by: str,
    approved: ReleaseEntry | None = None,
    port: int | None = None,
    through_canary: bool = False,
) -> Applied | None:
    from ml.release.rollout.apply import apply as go

    return go(
        backend,
        project,
        to,
        approved_by,
        approved=approved,
        port=port,
        through_canary=through_canary,
        progress=show_step,
        waiting=show_step,
    )


def _apply_all(
    backend: Backend, environment: str, approved_by: str, every: bool, as_json: bool
) -> None:
    """Apply every project; exit with the code of the first error, else of a gate rejection."""
    from ml.release.rollout.apply_all import apply_all

    def go(project: str) -> Applied | None:
        try:
            promotion = _apply(backend, project, environment, approved_by)
        except UserError as refused:
            typer.echo(f"{project}: {refused}", err=True)
            raise
        if not as_json:
            _show(backend, project, environment, promotion, every)
        return promotion

    results = apply_all(backend, environment, approved_by, go)
    if as_json:
        write_json([result.to_json() for result in results])
    elif not results:
        typer.echo(f"nothing is declared for {environment}", err=True)
    for result in results:
        if not result.version:
            # Its release.yml is invalid, so nothing was applied.
            for problem in result.problems:
                typer.echo(f"{result.project}: {problem}", err=True)
    codes = [result.exit_code for result in results if result.exit_code != Exit.DONE]
    if codes:
        raise typer.Exit(next((code for code in codes if code != Exit.GATE_SAID_NO), codes[0]))


def _nothing(backend: Backend, project: str, to: str) -> dict[str, object]:
    from ml.release.rollout.status import status as release_status

    (current,) = release_status(backend, project, to)
    return {"outcome": "nothing-declared", **vars(current)}


def _document(promotion: Applied) -> dict[str, object]:
    version, replaced = promotion.version, promotion.replaced
    return {
        "outcome": promotion.outcome,
        "endpoint": promotion.rollout.deployment.endpoint,
        "model": version.model,
        "version": version.version,
        "digest": version.digest,
        "replaced": replaced.version if replaced else None,
        "canary": promotion.canary.to_json() if promotion.canary else None,
        "url": promotion.router.url if promotion.router else None,
        "decision": promotion.decision.to_json(),
    }


def _show(
    backend: Backend, project: str, to: str, promotion: Applied | None, every: bool = False
) -> None:
    """Print the result of an apply; if nothing is declared, the status and the next command."""
    from ml.cli.render import release_text
    from ml.release.declaration.projects import example, find
    from ml.release.rollout.status import status as release_status

    if promotion is None:
        (current,) = release_status(backend, project, to)
        typer.echo(status_text(current), err=True)
        typer.echo(f"next: ml release propose {project}{_env(to)}", err=True)
        return
    version = promotion.version
    release_text.show_decision(promotion.decision, every=every)
    if promotion.canary and promotion.canary.replayed:
        typer.echo(
            f"canary: {promotion.canary.replayed} of the requests were the project's samples, "
            "since there was too little traffic",
            err=True,
        )
    if promotion.router:
        was = "serves now" if promotion.started else "was serving already"
        typer.echo(f"{version.model} {version.version} {was}: {promotion.router.url}", err=True)
        command = example(promotion.rollout.deployment.endpoint, find(backend.root, project))
        typer.echo(f"next: {command}{repeated_on(backend.name)}", err=True)
    elif [result.gate for result in promotion.decision.blocking] == ["sign-off"]:
        typer.echo(next_text(project, to, backend.name), err=True)


def _show_project_changes(backend: Backend, rollout: RolloutPlan, changes: Sequence[str]) -> None:
    """Print the differences of the serving code from the declared one, and the next command."""
    from policies.promotion.decision import listed

    if not changes:
        return
    differences = listed(tuple(changes), "; ")
    typer.echo(
        f"the serving code of {rollout.project} differs from what is declared: {differences}",
        err=True,
    )
    run = backend.runs.find(rollout.version.run).name
    command = f"ml release propose {rollout.project} --run {run}{_env(rollout.environment)}"
    is_other = any("schema.yml" in change for change in changes)
    instead = "; if its columns differ, --run RUN of a version trained with this schema" * is_other
    typer.echo(f"next: {command}{repeated_on(backend.name)}{instead}", err=True)
