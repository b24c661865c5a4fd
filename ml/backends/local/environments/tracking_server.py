"""MLflow's own server in front of the store, for environments whose MLflow cannot open it.

The store has the tables of this interpreter's MLflow. Another version refuses them, and
mlflow-skinny, which azureml-mlflow brings, has nothing to open a database with; on Azure ML both
reach the workspace over HTTP, and so they do here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ml.backends.local import outcome
from ml.backends.local.processes.process import Watchman
from ml.backends.local.tracking import mlflow_server
from ml.backends.local.tracking.mlflow_server import HOST
from ml.backends.local.tracking.tracking import Tracking
from ml.core import home
from ml.core.errors import Exit, Problem, Refused


@contextmanager
def serving(watchman: Watchman) -> Iterator[str]:
    """The address of a server that ends with this block, or with this program if it is killed."""
    Tracking()  # the server must not be the one that makes the tables
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    log = home.home() / "tracking-server.log"
    name = f"server-{os.getpid()}-{port}"
    words = ["server", "--no-serve-artifacts", "--default-artifact-root", str(home.artifacts())]
    watchman.tell("+", name)
    try:
        # The watchman's mark: whatever it starts is ended with it.
        with mlflow_server.running(words, port, log, {"MLFLOW_RUN_ID": name}) as process:
            watchman.tell("+", name, process.pid)
            if not mlflow_server.answers(process, port):
                said = "".join(f"\n    | {line}" for line in outcome.last_lines(log))
                raise Refused(
                    Problem("no-tracking-server", f"MLflow's server did not start:{said}"),
                    exit_code=Exit.RUN_FAILED,
                )
            yield f"http://{HOST}:{port}"
    finally:
        watchman.tell("-", name)
