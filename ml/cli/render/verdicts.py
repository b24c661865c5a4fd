"""A decision for a person: the gates with their verdicts, the values and the requirements."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ml.cli.render import output
from ml.core.terminal import printable, readable, unfiltered

if TYPE_CHECKING:
    from ml.release.promotion.gate_check import Released
    from policies.promotion.decision import Decision, Result

# The width where stderr is not a terminal: lines of a log may be long.
LOG_WIDTH = 140
# The columns that verdict, gate and brackets take.
BESIDE = 38
# The verdicts in the order in which they are printed.
STYLES = {
    "fail": "bold red",
    "waived": "bold yellow",
    "warn": "bold yellow",
    "pending": "yellow",
    "pass": "green",
    "not evaluated": "dim",
}
# The verdicts that ask nothing of a person.
SILENT = ("pass", "not evaluated")


def show(decision: Decision, waits: str = "", every: bool = False) -> None:
    """Print the gates and the outcome on stderr, what failed first.

    A gate that does not pass has its requirement and the reason below. Those that pass are named in
    one line, or with `every` have one each. `waits` is the version that it was compared with when
    that is declared and not yet champion.
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
    order = [*STYLES]
    results = sorted(
        decision.results, key=lambda result: (not result.blocks, order.index(result.mark))
    )
    for result in results:
        if result.mark in SILENT and not every:
            continue
        verdict = Text(verdict_text(result), style=STYLES[result.mark])
        details = Text("\n".join(_details(result)))
        if result.mark == "pass" and len(details) + len(result.required) < console.width - BESIDE:
            details.append(f"  ({result.required})", style="dim")
        table.add_row(verdict, result.gate, details)
    for verdict_word in () if every else SILENT:
        gates = [result.gate for result in results if result.mark == verdict_word]
        if gates:
            count = f"{len(gates)} gate{'s' * (len(gates) > 1)}"
            table.add_row(Text(verdict_word, style=STYLES[verdict_word]), count, ", ".join(gates))
    with console.capture() as drawn:
        console.print(Text(f"{request.model} {request.version} → {request.environment}, {against}"))
        console.print(table)
        console.print(Text(conclusion(decision)))
    # A table's lines are filled up to its width.
    lines = (f"{line.rstrip()}\n" for line in drawn.get().splitlines())
    unfiltered(sys.stderr).write("".join(lines))


def released(state: Released, environment: str) -> str:
    """What today's gates say of what a project serves, with the gates that reject it."""
    if (decision := state.decision) is None:
        return f"? {state.project} in {environment}: {readable(state.error)}"
    head = f"{decision.request.model} {decision.request.version} in {environment}"
    lines = [f"✘ {head}: would be rejected" if decision.blocking else f"✔ {head}: passes"]
    for result in decision.blocking:
        lines.append(f"    {result.gate}: {'; '.join(filter(None, [result.found, result.why]))}")
        lines.append(f"      required: {result.required}")
    return "\n".join(map(printable, lines))


def _details(result: Result) -> list[str]:
    """What was found; of a gate that does not pass, what it requires and why."""
    if result.mark in SILENT:
        return [" · ".join(filter(None, (result.found, result.why)))]
    lines = [f"warning: {sentence}" for sentence in result.warnings]
    if result.mark != "warn":
        lines = [result.found, f"required: {result.required}", *lines]
    return lines + ([f"because: {result.why}"] if result.why else [])


def verdict_text(result: Result) -> str:
    """The verdict, and the gate's mode where it changes what the verdict does."""
    return result.mark if result.mode == "enabled" else f"{result.mark} ({result.mode})"


def conclusion(decision: Decision) -> str:
    """The outcome in a sentence."""
    name = f"{decision.request.model} {decision.request.version}"
    where = decision.request.environment
    if decision.request.rehearsal and where != "local":
        where += ", as a rehearsal on this machine"
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
