"""What runs have logged, read straight from MLflow's SQLite file: a query costs microseconds.

The tables are MLflow 3.15's, which is pinned; a test compares what is read with MlflowClient.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ml.backends.base import Curve
from ml.core.home import database

# MLflow stores infinities as the largest finite double, and NaN as 0 with a flag.
_LARGEST = 1.7976931348623157e308
# Variables of one statement: SQLite takes 999 at least.
_VARIABLES = 900


def value(stored: float, is_nan: int) -> float:
    """A stored metric as the script logged it: NaN and the infinities come back as such."""
    if is_nan:
        return math.nan
    return math.copysign(math.inf, stored) if abs(stored) >= _LARGEST else stored


class _Reader:
    """A connection that stays open: reading the schema anew costs more than the query.

    Another process or another file of that name gets another one. A connection that came over a
    fork is not even closed, which would be using it.
    """

    def __init__(self) -> None:
        self._known: tuple[object, ...] = ()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []

    def connection(self) -> sqlite3.Connection:
        """One that reads the store as it is now."""
        path = database()
        try:
            found = path.stat()
        except FileNotFoundError:
            found = None
        place = (os.getpid(), path, found and (found.st_dev, found.st_ino))
        if self._connection is None or place != self._known:
            self.close()
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection = None
            self._connection = sqlite3.connect(
                f"file:{path}?mode=ro", uri=True, timeout=10, check_same_thread=False
            )
            self._known = place
        return self._connection

    def close(self) -> None:
        """Let go of the store."""
        if self._connection is not None and self._known[:1] == (os.getpid(),):
            self._connection.close()
            self._connection = None


_reader = _Reader()


def close() -> None:
    """Let go of the store, until something is read again."""
    _reader.close()


@contextmanager
def _reading() -> Iterator[sqlite3.Connection]:
    try:
        yield _reader.connection()
    except sqlite3.Error:
        _reader.close()
        raise


def latest(run_id: str) -> dict[str, float]:
    """The last value of every metric of a run."""
    with _reading() as connection:
        rows = connection.execute(
            "SELECT key, value, is_nan FROM latest_metrics WHERE run_uuid = ? ORDER BY key",
            (run_id,),
        )
        return {sys.intern(key): value(stored, is_nan) for key, stored, is_nan in rows}


def curve(run_id: str, metric: str) -> list[float]:
    """Every value that the run has logged of the metric, in the order of their arrival."""
    with _reading() as connection:
        rows = connection.execute(
            "SELECT value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY rowid",
            (run_id, metric),
        )
        return [value(stored, is_nan) for stored, is_nan in rows]


def curves(run_ids: Sequence[str], metric: str) -> Mapping[str, Curve]:
    """Run id → every (step, value) that the run logged; runs without the metric are left out."""
    found: dict[str, list[tuple[int, float]]] = {}
    for run_id, step, stored, is_nan in _rows(
        "SELECT run_uuid, step, value, is_nan FROM metrics"
        " WHERE key = ? AND run_uuid IN ({}) ORDER BY rowid",
        run_ids,
        metric,
    ):
        found.setdefault(run_id, []).append((step, value(stored, is_nan)))
    return {run_id: tuple(points) for run_id, points in found.items()}


def all_curves(run_id: str) -> Mapping[str, Curve]:
    """Metric → every (step, value) that the run logged."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key, step, stored, is_nan in _rows(
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid IN ({}) ORDER BY rowid",
        [run_id],
    ):
        found.setdefault(key, []).append((step, value(stored, is_nan)))
    return {key: tuple(points) for key, points in sorted(found.items())}


def tag(run_ids: Sequence[str], key: str) -> Mapping[str, str]:
    """Run id → the tag's value; runs without it are left out."""
    statement = "SELECT run_uuid, value FROM tags WHERE key = ? AND run_uuid IN ({})"
    return dict(_rows(statement, run_ids, key))


def _rows(statement: str, run_ids: Sequence[str], *parameters: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with _reading() as connection:
        for start in range(0, len(run_ids), _VARIABLES):
            ids = run_ids[start : start + _VARIABLES]
            marks = ", ".join("?" * len(ids))
            rows += connection.execute(statement.format(marks), (*parameters, *ids))
    return rows


class Feed:
    """The values of one metric as runs log them, in the order of their arrival."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        with _reading() as connection:
            (self._seen,) = connection.execute(
                "SELECT coalesce(max(rowid), 0) FROM metrics"
            ).fetchone()

    def new(self) -> list[tuple[str, float]]:
        """(run id, value) of everything that was logged since the last call; cost: the new rows."""
        with _reading() as connection:
            rows = connection.execute(
                "SELECT rowid, key, run_uuid, value, is_nan FROM metrics"
                " WHERE rowid > ? ORDER BY rowid",
                (self._seen,),
            ).fetchall()
        if rows:
            self._seen = rows[-1][0]
        return [
            (run_id, value(stored, is_nan))
            for _, key, run_id, stored, is_nan in rows
            if key == self._metric
        ]
