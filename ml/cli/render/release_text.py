"""What `ml release` says to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ml.release.log.history import Attempt
    from ml.release.promotion.propose import Proposal
    from ml.release.rollout.drill import Drilled
    from ml.release.rollout.plan import Plan
    from ml.release.rollout.status import Status

SHORT = 19  # characters of a digest, `sha256:` among them


def status(one: Status) -> str:
    """A few lines; one for an environment that nothing is declared for."""
    head = f"{one.project} in {one.environment}: {one.verdict}"
    if one.declared is None and one.last_attempt is None:
        return head
    version = f"{one.model} {one.declared} ({one.digest[:SHORT]})" if one.declared else "nothing"
    by = f", signed off by {one.signed_off}" if one.serving and one.signed_off else ""
    lines = [head, f"  declared  {version}", f"  champion  {one.champion or 'none yet'}"]
    lines.append(f"  serving   {one.serving or 'nothing'}{f' at {one.url}' if one.url else ''}{by}")
    if one.beside:
        lines.append(f"  beside    {one.beside}")
    if one.last_attempt:
        lines.append(f"  last      {_attempt(one.last_attempt)}")
    lines += [f"  refused   {_attempt(refused)}" for refused in one.refused]
    return "\n".join([*lines, *([f"  audit     {one.audit}"] if one.audit else [])])


def plan(one: Plan) -> str:
    """What is declared, what serves, and what apply would do."""
    declared, serving = one.declared, one.serving
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
    lines = [f"{one.project} in {one.environment}: {one.verdict}"]
    lines += [f"  declared  {is_declared}", f"  serving   {serves}"]
    lines += [f"  {number}. {step}" for number, step in enumerate(one.steps, 1)]
    return "\n".join(lines)


def rival(made: Proposal) -> str:
    """What is said of a version that waits and had to be beaten."""
    waits = f"version {made.rival} is declared and was never applied: it had to be beaten too"
    if made.release:
        return f"{waits}, and is not declared any more"
    if made.environment == "local":
        return f"{waits}; ml release rollback {made.project} takes it back"
    return f"{waits}; git takes it back where it was declared by mistake"


def _attempt(one: Attempt) -> str:
    why = f": {one.why}" if one.why else ""
    by = f", for {one.by}" if one.by else ""
    return f"version {one.version} {one.outcome} on {one.at[:16].replace('T', ' ')}{by}{why}"


def show_drill(done: Drilled) -> None:
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
