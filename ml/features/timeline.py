"""Define a source's time columns and its errors; lookups import this module without polars."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

SHORTEST, LONGEST = timedelta(hours=1), timedelta(days=90)  # of a window
# The `source_lookback` of the feature set whose transformation runs: no window may be longer.
# `windows` reads it from this variable because a transformation does not get its definition.
source_lookback_limit: ContextVar[timedelta | None] = ContextVar(
    "source_lookback_limit", default=None
)


class FeatureError(Exception):
    """An error in a table or definition: the column, the row, and what is expected."""

    def __init__(self, code: str, message: str, expected: str, row: int | None = None) -> None:
        """`message` names the column; `row` is the position in the table, from 0."""
        self.problem, self.row = message, row
        message = message if row is None else f"row {row}: {message}"
        super().__init__(f"{message}; expected: {expected}")
        self.code = code
        self.message = message
        self.expected = expected


@dataclass(frozen=True)
class Timeline:
    """The columns that state when a source's rows happened and arrived.

    A row is available from `max(event + delay, arrival)`. Without an arrival column, that is
    `event + delay`, which is `source_delay` of Azure ML's FeatureSetSpec.
    """

    event: str  # column of the event time
    arrival: str | None = None  # column of the time at which the row was written
    delay: timedelta = timedelta(0)  # not negative
