"""MLflow's part in a run: made first, handed to the script, closed with its status."""

from __future__ import annotations

import fcntl
import getpass
import logging
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ml.backends.base import Status
from ml.backends.local import faults, home
from ml.specs.plan import Value

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

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
        [sys.executable, "-c", "from ml.backends.local.tracking import Tracking; Tracking()"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Tracking:
    """The local MLflow store, opened for writing.

    Raises what `ml.backends.local.faults` explains when the store is locked, broken or full.
    """

    def __init__(self) -> None:
        home.home().mkdir(parents=True, exist_ok=True)
        with (home.home() / ".store.lock").open("w") as lock:
            # Two first runs at the same moment: one creates the tables, the other waits.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._client = self._open()
        self._experiments: dict[str, str] = {}

    def _open(self) -> MlflowClient:
        if home.database().exists():
            faults.probe(home.database(), PATIENCE_S)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        from mlflow.tracking import MlflowClient

        # What goes wrong is told by `faults`, not by a traceback in the middle of a table.
        for name in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not home.database().exists():
            self._create()
        return MlflowClient(home.tracking_uri(), home.tracking_uri())

    def _create(self) -> None:
        """Make the tables under another name first: a creation that is killed leaves no store."""
        from mlflow.tracking import MlflowClient

        unfinished = home.database().with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        try:
            MlflowClient(f"sqlite:///{unfinished}").search_experiments(max_results=1)
            # Readers (the watcher of a sweep) and writers (its trials) do not wait for each other.
            with closing(sqlite3.connect(unfinished)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            unfinished.rename(home.database())
        finally:
            unfinished.unlink(missing_ok=True)

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                place = str(home.artifacts() / name)
                self._experiments[name] = self._client.create_experiment(name, place)
            else:
                self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def start(self, experiment: str, folder: Path, name: str, tags: Mapping[str, str]) -> str:
        """The id of a new run that is RUNNING under `name` in the job folder `folder`."""
        run = self._client.create_run(
            self._experiment(experiment),
            run_name=name,
            tags={
                "mlflow.user": _user(),
                "mlflow.source.type": "JOB",
                JOB_FOLDER: str(folder),
                **tags,
            },
        )
        return str(run.info.run_id)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def metrics(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Log the last values of metrics that another run has logged."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(run_id, [Metric(key, v, now, 0) for key, v in metrics.items()])

    def end(self, run_id: str, status: Status, parameters: Mapping[str, Value]) -> None:
        """Close the run. Parameters that the script did not log itself are added, as text.

        They come last because MLflow refuses a second value: a script that logs `31.0` for the
        `31` it was given must not fail here when it would not on Azure ML.
        """
        from mlflow.entities import Param

        logged = self._client.get_run(run_id).data.params
        missing = [Param(key, str(v)) for key, v in parameters.items() if key not in logged]
        if missing:
            self._client.log_batch(run_id, params=missing)
        self._client.set_terminated(run_id, ENDED[status], int(time.time() * 1000))

    def running(self, job: Path) -> list[str]:
        """The ids of the runs of that job folder, trials included, that nobody has closed."""
        everywhere = [one.experiment_id for one in self._client.search_experiments()]
        found = self._client.search_runs(
            everywhere, "attributes.status = 'RUNNING'", max_results=_MOST
        )
        return [
            str(run.info.run_id)
            for run in found
            if Path(run.data.tags.get(JOB_FOLDER, "/")).is_relative_to(job)
        ]

    def artifacts_of(self, run_id: str) -> Path:
        """Where the run's artifacts lie on this machine."""
        return Path(str(self._client.get_run(run_id).info.artifact_uri))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
