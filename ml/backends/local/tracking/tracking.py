"""MLflow's part in a run: made first, handed to the script, closed with its status.

The store is a plain MLflow store. What the executor writes goes straight into its tables where
their version is known (`ml.backends.local.tracking.tables`), and by MlflowClient everywhere else.
"""

from __future__ import annotations

import fcntl
import getpass
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ml.backends.base import Status
from ml.backends.local.tracking import history
from ml.backends.local.tracking.tables import Tables, Unusual
from ml.core import faults, home
from ml.specs.plan.plan import Value

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

# MLflow's word for each way in which a run ends.
ENDED: dict[Status, str] = {"Completed": "FINISHED", "Failed": "FAILED", "Canceled": "KILLED"}
# How long another writer may hold the store before that is an error.
PATIENCE_S = 10.0
# The tag that leads from an MLflow run to its job folder.
JOB_FOLDER = "job.folder"
# More runs than one executor can leave open (MLflow's own limit on a page).
_MOST = 50000


def prepare() -> subprocess.Popen[bytes] | None:
    """Make the store in the background when there is none: it takes MLflow seconds (once)."""
    if home.database().exists():
        return None
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from ml.backends.local.tracking.tracking import Tracking; Tracking()",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Tracking:
    """The local MLflow store, opened for writing. `by_client`: never past MLflow's own client.

    Raises what `ml.core.faults` explains when the store is locked, broken or full.
    """

    def __init__(self, by_client: bool = False) -> None:
        # For whoever imports MLflow in this process.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        home.home().mkdir(parents=True, exist_ok=True)
        with (home.home() / ".store.lock").open("w") as lock:
            # Two first runs at the same moment: one creates the tables, the other waits.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if home.database().exists():
                faults.probe(home.database(), PATIENCE_S)
            else:
                self._create()
        self._tables: Tables | None = None
        if not by_client:
            with suppress(Unusual):
                self._tables = Tables(home.database(), PATIENCE_S)
        if self._tables is None:
            # Now, not at the first write: an outdated store is refused before anything is made.
            self._client.search_experiments(max_results=1)
        self._experiments: dict[str, str] = {}

    def close(self) -> None:
        """Let go of the store."""
        if self._tables is not None:
            self._tables.close()
        history.close()

    @property
    def is_direct(self) -> bool:
        """Whether runs are written past MLflow's client."""
        return self._tables is not None

    @cached_property
    def _client(self) -> MlflowClient:
        return _client_of(home.tracking_uri())

    def _create(self) -> None:
        """Make the tables under another name first: a creation that is killed leaves no store."""
        unfinished = home.database().with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        try:
            _client_of(f"sqlite:///{unfinished}").search_experiments(max_results=1)
            # Readers (the watcher of a sweep) and writers (its trials) do not wait for each other.
            with closing(sqlite3.connect(unfinished)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            # What a store that was moved away has left would be read as a part of the new one.
            for left in ("-wal", "-shm"):
                Path(f"{home.database()}{left}").unlink(missing_ok=True)
            unfinished.rename(home.database())
        finally:
            unfinished.unlink(missing_ok=True)

    def _written(self, write: Callable[[Tables], T], otherwise: Callable[[], T]) -> T:
        """What `write` does with the tables, or `otherwise` where they are not to be used."""
        if self._tables is not None:
            with suppress(Unusual):
                return write(self._tables)
        return otherwise()

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            place = home.artifacts() / name
            self._experiments[name] = self._written(
                lambda tables: tables.experiment(name, place),
                lambda: self._experiment_by_client(name, place),
            )
        return self._experiments[name]

    def _experiment_by_client(self, name: str, place: Path) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, str(place)))
        return str(found.experiment_id)

    def start(self, experiment: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        """The id of a new run that is RUNNING under `name` in the job folder `folder`."""
        user, where = _user(), self._experiment(experiment)
        tags = {
            "mlflow.user": user,
            "mlflow.source.type": "JOB",
            JOB_FOLDER: str(folder),
            **tags,
        }
        return self._written(
            lambda tables: tables.start(where, name, tags["mlflow.user"], tags),
            lambda: str(self._client.create_run(where, run_name=name, tags=tags).info.run_id),
        )

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""

        def by_client() -> None:
            from mlflow.entities import RunTag

            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

        self._written(lambda tables: tables.tag(run_id, tags), by_client)

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Log the last values of metrics that another run has logged."""

        def by_client() -> None:
            from mlflow.entities import Metric

            now = int(time.time() * 1000)
            self._client.log_batch(run_id, [Metric(key, v, now, 0) for key, v in metrics.items()])

        self._written(lambda tables: tables.metrics(run_id, metrics), by_client)

    def end(self, run_id: str, status: Status, parameters: Mapping[str, Value]) -> None:
        """Close the run. Parameters that the script did not log itself are added, as text.

        They come last because MLflow refuses a second value: a script that logs `31.0` for the
        `31` it was given must not fail here when it would not on Azure ML.
        """
        texts = {key: str(value) for key, value in parameters.items()}

        def by_client() -> None:
            from mlflow.entities import Param

            logged = self._client.get_run(run_id).data.params
            missing = [Param(key, text) for key, text in texts.items() if key not in logged]
            if missing:
                self._client.log_batch(run_id, params=missing)
            self._client.set_terminated(run_id, ENDED[status], int(time.time() * 1000))

        self._written(lambda tables: tables.end(run_id, ENDED[status], texts), by_client)

    def reopen(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Let a closed run be RUNNING again.

        By MLflow's client it keeps its former end time until the next.
        """
        self._written(
            lambda tables: tables.reopen(run_id),
            lambda: self._client.update_run(run_id, "RUNNING"),
        )
        self.tag(run_id, tags)

    def set_aside(self, run_id: str, name: str, folder: Path) -> None:
        """Close a run as an attempt that counts for nothing: KILLED, under a name of its own."""
        self._written(
            lambda tables: tables.rename(run_id, name),
            lambda: self._client.update_run(run_id, name=name),
        )
        self.end(run_id, "Canceled", {})
        self.tag(run_id, {JOB_FOLDER: str(folder), "attempt": "cut off"})

    def runs_in(self, folder: Path) -> list[str]:
        """The ids of the runs whose job folder is exactly this one."""
        return self._written(
            lambda tables: tables.tagged(JOB_FOLDER, str(folder)),
            lambda: self._runs_in_by_client(folder),
        )

    def _runs_in_by_client(self, folder: Path) -> list[str]:
        everywhere = [one.experiment_id for one in self._client.search_experiments()]
        quote = '"' if "'" in str(folder) else "'"
        found = self._client.search_runs(
            everywhere, f"tags.`{JOB_FOLDER}` = {quote}{folder}{quote}", max_results=_MOST
        )
        return [str(run.info.run_id) for run in found]

    def running(self, job: Path) -> list[str]:
        """The ids of the runs of that job folder, trials included, that nobody has closed."""
        found = self._written(lambda tables: tables.running(JOB_FOLDER), self._running_by_client)
        return [run_id for run_id, folder in found if Path(folder).is_relative_to(job)]

    def _running_by_client(self) -> list[tuple[str, str]]:
        everywhere = [one.experiment_id for one in self._client.search_experiments()]
        found = self._client.search_runs(
            everywhere, "attributes.status = 'RUNNING'", max_results=_MOST
        )
        return [(str(run.info.run_id), run.data.tags.get(JOB_FOLDER, "/")) for run in found]

    def artifacts_of(self, run_id: str) -> Path:
        """Where the run's artifacts lie on this machine."""
        found = self._written(
            lambda tables: tables.artifacts_of(run_id),
            lambda: str(self._client.get_run(run_id).info.artifact_uri),
        )
        return Path(found)


def _client_of(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    # What goes wrong is told by `faults`, not by a traceback in the middle of a table.
    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(uri, uri)


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
