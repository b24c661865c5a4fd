"""Starting one inference server, detached, in a slot of an endpoint's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ml.core.errors import Exit, Problem, Refused
from ml.serving import client, ports, slots
from ml.serving.scoring.model import MODEL_DIGEST, MODEL_DIR

START_S = 60.0  # importing LightGBM and scikit-learn on a busy machine with two cores takes ten
POLL_S = 0.05


@dataclass(frozen=True)
class Launch:
    """All that it takes to start a server, today or after a reboot.

    `code` is the snapshot that `scoring_script` is relative to, `model_folder` the model's own
    folder. `version` is "" for a candidate that is not registered yet. `collect` is the share of
    its requests that the router writes down.
    """

    endpoint: str
    model: str
    version: str
    digest: str
    code: Path
    scoring_script: str
    model_folder: Path
    environment_variables: Mapping[str, str]
    collect: float = 0.0


@dataclass(frozen=True)
class Server:
    """A server that answered: its slot's folder, its process and its port on this machine."""

    slot: Path
    pid: int
    port: int

    @property
    def url(self) -> str:
        """Where requests are posted."""
        return f"http://{ports.HOST}:{self.port}/score"


@dataclass(frozen=True)
class Begun:
    """A server that was begun to start, and may not answer yet."""

    slot: Path
    process: subprocess.Popen[bytes]
    port: int


def start(
    slot: Path, launch: Launch, port: int | None = None, deadline_s: float = START_S
) -> Server:
    """Start a server in the slot and return once it is ready; what ran in the slot is stopped.

    Raises Refused: port-in-use, server-crashed (with the log's last lines), server-not-ready. The
    server belongs to no terminal and outlives the command that started it. Nothing is left running
    when this raises.
    """
    return ready(begin(slot, launch, port), deadline_s)


def begin(slot: Path, launch: Launch, port: int | None = None) -> Begun:
    """The first half of `start`, so that two servers can load at once; it runs until `ready`, or
    the slot is stopped.
    """
    if port is not None and not ports.is_free(port) and not _holds(slot, port):
        raise port_in_use(launch.endpoint, port)
    slots.stop(slot)
    chosen = port or ports.free()
    slot.mkdir(parents=True, exist_ok=True)
    with slots.log(slot).open("wb") as stream:
        # -P: the launcher's own folder stays off sys.path.
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", str(slots.LAUNCHER)),
                *(str(slot), str(chosen), str(launch.code / launch.scoring_script)),
            ],
            cwd=launch.code,
            env=_environment(launch, _mount(slot, launch)),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Begun(slot, process, chosen)


def ready(begun: Begun, deadline_s: float = START_S) -> Server:
    """The second half of `start`: wait until it answers; stopped when this raises."""
    try:
        _wait_until_ready(begun.process, begun.slot, begun.port, deadline_s)
    except BaseException:
        slots.stop(begun.slot, patience_s=0.5)  # it answers nobody yet
        raise
    return Server(begun.slot, begun.process.pid, begun.port)


def is_up(server: Server) -> bool:
    """Whether that server still runs and still listens on its port."""
    try:
        process = psutil.Process(server.pid)
        return slots.carries(process, server.slot) and ports.listens(process, server.port)
    except psutil.Error:
        return False


def port_in_use(endpoint: str, port: int) -> Refused:
    """What a person is told who asked for a port that another process holds."""
    return Refused(
        Problem(
            "port-in-use",
            f"port {port} is held by {ports.holder(port)}",
            "a free port",
            f"`ml serve {endpoint}` picks a free one; or `--port N` with another",
        )
    )


def _holds(slot: Path, port: int) -> bool:
    """Whether the port is held by what runs in the slot, which is stopped anyway."""
    process = slots.running(slot)
    return process is not None and ports.listens(process, port)


def _mount(slot: Path, launch: Launch) -> Path:
    """AZUREML_MODEL_DIR as a managed endpoint lays it out: azureml-models/NAME/VERSION/FOLDER."""
    models = slot / "azureml-models"
    shutil.rmtree(models, ignore_errors=True)
    mounted = models / launch.model / (launch.version or "0")
    mounted.mkdir(parents=True)
    (mounted / "model").symlink_to(launch.model_folder, target_is_directory=True)
    return mounted


def _environment(launch: Launch, mounted: Path) -> dict[str, str]:
    """What the server sees, as a managed endpoint sets it; nothing of a caller's run or secrets."""
    passed = ("HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
    return {
        **{name: os.environ[name] for name in passed if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # The snapshot comes before the repository, which is installed in editable form.
        "PYTHONPATH": str(launch.code),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Lines reach the log in their order, and before a crash.
        "PYTHONUNBUFFERED": "1",
        # gunicorn would share one socket in the person's home among all servers.
        "GUNICORN_CMD_ARGS": "--no-control-socket",
        "AML_APP_ROOT": str(launch.code),
        **launch.environment_variables,
        MODEL_DIR: str(mounted),
        MODEL_DIGEST: launch.digest,
    }


def _wait_until_ready(
    process: subprocess.Popen[bytes], slot: Path, port: int, deadline_s: float
) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            if not ports.is_free(port):  # taken since it was found free: no fault of the model's
                raise Refused(ports.taken(port, "server"), exit_code=Exit.RUN_FAILED)
            raise Refused(
                Problem(
                    "server-crashed",
                    f"the server ended before it was ready: {slots.cause(slot)}; its log ends:\n"
                    f"{slots.last_lines(slot)}",
                    hint=f"the whole log: {slots.log(slot)}",
                ),
                exit_code=Exit.RUN_FAILED,
            )
        # The listener is asked for too: another process may have taken the port meanwhile.
        left = deadline - time.monotonic()
        if ports.listens(psutil.Process(process.pid), port) and client.is_healthy(port, left):
            return
        time.sleep(POLL_S)
    raise Refused(
        Problem(
            "server-not-ready",
            f"no answer on port {port} within {deadline_s:g} s; its log ends:\n"
            f"{slots.last_lines(slot)}",
            hint=f"the whole log: {slots.log(slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
