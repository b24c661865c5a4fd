"""Calls an inference server of this machine: health, one request, and its latency."""

from __future__ import annotations

import http.client
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ml.serving.processes import HOST
from ml.serving.router.routes import DEPLOYMENT_HEADER

TIMEOUT_S = 30.0
MAX_ANSWER = 64 * 2**20
MAX_EXCERPT = 300
WARM_UP = 20
PERCENTILES = (0.50, 0.95, 0.99)
# Where it is set, it names this machine's Azure instance type (`Standard_DS3_v2`).
INSTANCE_TYPE = "MLOPS_INSTANCE_TYPE"


@dataclass(frozen=True)
class Answer:
    """A server's answer: the HTTP status and the JSON body (text when it is not JSON).

    `deployment` is the one behind a router that answered, "" without a router.
    """

    status: int
    body: object
    deployment: str = ""

    @property
    def excerpt(self) -> str:
        """The beginning of the body on one line, for a message."""
        if isinstance(self.body, str):
            text, complete = repr(self.body[:MAX_EXCERPT])[1:-1], len(self.body) <= MAX_EXCERPT
            return text if complete else f"{text}…"
        text = repr(self.body)
        return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…"


@dataclass(frozen=True)
class Timing:
    """Milliseconds at three percentiles, and the mean, over `requests` sequential requests; the
    `warm_up` requests before them were not counted.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    requests: int
    warm_up: int
    hardware: str


def is_healthy(port: int, timeout_s: float) -> bool:
    """Whether the server answers its liveness probe with 200 before the timeout."""
    connection = http.client.HTTPConnection(HOST, port, timeout=max(timeout_s, 0.001))
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def score(port: int, body: Mapping[str, object]) -> Answer:
    """Post one request; raises OSError or HTTPException without a complete answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        return _post(connection, json.dumps(body))
    finally:
        connection.close()


def measure(port: int, bodies: Sequence[Mapping[str, object]], requests: int) -> Timing:
    """The latency over the bodies in turn, after a warm-up.

    Raises ValueError at the first answer that is not 200: the time of an error is not a latency.
    """
    payloads = [json.dumps(body) for body in bodies]
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    times: list[float] = []
    try:
        for number in range(WARM_UP + requests):
            start = time.perf_counter()
            answer = _post(connection, payloads[number % len(payloads)])
            elapsed = (time.perf_counter() - start) * 1000
            if answer.status != 200:
                raise ValueError(f"status {answer.status}: {answer.body}")
            if number >= WARM_UP:
                times.append(elapsed)
    finally:
        connection.close()
    times.sort()
    p50, p95, p99 = (times[min(int(len(times) * share), len(times) - 1)] for share in PERCENTILES)
    return Timing(p50, p95, p99, sum(times) / len(times), len(times), WARM_UP, hardware())


def hardware() -> str:
    """The instance type in MLOPS_INSTANCE_TYPE; without it the processor, the usable cores and the
    memory of this machine.
    """
    if instance_type := os.environ.get(INSTANCE_TYPE, "").strip():
        return instance_type
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB"


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
