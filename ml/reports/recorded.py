"""What MLflow's store holds of runs: every value of a metric, and tags.

Read straight from SQLite, as `tracking.history` does and for its reason: a sweep of a
thousand trials is read in milliseconds. A test compares with MlflowClient.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from ml.backends.local.tracking.history import value
from ml.core.home import database

# (step, value) in the order in which a script logged them.
Curve = tuple[tuple[int, float], ...]
# Variables of one statement: SQLite takes 999 at least.
_AT_ONCE = 900


def curves(run_ids: Sequence[str], metric: str) -> Mapping[str, Curve]:
    """Run id → everything it logged of the metric; runs that logged none are left out.

    Raises sqlite3.Error when there is no store or it cannot be read.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for run_id, step, stored, is_nan in _rows(
        "SELECT run_uuid, step, value, is_nan FROM metrics"
        " WHERE key = ? AND run_uuid IN ({}) ORDER BY rowid",
        run_ids,
        metric,
    ):
        found.setdefault(run_id, []).append((step, value(stored, is_nan)))
    return {run_id: tuple(curve) for run_id, curve in found.items()}


def metrics(run_id: str) -> Mapping[str, Curve]:
    """Metric → everything that the run logged of it; raises as `curves`."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key, step, stored, is_nan in _rows(
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid IN ({}) ORDER BY rowid",
        [run_id],
    ):
        found.setdefault(key, []).append((step, value(stored, is_nan)))
    return {key: tuple(curve) for key, curve in sorted(found.items())}


def tag(run_ids: Sequence[str], key: str) -> Mapping[str, str]:
    """Run id → the tag's text; runs without it are left out. Raises as `curves`."""
    statement = "SELECT run_uuid, value FROM tags WHERE key = ? AND run_uuid IN ({})"
    return dict(_rows(statement, run_ids, key))


def _rows(statement: str, run_ids: Sequence[str], *first: str) -> Iterator[tuple[Any, ...]]:
    uri = f"file:{database()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
        for start in range(0, len(run_ids), _AT_ONCE):
            ids = run_ids[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(ids))
            yield from connection.execute(statement.format(marks), (*first, *ids))
