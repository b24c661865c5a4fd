"""A decision for a person: every gate with its verdict, the value and the requirement."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.promotion.decision import Decision, Result

# The width where stderr is not a terminal: lines of a log may be long.
LOG_WIDTH = 140
# The columns that verdict, gate and brackets take.
BESIDE = 34
STYLES = {
    "pass": "green",
    "fail": "bold red",
    "waived": "bold yellow",
    "pending": "yellow",
    "not asked": "dim",
}


def show(decision: Decision, waits: str = "") -> None:
    """Print every gate and the outcome on stderr.

    `waits` is the version that it was compared with when that is declared and not yet champion. A
    gate that passes takes one line; another one has its requirement and the reason below.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    request = decision.request
    against = f"against champion {decision.champion}" if decision.champion else "no champion yet"
    if waits:
        against = f"against version {waits}, which is declared and waits"
    console = Console(stderr=True, width=None if sys.stderr.isatty() else LOG_WIDTH)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for result in decision.results:
        verdict = Text(verdict_text(result), style=STYLES[result.verdict])
        details = Text("\n".join(_details(result)))
        if (
            result.verdict == "pass"
            and len(details) + len(result.required) < console.width - BESIDE
        ):
            details.append(f"  ({result.required})", style="dim")
        table.add_row(verdict, result.gate, details)
    with console.capture() as drawn:
        console.print(Text(f"{request.model} {request.version} → {request.environment}, {against}"))
        console.print(table)
        console.print(Text(conclusion(decision)))
    # A table's lines are filled up to its width.
    sys.stderr.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def _details(result: Result) -> list[str]:
    """What was found; of a gate that does not pass, what it requires and why."""
    if result.verdict in ("pass", "not asked"):
        return [" · ".join(filter(None, (result.found, result.why)))]
    lines = [result.found, f"required: {result.required}"]
    return lines + ([f"because: {result.why}"] if result.why else [])


def verdict_text(result: Result) -> str:
    """The verdict, and the gate's mode where it changes what the verdict does."""
    return result.verdict if result.mode == "enabled" else f"{result.verdict} ({result.mode})"


def conclusion(decision: Decision) -> str:
    """The outcome in a sentence."""
    name = f"{decision.request.model} {decision.request.version}"
    where = decision.request.environment
    waived = ", ".join(result.gate for result in decision.waived)
    but = f"; waived, not passed: {waived}" if waived else ""
    match decision.outcome:
        case "refused":
            gates = ", ".join(result.gate for result in decision.blocking)
            return f"refused: {name} does not go to {where}; gates that failed: {gates}"
        case "already-champion":
            broken = ", ".join(result.gate for result in decision.blocking)
            changed = f"; but it changed since it was promoted: {broken}" if broken else ""
            return f"{name} is already the champion of {where}; nothing to promote{changed}"
        case "pending":
            return f"passes: {name} may go to {where} once somebody approves it{but}"
        case "approved":
            return f"approved by {decision.request.approved_by}: {name} may go to {where}{but}"
