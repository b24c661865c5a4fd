"""Define the arguments and options that several commands share, and parse their values."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated

import typer

from ml.core.errors import Problem, UserError


def _checked_goal(goal: str | None) -> str | None:
    from ml.backends.ranking import GOALS

    if goal not in (None, *GOALS):
        raise UserError(Problem("no-such-goal", f"--goal {goal}", " or ".join(GOALS)))
    return goal


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A name or id; `latest` skips the runs of releases.")
]
Experiment = Annotated[str | None, typer.Option(help="Only this experiment.")]
Project = Annotated[str | None, typer.Option(help="Only this folder under ml/projects.")]
Since = Annotated[str | None, typer.Option(help="Only runs started since: 7d, 12h, 2026-11-20.")]
Environment = Annotated[
    str, typer.Option("--env", help="`local`, or one of release.yml.", metavar="ENV")
]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="The port; default: a free one.")]
On = Annotated[str, typer.Option("--on", help="The backend: local (this machine) or azure.")]
Metric = Annotated[str | None, typer.Option(help="The metric; default: that of the latest sweep.")]
Goal = Annotated[
    str | None,
    typer.Option(help="maximize or minimize; default: as for --metric.", callback=_checked_goal),
]
EveryGate = Annotated[
    bool, typer.Option("--all", help="Print every gate, not only those that did not pass.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def repeated_on(backend: str) -> str:
    """Return ` --on NAME` to append to a suggested command; "" for the local backend."""
    return "" if backend == "local" else f" --on {backend}"


def moment(option: str, text: str) -> float:
    """Parse a span before now (`7d`) or an ISO date or time; return epoch seconds.

    A time without a zone is local. Raises UserError, with the option's name, for anything else.
    """
    match = _SPAN.fullmatch(text.strip())
    if match:
        return time.time() - float(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        expected = "a span (30m, 12h, 7d, 4w) or a date (2026-11-20, 2026-11-20T14:00)"
        hint = f"for example: {option} 7d"
        raise UserError(Problem("not-a-time", f"{option} {text}", expected, hint)) from None


def seconds(option: str, text: str) -> float:
    """Parse `20s`, `5m` or `20`; return seconds. Raises UserError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if match:
        return float(match[1]) * _SECONDS[match[2] or "s"]
    hint = f"for example: {option} 20s"
    raise UserError(Problem("bad-duration", f"{option} {text}", "a span of time", hint))
