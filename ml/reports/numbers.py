"""Numbers, durations and digests as a person reads them."""

from __future__ import annotations

import math

# Enough to tell two trials apart; the title of a number has all of them.
DIGITS = 4
# Letters of a parameter's value.
LONGEST = 40


def number(value: float) -> str:
    """A measured number in four digits: 0.6610, 12,346, 1.2e−09, NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e7:
        return _minus(f"{value:,.0f}")
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return _minus(f"{value:.{DIGITS - 3}e}")
    if size >= 1000:
        return _minus(f"{value:,.0f}")
    return _minus(f"{value:#.{DIGITS}g}")


def signed(value: float) -> str:
    """A difference, with its sign."""
    return ("+" if value >= 0 else "") + number(value)


def short(value: object) -> str:
    """A parameter's value: 0.1 and not 0.1000, text as it is, long text cut."""
    if isinstance(value, float):
        said = number(value)
        if "e" in said:
            return said.replace(".0e", "e")
        return said.rstrip("0").rstrip(".") if "." in said else said
    return shorten(str(value), LONGEST)


def shorten(text: str, room: int) -> str:
    """The text in that many letters, its middle left out: names often differ at their ends."""
    if len(text) <= room:
        return text
    kept = max(2, room - 1)
    return f"{text[: kept // 2]}…{text[-(kept - kept // 2) :]}"


def duration(seconds: float) -> str:
    """7.5 s, 1 min 2 s, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def digest(value: str) -> str:
    """The first twelve digits of a digest or a commit."""
    return value.removeprefix("sha256:")[:12]


def count(of: int, what: str) -> str:
    """1 trial, 24 trials."""
    return f"{of:,} {what}{'' if of == 1 else 's'}"


def _minus(said: str) -> str:
    return said.replace("-", "−")
