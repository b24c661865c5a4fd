"""Read metrics, runs and registered models from MLflow's SQLite file, without MLflow.

`import mlflow` takes two seconds and a query through its store milliseconds, too slow for lists,
for watching sweeps and for `ml release status`. The connection is read-only, and every SQL
statement on MLflow's tables is in this module. Tests compare the results with MlflowClient, since
another version of MLflow may change the tables. All functions raise sqlite3.Error if the file
cannot be read.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml.backends.model_registry import Version, parse_release_tags
from ml.backends.runs import Curve
from ml.core.home import database

# MLflow stores infinities as the largest finite double, and NaN as 0 with a flag.
_LARGEST = 1.7976931348623157e308
# Maximum number of variables in a statement: SQLite allows at least 999.
_VARIABLES = 900
_DELETED = "Deleted_Internal"
# The tags of a registered version.
DIGEST, PROJECT, EVIDENCE = "digest", "project", "evidence"


def mlflow_version() -> int:
    """Return the MLflow version that last opened the file, as a number; 0 if none did."""
    return int(_rows("PRAGMA user_version")[0][0])


def latest(run_id: str) -> dict[str, float]:
    """Return the last value of every metric of a run."""
    rows = _rows(
        "SELECT key, value, is_nan FROM latest_metrics WHERE run_uuid = ? ORDER BY key", run_id
    )
    return {sys.intern(key): value(stored, is_nan) for key, stored, is_nan in rows}


def curve(run_id: str, metric: str) -> list[float]:
    """Return every value of the metric in logging order; [] if the run did not log it."""
    return [value for _, value in curves([run_id], metric).get(run_id, ())]


def curves(run_ids: Sequence[str], metric: str) -> Mapping[str, Curve]:
    """Return run id → every (step, value) of the metric; runs without the metric are left out."""
    points: dict[str, list[tuple[int, float]]] = {}
    for run_id, step, stored, is_nan in _rows_of(
        run_ids,
        "SELECT run_uuid, step, value, is_nan FROM metrics"
        " WHERE key = ? AND run_uuid IN ({}) ORDER BY rowid",
        metric,
    ):
        points.setdefault(run_id, []).append((step, value(stored, is_nan)))
    return {run_id: tuple(values) for run_id, values in points.items()}


def all_curves(run_id: str) -> Mapping[str, Curve]:
    """Return metric → every (step, value) that the run logged."""
    points: dict[str, list[tuple[int, float]]] = {}
    for key, step, stored, is_nan in _rows(
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid", run_id
    ):
        points.setdefault(key, []).append((step, value(stored, is_nan)))
    return {key: tuple(values) for key, values in sorted(points.items())}


class Feed:
    """Reads new values of one metric in all runs, from its creation on."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        ((self._last,),) = _rows("SELECT coalesce(max(rowid), 0) FROM metrics")

    def new(self) -> list[tuple[str, float]]:
        """Return (run id, value) of everything logged since the last call; reads only new rows."""
        rows = _rows(
            "SELECT rowid, key, run_uuid, value, is_nan FROM metrics"
            " WHERE rowid > ? ORDER BY rowid",
            self._last,
        )
        if rows:
            self._last = rows[-1][0]
        return [
            (run_id, value(stored, is_nan))
            for _, key, run_id, stored, is_nan in rows
            if key == self._metric
        ]


def parameters(run_id: str) -> dict[str, str]:
    """Return the parameters of a run."""
    return dict(_rows("SELECT key, value FROM params WHERE run_uuid = ?", run_id))


