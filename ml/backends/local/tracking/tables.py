"""What the executor itself writes of a run, straight into MLflow's tables: 0.3 ms, not 250.

The tables are those of one version of MLflow's schema. A store of any other is left to
MlflowClient, and so is everything that MLflow would check, shorten or refuse: `Unusual` is raised
before a row is written. A test writes the same runs both ways and compares what MlflowClient reads.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# The revision of MLflow 3.15's schema (table alembic_version), the one that is tested.
SCHEMA = "6f8d9c3b2a1e"
LARGEST = 1.7976931348623157e308  # what MLflow stores for an infinity

# Keys and values that MLflow takes as they are (mlflow.utils.validation: 250 characters of this
# alphabet and no path in the key; shortened are values from 6,000 on).
_KEY = re.compile(r"\w[\w.\- :]{0,249}", re.ASCII)
_VALUE = 5000
# An experiment's name, and the place of its artifacts, that stand in the tables as they are given.
_EXPERIMENT = re.compile(r"\w[\w.\-]{0,127}", re.ASCII)
_PLACE = re.compile(r"/[\w./\-]{1,140}", re.ASCII)


class Unusual(Exception):
    """Something that MLflow has to look at itself; nothing was written."""


class Tables:
    """An open connection to the store; one that is not of `SCHEMA` raises Unusual.

    Every method is one transaction, and waits `patience_s` for other writers. What was written is
    there after a crash of the program; a crash of the machine may cost the last seconds
    (synchronous=NORMAL in WAL mode) and never the store.
    """

    def __init__(self, database: Path, patience_s: float) -> None:
        self._connection = sqlite3.connect(
            database, timeout=patience_s, isolation_level=None, check_same_thread=False
        )
        self._artifacts: dict[str, str] = {}
        try:
            found = self._connection.execute("SELECT version_num FROM alembic_version").fetchall()
            if found != [(SCHEMA,)]:
                raise Unusual(found)
            self._connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the store."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        # Immediate: a transaction that begins by reading cannot wait for a writer any more.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def experiment(self, name: str, artifacts: Path) -> str:
        """The id of the active experiment of that name, made (its artifacts there) if need be."""
        place = str(artifacts)
        if not _EXPERIMENT.fullmatch(name) or not _PLACE.fullmatch(place):
            raise Unusual(name)
        found = self._experiment(name)
        if found is None:
            now = _now()
            with self._writing() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO experiments (name, artifact_location, lifecycle_stage,"
                    " creation_time, last_update_time) VALUES (?, ?, 'active', ?, ?)",
                    (name, place, now, now),
                )
            found = self._experiment(name)
        if found is None or found[1] != "active" or not _PLACE.fullmatch(found[2] or ""):
            raise Unusual(name)
        self._artifacts[str(found[0])] = found[2]
        return str(found[0])

    def _experiment(self, name: str) -> tuple[int, str, str] | None:
        found: tuple[int, str, str] | None = self._connection.execute(
            "SELECT experiment_id, lifecycle_stage, artifact_location FROM experiments"
            " WHERE name = ? AND workspace = 'default'",
            (name,),
        ).fetchone()
        return found

    def start(self, experiment: str, name: str, user: str, tags: Mapping[str, str]) -> str:
        """The id of a new run that is RUNNING, as MlflowClient.create_run makes it."""
        _demand_plain(tags)
        _demand_plain({"name": name, "user": user})
        if experiment not in self._artifacts or len(name) > 250 or len(user) > 250:
            raise Unusual(experiment)
        run_id = uuid.uuid4().hex
        place = f"{self._artifacts[experiment]}/{run_id}/artifacts"
        with self._writing() as connection:
            (stage,) = connection.execute(
                "SELECT lifecycle_stage FROM experiments WHERE experiment_id = ?", (experiment,)
            ).fetchone()
            if stage != "active":
                raise Unusual(experiment)
            connection.execute(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name,"
                " user_id, status, start_time, source_version, lifecycle_stage, artifact_uri,"
                " experiment_id) VALUES (?, ?, 'UNKNOWN', '', '', ?, 'RUNNING', ?, '', 'active',"
                " ?, ?)",
                (run_id, name, user, _now(), place, experiment),
            )
            _put_tags(connection, run_id, {**tags, "mlflow.runName": name})
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        _demand_plain(tags)
        if "mlflow.runName" in tags:
            raise Unusual("mlflow.runName")  # it renames the run
        with self._writing() as connection:
            _demand_active(connection, run_id)
            _put_tags(connection, run_id, tags)

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Log a first value of metrics that the run does not have yet."""
        _demand_plain(dict.fromkeys(metrics, ""))
        now = _now()
        rows = [(key, *_stored(value), now, run_id) for key, value in metrics.items()]
        with self._writing() as connection:
            _demand_active(connection, run_id)
            known = connection.execute("SELECT key FROM metrics WHERE run_uuid = ?", (run_id,))
            if {key for (key,) in known} & set(metrics):
                raise Unusual(run_id)
            for table in ("metrics", "latest_metrics"):
                connection.executemany(
                    f"INSERT INTO {table} (key, value, is_nan, timestamp, run_uuid, step)"
                    " VALUES (?, ?, ?, ?, ?, 0)",
                    rows,
                )

    def end(self, run_id: str, status: str, parameters: Mapping[str, str]) -> None:
        """Close the run and add the parameters of whose names it has none."""
        _demand_plain(parameters)
        with self._writing() as connection:
            _demand_active(connection, run_id)
            connection.executemany(
                "INSERT OR IGNORE INTO params (key, value, run_uuid) VALUES (?, ?, ?)",
                [(key, value, run_id) for key, value in parameters.items()],
            )
            connection.execute(
                "UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?",
                (status, _now(), run_id),
            )

    def reopen(self, run_id: str) -> None:
        """Let a closed run be RUNNING again, without an end time."""
        with self._writing() as connection:
            _demand_active(connection, run_id)
            connection.execute(
                "UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?", (run_id,)
            )

    def rename(self, run_id: str, name: str) -> None:
        """Give a run another name."""
        _demand_plain({"name": name})
        if len(name) > 250:
            raise Unusual(name)
        with self._writing() as connection:
            _demand_active(connection, run_id)
            connection.execute("UPDATE runs SET name = ? WHERE run_uuid = ?", (name, run_id))
            _put_tags(connection, run_id, {"mlflow.runName": name})

    def tagged(self, tag: str, value: str) -> list[str]:
        """The ids of the runs whose tag has that value."""
        found = self._connection.execute(
            "SELECT run_uuid FROM runs JOIN tags USING (run_uuid)"
            " WHERE key = ? AND tags.value = ? AND lifecycle_stage = 'active'",
            (tag, value),
        )
        return [run_id for (run_id,) in found]

    def running(self, tag: str) -> list[tuple[str, str]]:
        """(run id, value of that tag) of every run that nobody has closed."""
        return self._connection.execute(
            "SELECT run_uuid, tags.value FROM runs JOIN tags USING (run_uuid)"
            " WHERE status = 'RUNNING' AND lifecycle_stage = 'active' AND key = ?",
            (tag,),
        ).fetchall()

    def artifacts_of(self, run_id: str) -> str:
        """Where the run's artifacts lie; Unusual when there is no such run."""
        found = self._connection.execute(
            "SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,)
        ).fetchone()
        if found is None:
            raise Unusual(run_id)
        return str(found[0])


def _put_tags(connection: sqlite3.Connection, run_id: str, tags: Mapping[str, str]) -> None:
    connection.executemany(
        "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)"
        " ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value",
        [(key, value, run_id) for key, value in tags.items()],
    )


def _demand_plain(texts: Mapping[str, str]) -> None:
    for key, value in texts.items():
        if not _KEY.fullmatch(key) or len(value) > _VALUE:
            raise Unusual(key)


def _demand_active(connection: sqlite3.Connection, run_id: str) -> None:
    found = connection.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,))
    if found.fetchone() != ("active",):
        raise Unusual(run_id)


def _stored(value: float) -> tuple[float, bool]:
    """As MLflow stores it: NaN as a flag, an infinity as the largest number."""
    if math.isnan(value):
        return 0.0, True
    return (math.copysign(LARGEST, value) if math.isinf(value) else value), False


def _now() -> int:
    return int(time.time() * 1000)
