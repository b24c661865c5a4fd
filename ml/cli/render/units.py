"""Times, durations and sizes: reading them from options, writing them for people."""

from __future__ import annotations

import re
import time
from datetime import datetime

from ml.core.errors import Problem, Refused

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def moment(option: str, text: str) -> float:
    """Epoch seconds of `7d` (ago) or of an ISO date or time (local time without a zone).

    Raises Refused, naming the option, for anything else.
    """
    match = _SPAN.fullmatch(text.strip())
    if match:
        return time.time() - float(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        raise Refused(
            Problem(
                "not-a-time",
                f"{option} {text}",
                "a span (30m, 12h, 7d, 4w) or a date (2026-11-20, 2026-11-20T14:00)",
                f"for example: {option} 7d",
            )
        ) from None


def seconds(option: str, text: str) -> float:
    """The seconds of `20s`, `5m` or `20`; Refused, naming the option, for anything else."""
    match = _SPAN.fullmatch(text.strip())
    if match:
        return float(match[1]) * _SECONDS[match[2]]
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return float(text)
    raise Refused(
        Problem("not-a-span", f"{option} {text}", "a span of time", f"for example: {option} 20s")
    )


def ago(then: float) -> str:
    """`5 min ago`, and the date for what is older than a month."""
    seconds = max(0.0, time.time() - then)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    days = seconds / 86400
    return f"{days:.0f} d ago" if days < 31 else datetime.fromtimestamp(then).date().isoformat()


def span(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a number before the point: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
