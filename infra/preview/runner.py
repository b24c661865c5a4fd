"""Runs the Pulumi program of a stack in a process of its own, against the stand-in engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc
from pulumi.runtime.proto import engine_pb2_grpc, resource_pb2_grpc

from infra.preview.capture import Capture, Finding, Resource, Spent
from infra.preview.engine import Engine
from ml.core.errors import Place, Problem, Refused

PROJECT = "platform"
ROOT = Path(__file__).parents[2]
# Replaces every secret of the configuration: a preview needs none.
NO_SECRET = json.dumps({f"{PROJECT}:lake_sas": "no-secret"})
OPTIONS = [("grpc.max_receive_message_length", 400 * 1024 * 1024)]
_SAMPLE_S = 0.02
_FRAME = re.compile(r' +File "(.+)", line (\d+)')
# Refused settings name their own line; another revision may have the class elsewhere.
_REFUSED = re.compile(r"\A[\w.]+\.Refused: ")


class Policies(Protocol):
    """Policies of single resources, and of a whole stack."""

    def resource(self, resource: Resource) -> list[Finding]: ...  # noqa: D102

    def stack(self, capture: Capture) -> list[Finding]: ...  # noqa: D102


def capture(
    stack: str, *, root: Path = ROOT, policies: Policies | None = None, bare: bool = False
) -> Capture:
    """One run of the program of the tree at `root`; Refused with its own message if it fails.

    `bare` runs it without the shortcut that `launch` describes.
    """
    findings: list[Finding] = []

    def analyze(resource: Resource) -> None:
        if policies:
            findings.extend(policies.resource(resource))

    engine = Engine(PROJECT, stack, analyze)
    program = root / "infra"
    with (
        served(engine) as address,
        started(
            [
                sys.executable,
                str(Path(__file__).with_name("launch.py")),
                *(address, PROJECT, stack, str(program), *(["bare"] if bare else [])),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PULUMI_CONFIG": NO_SECRET,
                "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(json.loads(NO_SECRET))),
            },
        ) as process,
    ):
        peak = Peak(process.pid)
        assert process.stderr
        errors = process.stderr.read()
        spent = ended(process, peak)
    if process.returncode:
        errors = errors.strip() or "\n".join(engine.errors[-1:])
        raise Refused(failure(stack, process.returncode, errors, root))
    result = Capture(
        stack=stack,
        # They register in any order, as their inputs become ready.
        resources=tuple(sorted(engine.resources.values(), key=lambda resource: resource.urn)),
        outputs=dict(sorted(engine.outputs.items())),
        problems=tuple(engine.problems),
        spent=spent,
    )
    if policies:
        findings.extend(policies.stack(result))
    ordered = sorted(findings, key=lambda finding: (finding.policy, finding.urn, finding.message))
    return replace(result, findings=tuple(ordered))


@contextlib.contextmanager
def served(engine: Engine) -> Iterator[str]:
    """The address of the engine, on this machine only."""
    server = grpc.server(futures.ThreadPoolExecutor(16), options=OPTIONS)
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(engine, server)
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None).wait()


def failure(stack: str, code: int, errors: str, root: Path) -> Problem:
    """A failed program as a problem, at its own line and without the SDK's traceback.

    `errors` is its standard error; `root` is the tree with its code.
    """
    lines = errors.strip().splitlines()
    frames = {at: match for at, line in enumerate(lines) if (match := _FRAME.match(line))}
    last = max(frames, default=-1)
    # After a traceback comes the exception, on one line or more; other output ends with the reason.
    message = [line for line in lines[last + 1 :] if not line.startswith(" ")]
    reason = " ".join(line.strip() for line in (message if frames else lines[-1:]))
    own = [
        Place(str(Path(path).relative_to(root)), int(line))
        for path, line in (match.groups() for match in frames.values())
        if Path(path).is_relative_to(root / "infra")
    ]
    reason = reason[:1500] or "no message"
    return Problem(
        "program-failed",
        f"the program of `{stack}` ended with {code}: {_REFUSED.sub('', reason)}",
        "a program that runs",
        "correct what the message names",
        own[-1] if own and not _REFUSED.match(reason) else None,
    )


class Peak:
    """The peak resident memory of a process, in MiB, sampled until it ends.

    `wait4` is unusable here: on Linux its figure includes the parent's memory at the start.
    """

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while self._read() and not self._ended.wait(_SAMPLE_S):
            pass

    def _read(self) -> bool:
        """The system records the peak (proc(5), VmHWM); a zombie has none."""
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return False
        peaks = [line.split() for line in lines if line.startswith("VmHWM:")]
        if peaks:
            self.mib = int(peaks[0][1]) / 1024  # kB
        return bool(peaks)

    def end(self) -> float:
        """Stop sampling; the peak."""
        self._ended.set()
        self._thread.join()
        return self.mib


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest, however the block ends.

    `options` are Popen's. A signal during the start is delivered once the process can be ended.
    """
    process = None
    try:
        with _signals_delayed():
            process = subprocess.Popen(command, text=True, **options)
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delivers SIGINT and SIGTERM after the block; only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: delayed.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received in delayed:
            signal.raise_signal(received)


def ended(process: subprocess.Popen[str], peak: Peak) -> Spent:
    """Wait for a process, discarding the rest of its output; sets its return code."""
    for stream in (process.stdout, process.stderr):
        if stream and not stream.closed:
            stream.read()
            stream.close()
    if process.returncode is not None:
        return Spent(0.0, peak.end())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Spent(usage.ru_utime + usage.ru_stime, peak.end())
