"""Create, tag, close and reopen the MLflow runs of jobs.

Runs are written by MLflow's SqlAlchemyStore. It is opened at the first write: importing MLflow
takes two seconds, in which a sweep can start its forkserver.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ml.backends.local.tracking import reader
from ml.backends.runs import Status
from ml.core import faults, files, home
from ml.core.imports import BIND
from ml.specs.plan.plans import Value

if TYPE_CHECKING:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

# MLflow's name for each final status.
MLFLOW_STATUS: dict[Status, str] = {
    "Completed": "FINISHED",
    "Failed": "FAILED",
    "Canceled": "KILLED",
}
# Timeout for another writer's lock of the database, in seconds.
PATIENCE_S = 10.0
# The tag with the job folder of an MLflow run.
JOB_FOLDER = "job.folder"


def prepare() -> subprocess.Popen[bytes] | None:
    """Start creating the database in the background if it is missing, since it takes seconds."""
    if home.database().exists():
        return None
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-c"),
            f"{BIND}; from ml.backends.local.tracking.tracking import Tracking; Tracking()",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Tracking:
    """The local MLflow database, opened for writing, and created if it is missing.

    If the database is locked, damaged or full, methods raise errors that `ml.core.faults` explains.
    """

    def __init__(self) -> None:
        # Settings for every import of MLflow in this process.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        # If two first runs start concurrently, one creates the tables and the other waits.
        with files.locked(home.home() / ".store.lock"):
            if home.database().exists():
                faults.probe(home.database(), PATIENCE_S)
            else:
                _create()
        if reader.mlflow_version() != _release():
            _ = self._store  # raises for an outdated database
            _mark_as_checked(home.database())
        self._experiments: dict[str, str] = {}

    def close(self) -> None:
        """Close the database."""
        if "_store" in self.__dict__:
            self._store.engine.dispose()
        reader.close()

    @cached_property
    def _store(self) -> SqlAlchemyStore:
        return _open(home.database())

    def _experiment(self, name: str) -> str:
        """Return the experiment's id; create it, with its artifacts in the home, if missing."""
        if name not in self._experiments:
            from mlflow.exceptions import MlflowException

            experiment = self._store.get_experiment_by_name(name)
            if experiment is None:
                try:
                    self._store.create_experiment(name, str(home.artifacts() / name))
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another process
                        raise
                experiment = self._store.get_experiment_by_name(name)
            self._experiments[name] = str(experiment.experiment_id)
        return self._experiments[name]

    def start(self, experiment: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        """Create a RUNNING run for the job folder; return its id."""
        from mlflow.entities import RunTag

        defaults = {"mlflow.source.type": "JOB", JOB_FOLDER: str(folder)}
        tags = {"mlflow.user": home.user(), **defaults, **tags}
        run = self._store.create_run(
            self._experiment(experiment),
            tags["mlflow.user"],
            _now(),
            [RunTag(key, value) for key, value in tags.items()],
            name,
        )
        return str(run.info.run_id)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        self._store.log_batch(run_id, [], [], [RunTag(key, value) for key, value in tags.items()])

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Log metrics as single values at step 0."""
        from mlflow.entities import Metric

        now = _now()
        points = [Metric(key, value, now, 0) for key, value in metrics.items()]
        self._store.log_batch(run_id, points, [], [])

    def end(self, run_id: str, status: Status, parameters: Mapping[str, Value]) -> None:
        """Close the run, and log the parameters that the script did not log, as text.

        This comes last, because MLflow rejects a second value: otherwise a script that logs `31.0`
        for the input `31` would fail here, but not on Azure ML.
        """
        from mlflow.entities import Param, RunStatus

        logged = reader.parameters(run_id) if parameters else {}
        missing = [Param(key, str(value)) for key, value in parameters.items() if key not in logged]
        if missing:
            self._store.log_batch(run_id, [], missing, [])
        self._store.update_run_info(
            run_id, RunStatus.from_string(MLFLOW_STATUS[status]), _now(), None
        )

    def reopen(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set an ended run to RUNNING and add the tags; its end time stays until it ends again."""
        from mlflow.entities import RunStatus

        self._store.update_run_info(run_id, RunStatus.RUNNING, None, None)
        self.tag(run_id, tags)

    def set_aside(self, run_id: str, name: str, folder: Path) -> None:
        """Close the run of an interrupted attempt: KILLED, renamed, with its moved job folder."""
        from mlflow.entities import RunStatus

        self._store.update_run_info(run_id, RunStatus.KILLED, _now(), name)
        self.tag(run_id, {JOB_FOLDER: str(folder), "attempt": "interrupted"})

    def runs_in(self, folder: Path) -> list[str]:
        """Return the ids of the runs with exactly this job folder."""
        return reader.tagged(JOB_FOLDER, str(folder))

    def running(self, job: Path) -> list[str]:
        """Return the ids of the RUNNING runs of a job, with its trials and steps."""
        open_runs = reader.running(JOB_FOLDER)
        return [run_id for run_id, folder in open_runs if Path(folder).is_relative_to(job)]

    def artifacts_of(self, run_id: str) -> Path:
        """Return the folder of the run's artifacts. Raise LookupError if there is no such run."""
        place = reader.artifacts(run_id)
        if place is None:
            raise LookupError(f"MLflow's store has no run {run_id}")
        return Path(place)


def _create() -> None:
    """Create the database under a temporary name, so that a kill leaves no partial one."""
    unfinished = home.database().with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        _make_tables(unfinished)
        # In WAL mode a sweep's reader and its trials' writers do not block each other.
        with closing(sqlite3.connect(unfinished)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        # SQLite would apply the log of a database that was moved away to the new one.
        for suffix in ("-wal", "-shm"):
            Path(f"{home.database()}{suffix}").unlink(missing_ok=True)
        unfinished.rename(home.database())
    finally:
        unfinished.unlink(missing_ok=True)


def _make_tables(database: Path) -> None:
    """Create the tables with MLflow's migrations, which take more than a second."""
    _open(database).engine.dispose()
    _mark_as_checked(database)


def _mark_as_checked(database: Path) -> None:
    """Record the installed MLflow version in the file, so that later checks need no import.

    SQLite reserves `user_version` for applications (sqlite.org/pragma.html#pragma_user_version).
    """
    with closing(sqlite3.connect(database, PATIENCE_S)) as connection:
        connection.execute(f"PRAGMA user_version = {_release()}")


def _release() -> int:
    """Return the version of the installed MLflow as a number: 3015000 for 3.15.0."""
    return int("".join(f"{int(part):03}" for part in re.findall(r"\d+", version("mlflow"))[:3]))


def _open(database: Path) -> SqlAlchemyStore:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import event

    # `faults` explains errors; MLflow and alembic would print a traceback before.
    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    store = SqlAlchemyStore(f"sqlite:///{database}", str(home.artifacts()))
    # MLflow caches one engine per path: its connections may be to a file that was moved away.
    store.engine.dispose()
    if not event.contains(store.engine, "connect", _configure):
        event.listen(store.engine, "connect", _configure)
    return store


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    """Set `synchronous = NORMAL`: commits do not wait for the disk.

    A power failure may lose the last seconds, but cannot damage the database (WAL mode).
    """
    connection.execute("PRAGMA synchronous = NORMAL")


def _now() -> int:
    return int(time.time() * 1000)
