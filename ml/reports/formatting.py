"""Format values for people: numbers, times, sizes, digests, and text without secrets."""

from __future__ import annotations

import math
import time
from datetime import datetime

from ml.core.errors import Problem
from ml.specs.check.secret_patterns import secret_in

# Significant digits, enough to distinguish two trials. A tooltip has the full number.
DIGITS = 4
# Maximum characters of a parameter's value.
MAX_LETTERS = 40
HIDDEN = "(hidden)"
# A metric's sign → which of its values are better.
DIRECTIONS = {1: "higher is better", -1: "lower is better", 0: ""}


def number(value: float) -> str:
    """Format a number with four significant digits: 0.6610, 12,346, 1.2e−09, NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e7:
        text = f"{value:,.0f}"
    elif abs(value) >= 1e7 or abs(value) < 1e-4:
        text = f"{value:.{DIGITS - 3}e}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:#.{DIGITS}g}"
    return text.replace("-", "−")


def signed(value: float) -> str:
    """Format a difference with its sign and four significant digits: +0.0200."""
    return ("+" if value >= 0 else "") + number(value)


def signed_short(value: float) -> str:
    """Format a difference with its sign and at most three significant digits: +0.02."""
    return f"{value:+.3g}".replace("-", "−")


def amount(value: float | None, unit: str) -> str:
    """Format an amount with its unit; "missing" for None."""
    return "missing" if value is None else f"{number(value)} {unit}".rstrip()


def short(value: object) -> str:
    """Format a parameter's value: 0.1 instead of 0.1000; shorten long text."""
    if not isinstance(value, float):
        return shorten(str(value), MAX_LETTERS)
    text = number(value)
    if "e" in text:
        return text.replace(".0e", "e")
    return text.rstrip("0").rstrip(".") if "." in text else text


def shorten(text: str, letters: int) -> str:
    """Shorten text to `letters` characters by cutting its middle: names often differ at the end."""
    if len(text) <= letters:
        return text
    kept = max(2, letters - 1)
    return f"{text[: kept // 2]}…{text[-(kept - kept // 2) :]}"


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def ago(then: float) -> str:
    """Format a past time as `5 min ago`, or as its date if it is older than a month."""
    seconds = max(0.0, time.time() - then)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    days = seconds / 86400
    return f"{days:.0f} d ago" if days < 31 else datetime.fromtimestamp(then).date().isoformat()


def size(count: float) -> str:
    """Format bytes in the largest suitable unit: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def digest(value: str) -> str:
    """Return the first twelve digits of a digest or a commit."""
    return value.removeprefix("sha256:")[:12]


def count(number_of: int, noun: str, plural: str = "") -> str:
    """Format a count: 1 trial, 24 trials; `plural` is needed for an irregular plural."""
    return f"{number_of:,} {noun if number_of == 1 else plural or f'{noun}s'}"


def sentence(text: str) -> str:
    """Return the text with a capital at its start and a full stop at its end."""
    return f"{text[:1].upper()}{text[1:]}."


def redact(name: str, value: str | int | float | bool) -> str | int | float | bool:
    """Return a parameter's value, or `(hidden)` if it looks like a secret."""
    return HIDDEN if secret_in(name, value, is_variable=False) else value


def redact_line(line: str) -> str:
    """Return a line of a log, or a note instead if it contains a secret."""
    secret = secret_in("", line, is_variable=False)
    return f"(line redacted: it contains {secret})" if secret else line


def redact_text(text: str) -> str:
    """Return a text with each line redacted."""
    return "\n".join(redact_line(line) for line in text.splitlines())


def headline(problem: Problem) -> str:
    """Return the first line of a problem's `actual`, redacted; further lines may be a log."""
    first = next(iter(redact_text(problem.actual).splitlines()), problem.code)
    return first.partition("; the end of its log")[0]
