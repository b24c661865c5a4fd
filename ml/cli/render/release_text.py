"""What `ml release` prints: where an environment is, what applies would do, how a canary went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ml.core.terminal import printable

if TYPE_CHECKING:
    from ml.backends.model_registry import Version
    from ml.measures.schema import Evaluation
    from ml.release.audit import Attempt
    from ml.release.promotion.propose import Proposal
    from ml.release.rollout.drill import Drilled
    from ml.release.rollout.plan import Plan
    from ml.release.rollout.status import Status
    from policies.promotion.decision import Request

# Contributions that are listed.
TOP = 3
# Characters of a digest, `sha256:` among them.
SHORT = 19
# An AUC so high, and so far above a linear model's, may come from columns that leak together.
HIGH_AUC, ABOVE_LINEAR = 0.85, 0.1


def next_text(project: str, environment: str, on: str | None) -> str:
    """The commands that bring about what was just declared."""
    if environment == "local":
        return f"next: ml release apply {project} --approved-by NAME"
    if on == "azure":
        return (
            "next: open a pull request with this change; its merge is the sign-off, "
            f"and its workflow runs: ml release apply {project} --env {environment} --on azure "
            "--approved-by NAME"
        )
    return (
        "next: open a pull request with this change; its merge is the sign-off. "
        f"To simulate it here: ml release apply {project} --env {environment} --on local "
        "--approved-by NAME"
    )


def rejected_text(request: Request) -> str:
    """The command that shows what each gate requires of a rejected version, and the guide."""
    where = "" if request.environment == "local" else f" --env {request.environment}"
    where += "" if request.rehearsal else " --on azure"
    command = f"ml gate {request.model} {request.version}{where} --all"
    return f"next: {command}, and docs/how-to/pass-a-gate.md"


def status_text(state: Status) -> str:
    """A few lines, without those that repeat what is declared; one where nothing ever was."""
    head = f"{state.project} in {state.environment}: {state.verdict}"
    if state.declared is None and state.last_attempt is None:
        return head
    by = f", signed off by {state.signed_off}" if state.serving and state.signed_off else ""
    at = f" at {state.url}" if state.url else ""
    declared = named(state.model, state.declared, state.digest) if state.declared else "nothing"
    last = state.last_attempt
    is_news = last and (last.outcome, last.version) != ("applied", state.serving)
    rows = [
        ("declared", declared),
        ("champion", "" if state.champion == state.declared else state.champion or "none yet"),
        ("serving", f"{state.serving or 'nothing'}{at}{by}"),
        ("beside", state.beside),
        ("last", _attempt(last) if last and is_news else ""),
        *(("rejected", _attempt(refused)) for refused in state.refused),
        ("audit", "" if state.audit == "verified" else state.audit),
    ]
    return "\n".join([head, *(f"  {name:<9} {text}" for name, text in rows if text)])


def rollout_text(rollout: Plan) -> str:
    """What is declared, what serves, and what apply would do."""
    declared, serving = rollout.declared, rollout.serving
    version = named(declared.model, declared.version, declared.digest) if declared else "nothing"
    serves = "nothing"
    if serving:
        serves = named("version", serving.version, serving.digest)
        serves += "" if serving.url else ", stopped"
    lines = [f"{rollout.project} in {rollout.environment}: {rollout.verdict}"]
    lines += [f"  declared  {version}", f"  serving   {serves}"]
    lines += [f"  {number}. {step}" for number, step in enumerate(rollout.steps, 1)]
    return "\n".join(lines)


def rival_text(proposal: Proposal, rival: Version) -> str:
    """The sentence on a declared version that was never applied and had to be beaten too."""
    text = f"version {rival.version} is declared and was never applied: it had to be beaten too"
    if proposal.written:
        return f"{text}, and is no longer declared"
    request = proposal.decision.request
    where = "local" if request.rehearsal else "azure"
    place = "" if request.environment == "local" else f" --env {request.environment} --on {where}"
    return f"{text}; ml release rollback {rival.project}{place} --reason TEXT takes it back"


def facts_text(evaluation: Evaluation) -> str:
    """The primary metric, a linear model's, the strongest feature, the largest contributions."""
    from ml.measures.schema import Estimate

    metric, split = evaluation.primary_metric or "", evaluation.slice_split or ""
    lines = [f"{metric} on {split}: {evaluation.metrics.get(split, {}).get(metric, 'missing')}"]
    if (linear := evaluation.linear.get(metric)) is not None:
        lines.append(f"linear model beside it: {metric} {linear:.4g}")
    alone = [entry for entry in evaluation.leakage if (entry.check or "").startswith("feature.")]
    if alone:
        top = max(alone, key=lambda entry: entry.value)
        lines.append(f"strongest feature alone: {top.of}, {top.check} {top.value:.4g}")
    shares = sorted(evaluation.contributions, key=lambda share: -share.share)[:TOP]
    listed = ", ".join(f"{share.feature} {share.share:.2f}" for share in shares)
    lines.append(f"largest contributions: {listed or 'none'}")
    auc = (evaluation.metrics.get(split, {}).get("auc") or Estimate()).value
    if auc >= HIGH_AUC and auc - evaluation.linear.get("auc", auc) >= ABOVE_LINEAR:
        lines.append(
            "the model's auc is far above a linear model's: interactions explain it, so check the "
            "largest contributions for leakage"
        )
    return "\n".join(map(printable, lines))


def named(model: str, version: str, digest: str) -> str:
    """A version with the beginning of its digest."""
    return f"{model} {version} ({digest[:SHORT]})"


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
        typer.echo(f"rolled back at {outcome.step} % after {took}: {outcome.why}", err=True)
    else:
        typer.echo("the canary did not notice the fault; green was removed anyway", err=True)
    failed = f"{drill.failed} of its requests failed" if drill.failed else "no request failed"
    total = f"{sum(outcome.requests.values()):,} requests in all"
    typer.echo(f"version {drill.version} served throughout, {total}: {failed}", err=True)