def logged(run_id: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return a run's (name, text) pairs by `parameter`, `tag`, `metric` and `model`.

    MLflow's own tags are left out. A metric's text is "nan" if a value was NaN, else "".
    """
    statements = {
        "parameter": "SELECT key, value FROM params WHERE run_uuid = ?",
        "tag": "SELECT key, value FROM tags WHERE run_uuid = ? AND key NOT LIKE 'mlflow.%'",
        "metric": "SELECT key, CASE WHEN MAX(is_nan) THEN 'nan' ELSE '' END FROM metrics"
        " WHERE run_uuid = ? GROUP BY key",
        "model": "SELECT name, '' FROM logged_models WHERE source_run_id = ?",
    }
    return {word: list(_rows(statement, run_id)) for word, statement in statements.items()}


def tag(run_ids: Sequence[str], key: str) -> Mapping[str, str]:
    """Return run id → the tag's value; runs without the tag are left out."""
    return dict(
        _rows_of(
            run_ids, "SELECT run_uuid, value FROM tags WHERE key = ? AND run_uuid IN ({})", key
        )
    )


def tagged(key: str, value: str) -> list[str]:
    """Return the ids of the runs whose tag has that value."""
    rows = _rows(
        "SELECT run_uuid FROM runs JOIN tags USING (run_uuid)"
        " WHERE key = ? AND tags.value = ? AND lifecycle_stage = 'active'",
        key,
        value,
    )
    return [run_id for (run_id,) in rows]


def running(key: str) -> list[tuple[str, str]]:
    """Return (run id, value of the tag) of every RUNNING run with the tag."""
    return _rows(
        "SELECT run_uuid, tags.value FROM runs JOIN tags USING (run_uuid)"
        " WHERE status = 'RUNNING' AND lifecycle_stage = 'active' AND key = ?",
        key,
    )


def artifacts(run_id: str) -> str | None:
    """Return the artifact URI of the run; None if there is no such run."""
    rows = _rows("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
    return str(rows[0][0]) if rows else None


def model_versions() -> list[Version]:
    """Return every registered version of every model, by name and number."""
    tags: dict[tuple[str, int], dict[str, str]] = {}
    for model, number, key, value in _rows(
        "SELECT name, version, key, value FROM model_version_tags"
    ):
        tags.setdefault((model, number), {})[key] = value
    versions = []
    for model, number, run, source in _rows(
        "SELECT name, version, run_id, source FROM model_versions"
        " WHERE current_stage IS NOT ? ORDER BY name, version",
        _DELETED,
    ):
        model_tags = tags.get((model, number), {})
        digest, project, evidence = (model_tags.get(tag, "") for tag in (DIGEST, PROJECT, EVIDENCE))
        folder = (source or "").removeprefix("file://")
        version = (model, str(number), digest, project, run or "", evidence, folder)
        versions.append(Version(*version, **parse_release_tags(model_tags)))
    return versions


def models() -> list[str]:
    """Return the names of the registered models."""
    return [name for (name,) in _rows("SELECT name FROM registered_models ORDER BY name")]


def aliases() -> list[tuple[str, str, str]]:
    """Return (alias, model, version) of every alias of a registered model."""
    rows = _rows("SELECT alias, name, version FROM registered_model_aliases ORDER BY name, alias")
    return [(alias, model, str(number)) for alias, model, number in rows]


def close() -> None:
    """Close the connection; the next read opens it again."""
    _file.close()


class _File:
    """A cached connection: SQLite reads the schema at each connect, which is slower than a query.

    After a fork, or if the file was replaced, a new one is opened. An inherited connection is never
    closed, since SQLite forbids using it after a fork.
    """

    def __init__(self) -> None:
        self._identity: tuple[object, ...] = ()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []

    def connection(self) -> sqlite3.Connection:
        """Return the connection to the current file."""
        path = database()
        try:
            state = path.stat()
        except FileNotFoundError:
            state = None
        identity = (os.getpid(), path, state and (state.st_dev, state.st_ino))
        if self._connection is None or identity != self._identity:
            self.close()
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection = None
            self._connection = sqlite3.connect(
                f"file:{path}?mode=ro", uri=True, timeout=10, check_same_thread=False
            )
            self._identity = identity
        return self._connection

    def close(self) -> None:
        """Close the connection, unless another process opened it."""
        if self._connection is not None and self._identity[:1] == (os.getpid(),):
            self._connection.close()
            self._connection = None


_file = _File()


def _rows(statement: str, *parameters: object) -> list[Any]:
    try:
        return _file.connection().execute(statement, parameters).fetchall()
    except sqlite3.Error:
        _file.close()
        raise


def _rows_of(run_ids: Sequence[str], statement: str, *parameters: str) -> Iterator[Any]:
    """Yield the rows of many runs; `{}` in the statement is replaced by their ids, in batches."""
    for start in range(0, len(run_ids), _VARIABLES):
        some = run_ids[start : start + _VARIABLES]
        yield from _rows(statement.format(", ".join("?" * len(some))), *parameters, *some)


def value(stored: float, is_nan: int) -> float:
    """Return a stored metric as the script logged it, with NaN and infinities restored."""
    if is_nan:
        return math.nan
    return math.copysign(math.inf, stored) if abs(stored) >= _LARGEST else stored
