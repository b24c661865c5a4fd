"""Format what `ml release` and `ml gate` print: states, plans, canaries, decisions by gate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from ml.cli.render import output
from ml.core.terminal import printable, readable, unfiltered

if TYPE_CHECKING:
    from ml.backends.model_registry import Version
    from ml.measures.schema import Evaluation
    from ml.release.audit import Attempt
    from ml.release.promotion.gate_check import Released
    from ml.release.promotion.propose import Proposal
    from ml.release.rollout.drill import Drilled
    from ml.release.rollout.plan import Plan
    from ml.release.rollout.status import Status
    from policies.promotion.decision import Decision, Request, Result


# Number of feature contributions that are printed.
TOP = 3
# Printed characters of a digest, including `sha256:`.
SHORT = 19
# An AUC of at least HIGH_AUC that exceeds a linear model's by ABOVE_LINEAR suggests leakage through
# an interaction of columns.
HIGH_AUC, ABOVE_LINEAR = 0.85, 0.1
# The width of the table if stderr is not a terminal.
LOG_WIDTH = 140
# Width of a row's verdict, gate name and brackets, without details and requirement.
BESIDE = 38
# Verdict → its style, in the order of printing.
VERDICT_STYLES = {
    "fail": "bold red",
    "waived": "bold yellow",
    "warn": "bold yellow",
    "pending": "yellow",
    "pass": "green",
    "not evaluated": "dim",
}
# The verdicts that require no action.
SILENT = ("pass", "not evaluated")


def next_text(project: str, environment: str, on: str | None) -> str:
    """Return the line with the command that applies a new declaration."""
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
    """Return the line with the command that explains a rejection, and the guide."""
    where = "" if request.environment == "local" else f" --env {request.environment}"
    where += "" if request.simulated else " --on azure"
    command = f"ml gate {request.model} {request.version}{where} --all"
    return f"next: {command}, and docs/how-to/pass-a-gate.md"


def status_text(state: Status) -> str:
    """Format the status of a release, without values that equal the declared ones.

    It is one line if nothing was ever declared or applied.
    """
    head = f"{state.project} in {state.environment}: {state.verdict}"
    if state.declared is None and state.last_attempt is None:
        return head
    by = f", signed off by {state.signed_off}" if state.serving and state.signed_off else ""
    url = f" at {state.url}" if state.url else ""
    declared = named(state.model, state.declared, state.digest) if state.declared else "nothing"
    last = state.last_attempt
    is_news = last and (last.outcome, last.version) != ("applied", state.serving)
    rows = [
        ("declared", declared),
        ("champion", "" if state.champion == state.declared else state.champion or "none yet"),
        ("serving", f"{state.serving or 'nothing'}{url}{by}"),
        ("beside", state.beside),
        ("last", _attempt(last) if last and is_news else ""),
        *(("rejected", _attempt(refused)) for refused in state.refused),
        ("audit", "" if state.audit == "verified" else state.audit),
    ]
    return "\n".join([head, *(f"  {name:<9} {text}" for name, text in rows if text)])


def rollout_text(rollout: Plan) -> str:
    """Format a plan: the declared version, the serving version, and the steps of an apply."""
    declared, serving = rollout.entry, rollout.serving
    version = named(declared.model, declared.version, declared.digest) if declared else "nothing"
    serves = "nothing"
    if serving:
        serves = named("version", serving.version, serving.digest)
        serves += "" if serving.url else ", stopped"
    lines = [f"{rollout.project} in {rollout.environment}: {rollout.verdict}"]
    lines += [f"  declared  {version}", f"  serving   {serves}"]
    lines += [f"  {number}. {step}" for number, step in enumerate(rollout.steps, 1)]
    return "\n".join(lines)


def pending_text(proposal: Proposal, pending: Version) -> str:
    """Return a sentence about `pending`, a declared but never applied version.

    The candidate had to beat it as well as the champion.
    """
    text = f"version {pending.version} is declared and was never applied: it had to be beaten too"
    if proposal.written:
        return f"{text}, and is no longer declared"
    request = proposal.decision.request
    where = "local" if request.simulated else "azure"
    place = "" if request.environment == "local" else f" --env {request.environment} --on {where}"
    return f"{text}; ml release rollback {pending.project}{place} --reason TEXT takes it back"


def facts_text(evaluation: Evaluation) -> str:
    """Format an evaluation: primary metric, linear model, strongest feature, contributions."""
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
    """Format a version with the beginning of its digest: `churn 3 (sha256:0123456789ab)`."""
    return f"{model} {version} ({digest[:SHORT]})"


def _attempt(attempt: Attempt) -> str:
    why = f": {attempt.why}" if attempt.why else ""
    by = f", for {attempt.by}" if attempt.by else ""
    moment = attempt.time[:16].replace("T", " ")
    return f"version {attempt.version} {attempt.outcome} on {moment}{by}{why}"


def show_drill(drill: Drilled) -> None:
    """Print the result of a drill: the rollback of the faulty version, and failed requests."""
    outcome = drill.outcome
    if outcome.kind == "rolled-back":
        took = f"{outcome.seconds:.0f} s"
        typer.echo(f"rolled back at {outcome.step} % after {took}: {outcome.why}", err=True)
    else:
        typer.echo("the canary did not notice the fault; green was removed anyway", err=True)
    failed = f"{drill.failed} of its requests failed" if drill.failed else "no request failed"
    total = f"{sum(outcome.requests.values()):,} requests in all"
    typer.echo(f"version {drill.version} served throughout, {total}: {failed}", err=True)


def show_decision(decision: Decision, waits: str = "", every: bool = False) -> None:
    """Print the gates and the outcome on stderr, failed gates first.

    A gate that does not pass has its requirement and the reason. Gates that pass share one line, or
    with `every` have one each. `waits` is the declared but not yet applied version that the
    candidate was compared with; "" if it was the champion.
    """
    from rich.table import Table
    from rich.text import Text

    request = decision.request
    against = f"against champion {decision.champion}" if decision.champion else "no champion yet"
    against = request.set_aside if request.set_aside and not decision.champion else against
    if waits:
        against = f"against version {waits}, which is declared and not yet applied"
    console = output.console(stderr=True, width=None if sys.stderr.isatty() else LOG_WIDTH)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    order = [*VERDICT_STYLES]
    results = sorted(
        decision.results, key=lambda result: (not result.blocks, order.index(result.mark))
    )
    for result in results:
        if result.mark in SILENT and not every:
            continue
        verdict = Text(verdict_text(result), style=VERDICT_STYLES[result.mark])
        details = Text("\n".join(_details(result)))
        if result.mark == "pass" and len(details) + len(result.required) < console.width - BESIDE:
            details.append(f"  ({result.required})", style="dim")
        table.add_row(verdict, result.gate, details)
    for verdict_word in () if every else SILENT:
        gates = [result.gate for result in results if result.mark == verdict_word]
        if gates:
            count = f"{len(gates)} gate{'s' * (len(gates) > 1)}"
            table.add_row(
                Text(verdict_word, style=VERDICT_STYLES[verdict_word]), count, ", ".join(gates)
            )
    with console.capture() as drawn:
        console.print(Text(f"{request.model} {request.version} → {request.environment}, {against}"))
        console.print(table)
        console.print(Text(conclusion(decision)))
    # Strip the padding that Rich adds to each line.
    lines = (f"{line.rstrip()}\n" for line in drawn.get().splitlines())
    unfiltered(sys.stderr).write("".join(lines))


def released(state: Released, environment: str) -> str:
    """Format the result of today's gates for the released version, with the gates that fail."""
    if (decision := state.decision) is None:
        return f"? {state.project} in {environment}: {readable(state.error)}"
    head = f"{decision.request.model} {decision.request.version} in {environment}"
    lines = [f"✘ {head}: would be rejected" if decision.blocking else f"✔ {head}: passes"]
    for result in decision.blocking:
        lines.append(f"    {result.gate}: {'; '.join(filter(None, [result.actual, result.why]))}")
        lines.append(f"      required: {result.required}")
    return "\n".join(map(printable, lines))


