"""Starting and stopping one inference server, detached, in a slot of an endpoint's folder.

The process table is the only record of what runs: a server carries its slot's folder in its command
line, so a command that was killed half way leaves nothing that the next one does not find.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ml.serving import client, ports
from ml.serving.scoring.model import MODEL_DIGEST, MODEL_DIR
from ml.specs.problems import Exit, Problem, Refused

LAUNCHER = Path(__file__).with_name("launch.py")
START_S = 60.0  # importing LightGBM and scikit-learn on a busy machine with two cores takes ten
STOP_S = 10.0
POLL_S = 0.05


@dataclass(frozen=True)
class Launch:
    """All that it takes to start a server, today or after a reboot.

    `code` is the snapshot that `scoring_script` is relative to; `model_dir` is what Azure ML calls
    AZUREML_MODEL_DIR: the folder that holds the model folder.
    """

    endpoint: str
    model: str
    version: str
    digest: str
    code: Path
    scoring_script: str
    model_dir: Path
    environment_variables: Mapping[str, str]


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


def start(
    slot: Path, launch: Launch, port: int | None = None, deadline_s: float = START_S
) -> Server:
    """Start a server in the slot and return once it is ready; what ran in the slot is stopped.

    Raises Refused: port-in-use, server-crashed (with the log's last lines), server-not-ready. The
    server belongs to no terminal and outlives the command that started it. Nothing is left running
    when this raises.
    """
    stop(slot)
    if port is not None and not ports.is_free(port):
        raise Refused(
            Problem(
                "port-in-use",
                f"port {port} is held by {ports.holder(port)}",
                "a free port",
                f"`ml serve {launch.endpoint}` picks a free one; or `--port N` with another",
            )
        )
    chosen = port or ports.free()
    slot.mkdir(parents=True, exist_ok=True)
    with log(slot).open("wb") as stream:
        # -P: the launcher's own folder stays off sys.path.
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", str(LAUNCHER)),
                *(str(slot), str(chosen), str(launch.code / launch.scoring_script)),
            ],
            cwd=launch.code,
            env=_environment(launch),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, slot, chosen, deadline_s)
    except BaseException:
        stop(slot)
        raise
    return Server(slot, process.pid, chosen)


def running(slot: Path) -> psutil.Process | None:
    """The server of the slot, or None: the first process that carries the slot and is alive."""
    found = _processes(slot)
    return found[0] if found else None


def is_up(server: Server) -> bool:
    """Whether that server still runs and still listens on its port."""
    try:
        process = psutil.Process(server.pid)
        return _carries(process, server.slot) and ports.listens(process, server.port)
    except psutil.Error:
        return False


def stop(slot: Path) -> bool:
    """End every process of the slot: a moment to finish requests, then for good.

    Returns whether there was one. Raises Refused when one outlives SIGKILL.
    """
    found = _processes(slot)
    if not found:
        return False
    _signal(found, signal.SIGTERM)
    _, left = psutil.wait_procs(found, timeout=STOP_S)
    left = [*left, *_processes(slot)]  # a worker forked while its master was asked to end
    _signal(left, signal.SIGKILL)
    _, left = psutil.wait_procs(left, timeout=STOP_S)
    if left:
        found_pids = ", ".join(str(process.pid) for process in left)
        raise Refused(
            Problem("server-not-stopped", f"process {found_pids} outlived SIGKILL"),
            exit_code=Exit.RUN_FAILED,
        )
    return True


def log(slot: Path) -> Path:
    """What the server of the slot prints."""
    return slot / "server.log"


def last_lines(slot: Path, count: int = 15) -> str:
    """The end of the slot's log, indented for an error message."""
    try:
        lines = log(slot).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    return "\n".join(f"    {line}" for line in lines[-count:])


def _environment(launch: Launch) -> dict[str, str]:
    """What the server sees, as a managed endpoint sets it; nothing of a caller's run or secrets."""
    passed = ("HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
    return {
        **{name: os.environ[name] for name in passed if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # The snapshot comes before the repository, which is installed in editable form.
        "PYTHONPATH": str(launch.code),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AML_APP_ROOT": str(launch.code),
        **launch.environment_variables,
        MODEL_DIR: str(launch.model_dir),
        MODEL_DIGEST: launch.digest,
    }


def _wait_until_ready(
    process: subprocess.Popen[bytes], slot: Path, port: int, deadline_s: float
) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Refused(
                Problem(
                    "server-crashed",
                    f"the server ended with {process.returncode} before it was ready; its log ends:"
                    f"\n{last_lines(slot)}",
                    hint=f"the whole log: {log(slot)}",
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
            f"no answer on port {port} within {deadline_s:g} s; its log ends:\n{last_lines(slot)}",
            hint=f"the whole log: {log(slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )


def _processes(slot: Path) -> list[psutil.Process]:
    """Every living process that carries the slot, the oldest first."""
    found = [process for process in psutil.process_iter() if _carries(process, slot)]
    return sorted(found, key=lambda process: process.pid)


def _carries(process: psutil.Process, slot: Path) -> bool:
    try:
        arguments = process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return alive and arguments[2:4] == [str(LAUNCHER), str(slot)]


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
