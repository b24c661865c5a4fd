"""The text output of `ml release`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ml.release.promotion.propose import Proposal
    from ml.release.rollout.drill import Drilled
    from ml.release.rollout.history import Attempt
    from ml.release.rollout.plan import Plan
    from ml.release.rollout.status import Status

SHORT = 19  # characters of a digest, `sha256:` among them


def status(state: Status) -> str:
    """A few lines; one for an environment that nothing is declared for."""
    head = f"{state.project} in {state.environment}: {state.verdict}"
    if state.declared is None and state.last_attempt is None:
        return head
    version = (
        f"{state.model} {state.declared} ({state.digest[:SHORT]})" if state.declared else "nothing"
    )
    by = f", signed off by {state.signed_off}" if state.serving and state.signed_off else ""
    lines = [head, f"  declared  {version}", f"  champion  {state.champion or 'none yet'}"]
    lines.append(
        f"  serving   {state.serving or 'nothing'}{f' at {state.url}' if state.url else ''}{by}"
    )
    if state.beside:
        lines.append(f"  beside    {state.beside}")
    if state.last_attempt:
        lines.append(f"  last      {_attempt(state.last_attempt)}")
    lines += [f"  refused   {_attempt(refused)}" for refused in state.refused]
    return "\n".join([*lines, *([f"  audit     {state.audit}"] if state.audit else [])])


def plan(rollout: Plan) -> str:
    """What is declared, what serves, and what apply would do."""
    declared, serving = rollout.declared, rollout.serving
    is_declared = (
        f"{declared.model} {declared.version} ({declared.digest[:SHORT]})"
        if declared
        else "nothing"
    )
    serves = (
        f"version {serving.version} ({serving.digest[:SHORT]}){'' if serving.url else ', stopped'}"
        if serving
        else "nothing"
    )
    lines = [f"{rollout.project} in {rollout.environment}: {rollout.verdict}"]
    lines += [f"  declared  {is_declared}", f"  serving   {serves}"]
    lines += [f"  {number}. {step}" for number, step in enumerate(rollout.steps, 1)]
    return "\n".join(lines)


def rival(proposal: Proposal) -> str:
    """The sentence on a declared version that waits and had to be beaten."""
    waits = f"version {proposal.rival} is declared and was never applied: it had to be beaten too"
    if proposal.release:
        return f"{waits}, and is not declared any more"
    if proposal.environment == "local":
        return f"{waits}; ml release rollback {proposal.project} takes it back"
    return f"{waits}; git takes it back where it was declared by mistake"


def _attempt(attempt: Attempt) -> str:
    why = f": {attempt.why}" if attempt.why else ""
    by = f", for {attempt.by}" if attempt.by else ""
    at = attempt.at[:16].replace("T", " ")
    return f"version {attempt.version} {attempt.outcome} on {at}{by}{why}"


def show_drill(drill: Drilled) -> None:
    """Print how the drill ended: the fate of the faulty version, and of the requests."""
    outcome = drill.outcome
    if outcome.kind == "rolled-back":
        took = f"{outcome.seconds:.0f} s"
        typer.echo(f"taken back at {outcome.step} % after {took}: {outcome.why}", err=True)
    else:
        typer.echo("its canary did not notice; green was taken back all the same", err=True)
    failed = f"{drill.failed} requests to it failed" if drill.failed else "none of its failed"
    every = f"{sum(outcome.requests.values()):,} requests in all"
    typer.echo(f"version {drill.version} served throughout, {every}: {failed}", err=True)