def _details(result: Result) -> list[str]:
    """Return a gate's details as lines; unless it passes, with its requirement and the reason."""
    if result.mark in SILENT:
        return [" · ".join(filter(None, (result.actual, result.why)))]
    lines = [f"warning: {sentence}" for sentence in result.warnings]
    if result.mark != "warn":
        lines = [result.actual, f"required: {result.required}", *lines]
    return lines + ([f"because: {result.why}"] if result.why else [])


def verdict_text(result: Result) -> str:
    """Return the verdict, with the gate's mode unless that is `enabled`."""
    return result.mark if result.mode == "enabled" else f"{result.mark} ({result.mode})"


def conclusion(decision: Decision) -> str:
    """Return the decision's outcome as a sentence."""
    name = f"{decision.request.model} {decision.request.version}"
    where = decision.request.environment
    if decision.request.simulated and where != "local":
        where += ", simulated on this machine"
    waived = ", ".join(result.gate for result in decision.waived)
    but = f"; waived, not passed: {waived}" if waived else ""
    but += f"; not compared: {decision.request.set_aside}" if decision.request.set_aside else ""
    warned = ", ".join(result.gate for result in decision.results if result.warnings)
    but += f"; with warnings: {warned}" if warned else ""
    match decision.outcome:
        case "rejected":
            gates = ", ".join(result.gate for result in decision.blocking)
            return f"rejected: {name} does not go to {where}; gates that failed: {gates}"
        case "already-champion":
            broken = ", ".join(result.gate for result in decision.blocking)
            changed = f"; but it changed since it was promoted: {broken}" if broken else ""
            return f"{name} is already the champion of {where}; nothing to promote{changed}"
        case "pending":
            return f"passes: {name} may go to {where} once somebody approves it{but}"
        case "approved":
            return f"approved by {decision.request.approved_by}: {name} may go to {where}{but}"
