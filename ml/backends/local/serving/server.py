"""One local inference server: start it detached in a slot, send requests, measure latency."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ml.backends.endpoints import WARM_UP, Answer, ModelDeployment, Server
from ml.backends.local.serving import processes
from ml.backends.local.serving.processes import HOST
from ml.backends.traffic import DEPLOYMENT_HEADER
from ml.core import home, imports
from ml.serving.scoring.model import FEATURE_STORE, MODEL_DIGEST, MODEL_DIR

START_S = 60.0  # importing LightGBM and scikit-learn on a busy machine with two cores takes ten
POLL_S = 0.05
ANSWER_S = 30.0
MAX_ANSWER = 64 * 2**20
# Repeat a measurement if other processes use more than BUSY of a core, up to MEASUREMENTS times.
BUSY, MEASUREMENTS, PAUSE_S = 0.25, 3, 1.0


@dataclass(frozen=True)
class Starting:
    """A server whose process has started, but which may not respond yet."""

    slot: Path
    process: subprocess.Popen[bytes]
    port: int


def start(slot: Path, deployment: ModelDeployment, deadline_s: float = START_S) -> Server:
    """Stop the slot's server, start the new one, and return when it is ready.

    The server outlives the command that started it. Raise UserError: server-crashed (with the end
    of the log), server-not-ready; no process is left running then.
    """
    return wait_until_ready(begin(slot, deployment), deadline_s)


def begin(slot: Path, deployment: ModelDeployment) -> Starting:
    """Start the server's process without waiting, so that two servers can load concurrently.

    It runs until `wait_until_ready` fails or the slot is stopped.
    """
    imports.check_import_path()
    processes.stop(slot)
    with processes.listen() as listener:
        process = processes.spawn(
            slot,
            processes.LAUNCHER,
            listener,
            deployment.code / deployment.scoring_script,
            *filter(None, [deployment.server]),
            folder=deployment.code,
            environment=_environment(deployment, _mount(slot, deployment), _empty(slot / "tmp")),
        )
        return Starting(slot, process, int(listener.getsockname()[1]))


def wait_until_ready(starting: Starting, deadline_s: float = START_S) -> Server:
    """Wait until the server responds and return it; stop it and raise UserError if it fails."""
    try:
        _wait(starting.process, starting.slot, starting.port, deadline_s)
    except BaseException:
        processes.stop(starting.slot, patience_s=0.5)  # it has no requests yet
        raise
    return Server(starting.slot, _serving(starting.process.pid, starting.port), starting.port)


def _serving(pid: int, port: int) -> int:
    """Return the id of the process that listens: `pid`, or with namespaces its only child."""
    with suppress(psutil.Error):
        started = psutil.Process(pid)
        for process in (started, *started.children()):
            if processes.listens(process.pid, port):
                return process.pid
    return pid


def is_up(server: Server) -> bool:
    """Return whether the server runs and listens on its port."""
    try:
        belongs = processes.belongs(psutil.Process(server.pid), server.slot)
        return belongs and processes.listens(server.pid, server.port)
    except psutil.Error:
        return False


def _mount(slot: Path, deployment: ModelDeployment) -> Path:
    """Create the slot's azureml-models/NAME/VERSION/model, as on a managed endpoint.

    Return the version's folder, the value of AZUREML_MODEL_DIR.
    """
    mounted = _empty(slot / "azureml-models") / deployment.model / (deployment.version or "0")
    mounted.mkdir(parents=True)
    (mounted / "model").symlink_to(deployment.model_folder.resolve(), target_is_directory=True)
    return mounted


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _environment(deployment: ModelDeployment, mounted: Path, scratch: Path) -> dict[str, str]:
    """Return the server's environment variables: a managed endpoint's, and local ones.

    `scratch` is HOME, and the only folder that the server may write to. A feature store is always
    this machine's.
    """
    variables = dict(deployment.environment_variables)
    if FEATURE_STORE in variables:
        store = home.home() / "features"
        (store / "online").mkdir(parents=True, exist_ok=True)  # isolation needs it to exist
        variables[FEATURE_STORE] = str(store)
    return {
        "PYTHONPATH": str(deployment.code),
        # All gunicorn servers would use the same control socket in the user's home.
        "GUNICORN_CMD_ARGS": "--no-control-socket",
        "ORT_DISABLE_TELEMETRY": "1",
        **variables,
        "AML_APP_ROOT": str(deployment.code),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        MODEL_DIR: str(mounted),
        MODEL_DIGEST: deployment.digest,
    }


def _wait(process: subprocess.Popen[bytes], slot: Path, port: int, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            what = f"the server ended before it was ready: {processes.script_error(slot)}"
            raise processes.failure(slot, "server-crashed", what)
        if processes.is_healthy(port, deadline - time.monotonic()):
            return
        time.sleep(POLL_S)
    what = f"no response on port {port} within {deadline_s:g} s"
    raise processes.failure(slot, "server-not-ready", what)


def score(port: int, body: Mapping[str, object]) -> Answer:
    """Post one request; raise OSError or HTTPException without a complete response."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        return _post(connection, json.dumps(body))


def measure(port: int, bodies: Sequence[Mapping[str, object]], requests: int) -> list[float]:
    """Return each request's milliseconds, as `ml.backends.endpoints.Candidate.measure`."""
    payloads = [json.dumps(body) for body in bodies]
    times: list[float] = []
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)) as connection:
        for number in range(WARM_UP + requests):
            start = time.perf_counter()
            answer = _post(connection, payloads[number % len(payloads)])
            elapsed = (time.perf_counter() - start) * 1000
            if answer.status != 200:
                raise ValueError(f"status {answer.status}: {answer.body}")
            if number >= WARM_UP:
                times.append(elapsed)
    return times


def measure_alone(
    pid: int, port: int, bodies: Sequence[Mapping[str, object]], requests: int
) -> list[float]:
    """Measure the latency of a server, as `measure`, while other processes use little CPU.

    If they use more than BUSY of a core, repeat up to MEASUREMENTS times, and return the times with
    the least CPU use by others, which would delay requests. Print a warning if even these were
    disturbed.
    """
    least, best = float("inf"), list[float]()
    for number in range(MEASUREMENTS):
        time.sleep(PAUSE_S * min(number, 1))
        worked, began = _work_of_others(pid), time.perf_counter()
        times = measure(port, bodies, requests)
        others = (_work_of_others(pid) - worked) / (time.perf_counter() - began)
        if others < least:
            least, best = others, times
        if others <= BUSY:
            break
    else:
        print(
            f"warning[busy-machine]: others used {least:.2f} cores while latency was measured\n"
            f"  expected: at most {BUSY} of a core\n"
            "  hint: propose the version again on an idle machine",
            file=sys.stderr,
        )
    return best


def _work_of_others(pid: int) -> float:
    """Return the CPU seconds of all processes except this one and the server's."""
    times = psutil.cpu_times()
    every = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    ours = [psutil.Process(), psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return float(every - sum(sum(process.cpu_times()[:2]) for process in ours))


def _post(connection: http.client.HTTPConnection, payload: str) -> Answer:
    connection.request("POST", "/score", payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read(MAX_ANSWER + 1)
    if len(content) > MAX_ANSWER:
        raise http.client.HTTPException(f"an answer of more than {MAX_ANSWER} bytes")
    if response.length:
        raise http.client.IncompleteRead(content, response.length)
    text = content.decode("utf-8", errors="replace")
    deployment = response.headers.get(DEPLOYMENT_HEADER, "")
    try:
        return Answer(response.status, json.loads(text), deployment)
    except (ValueError, RecursionError):
        return Answer(response.status, text, deployment)
