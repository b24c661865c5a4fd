"""Starts one inference server, detached, in a slot of an endpoint's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from ml.core import home
from ml.core.errors import Problem, Refused
from ml.serving import client, processes
from ml.serving.scoring.model import MODEL_DIGEST, MODEL_DIR


def _in_home(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise ValueError("a path")
    return home.home() / path


def _to_home(path: Path) -> str:
    for root in (home.home(), home.home().resolve()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


# A path in a file of the home, relative to it where it lies inside, so that the home can be moved.
HomePath = Annotated[Path, PlainValidator(_in_home), PlainSerializer(_to_home)]
START_S = 60.0  # importing LightGBM and scikit-learn on a busy machine with two cores takes ten
POLL_S = 0.05


@dataclass(frozen=True)
class Launch:
    """Everything needed to start a server, today or after a reboot.

    `code` is the snapshot that `scoring_script` is relative to, `model_folder` the model's own
    folder. `version` is "" for a candidate that is not registered yet. `collect` is the share of
    its requests that the router records. `serving` is the digest of code and settings
    (ml.release.serving).
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    endpoint: str
    model: str
    version: str
    digest: str
    code: HomePath
    scoring_script: str
    model_folder: HomePath
    environment_variables: Mapping[str, str]
    collect: float = 0.0
    serving: str = ""


@dataclass(frozen=True)
class Server:
    """A server that answered: its slot's folder, its process and its port on this machine."""

    __pydantic_config__ = ConfigDict(strict=True)

    slot: Annotated[HomePath, AfterValidator(Path.resolve)]
    pid: Annotated[int, Field(gt=0)]
    port: Annotated[int, Field(gt=0)]

    @property
    def url(self) -> str:
        """The address that requests are posted to."""
        return f"http://{processes.HOST}:{self.port}/score"


@dataclass(frozen=True)
class Starting:
    """A server whose process runs, and which may not answer yet."""

    slot: Path
    process: subprocess.Popen[bytes]
    port: int


def start(
    slot: Path, launch: Launch, port: int | None = None, deadline_s: float = START_S
) -> Server:
    """Start a server in the slot and return once it is ready; what ran in the slot is stopped.

    Raises Refused: port-in-use, server-crashed (with the log's last lines), server-not-ready. The
    server outlives the command that started it. Nothing is left running when this raises.
    """
    return wait_until_ready(begin(slot, launch, port), deadline_s)


def begin(slot: Path, launch: Launch, port: int | None = None) -> Starting:
    """The first half of `start`, so that two servers can load at once; it runs until
    `wait_until_ready` fails or the slot is stopped.
    """
    if port is not None and not processes.port_is_free(port) and not _holds(slot, port):
        raise port_in_use(launch.endpoint, port)
    processes.stop(slot)
    with processes.listen(port or 0) as listener:
        process = processes.spawn(
            slot,
            processes.LAUNCHER,
            listener,
            launch.code / launch.scoring_script,
            folder=launch.code,
            environment=_environment(launch, _mount(slot, launch)),
        )
        return Starting(slot, process, int(listener.getsockname()[1]))


def wait_until_ready(starting: Starting, deadline_s: float = START_S) -> Server:
    """The second half of `start`; stops the server when it raises."""
    try:
        _wait(starting.process, starting.slot, starting.port, deadline_s)
    except BaseException:
        processes.stop(starting.slot, patience_s=0.5)  # it answers nobody yet
        raise
    return Server(starting.slot, starting.process.pid, starting.port)


def is_up(server: Server) -> bool:
    """Whether that server still runs and still listens on its port."""
    try:
        process = psutil.Process(server.pid)
        return processes.belongs(process, server.slot) and processes.listens(process, server.port)
    except psutil.Error:
        return False


def port_in_use(endpoint: str, port: int) -> Refused:
    """The error for a requested port that another process holds."""
    return Refused(
        Problem(
            "port-in-use",
            f"port {port} is held by {processes.port_holder(port)}",
            "a free port",
            f"`ml serve {endpoint}` picks a free one; or `--port N` with another",
        )
    )


def _holds(slot: Path, port: int) -> bool:
    """Whether the slot's own process, which will be stopped, holds the port."""
    process = processes.running(slot)
    return process is not None and processes.listens(process, port)


def _mount(slot: Path, launch: Launch) -> Path:
    """AZUREML_MODEL_DIR as a managed endpoint lays it out: azureml-models/NAME/VERSION/FOLDER."""
    models = slot / "azureml-models"
    shutil.rmtree(models, ignore_errors=True)
    mounted = models / launch.model / (launch.version or "0")
    mounted.mkdir(parents=True)
    (mounted / "model").symlink_to(launch.model_folder, target_is_directory=True)
    return mounted


def _environment(launch: Launch, mounted: Path) -> dict[str, str]:
    """The variables that a managed endpoint sets, and those that this machine needs."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # The snapshot comes before the repository, which is installed in editable form.
        "PYTHONPATH": str(launch.code),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Lines reach the log in their order, and before a crash.
        "PYTHONUNBUFFERED": "1",
        # gunicorn would share one socket in the user's home among all servers.
        "GUNICORN_CMD_ARGS": "--no-control-socket",
        "AML_APP_ROOT": str(launch.code),
        **launch.environment_variables,
        MODEL_DIR: str(mounted),
        MODEL_DIGEST: launch.digest,
    }


def _wait(process: subprocess.Popen[bytes], slot: Path, port: int, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            error = processes.script_error(slot)
            raise processes.failure(
                slot, "server-crashed", f"the server ended before it was ready: {error}"
            )
        if client.is_healthy(port, deadline - time.monotonic()):
            return
        time.sleep(POLL_S)
    what = f"no answer on port {port} within {deadline_s:g} s"
    raise processes.failure(slot, "server-not-ready", what)
