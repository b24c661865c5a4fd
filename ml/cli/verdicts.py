"""A decision as a person reads it: every gate, its verdict, what was found and required."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.promotion.decision import Decision, Result

# A table that is not for a terminal is for a log, where lines may be long.
LOG_WIDTH = 160
STYLES = {
    "pass": "green",
    "fail": "bold red",
    "waived": "bold yellow",
    "pending": "yellow",
    "not asked": "dim",
}


def show(decision: Decision) -> None:
    """Print the table of gates and the outcome on stderr."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    request = decision.request
    against = f"champion {decision.champion}" if decision.champion else "no champion yet"
    table = Table(
        title=f"{request.model} {request.version} → {request.environment}, against {against}",
        title_justify="left",
    )
    for column in ("gate", "verdict", "found", "required", "why"):
        table.add_column(column, overflow="fold")
    for result in decision.results:
        verdict = Text(said(result), style=STYLES[result.verdict])
        table.add_row(result.gate, verdict, result.found, result.required, result.why)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else LOG_WIDTH)
    console.print(table)
    console.print(Text(conclusion(decision)))


def said(result: Result) -> str:
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
            return f"refused: {name} does not go to {where}; gates that say no: {gates}"
        case "already-champion":
            return f"already the champion: {name} is what {where} is to serve; nothing to promote"
        case "pending":
            return f"passes: {name} may go to {where} once somebody approves it{but}"
        case "approved":
            return f"approved by {decision.request.approved_by}: {name} may go to {where}{but}"
