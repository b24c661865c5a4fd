"""Previewing: each stack's program in a process of its own, one analyzer for them all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import replace
from pathlib import Path

import grpc
from pulumi.runtime.proto import engine_pb2_grpc, resource_pb2_grpc

from infra.preview.analyzer import OPTIONS, Analyzer
from infra.preview.captured import Capture, Finding, Resource
from infra.preview.engine import Engine
from infra.preview.failure import failure
from infra.preview.processes import Peak, ended, started
from ml.core.errors import Refused

PROJECT = "platform"
ROOT = Path(__file__).parents[2]
# Stands for every secret of the configuration: a preview needs none of them.
NO_SECRET = json.dumps({f"{PROJECT}:lake_sas": "no-secret"})


def captures(
    stacks: Sequence[str], *, root: Path = ROOT, policies: bool = True
) -> tuple[list[Capture], Analyzer | None]:
    """Run the program of the tree at `root` for each stack; Refused when it fails.

    The analyzer that looked at them comes back ended, None without `policies`.
    """
    with contextlib.ExitStack() as stack:
        analyzer = None
        if policies:
            listener = stack.enter_context(_served(Engine(PROJECT, "policies", lambda _: None)))
            analyzer = stack.enter_context(Analyzer(root / "policies" / "infra", listener, PROJECT))
        found = [capture(one, root=root, analyzer=analyzer) for one in stacks]
    return found, analyzer


def capture(
    stack: str, *, root: Path = ROOT, analyzer: Analyzer | None = None, bare: bool = False
) -> Capture:
    """One run of the program; Refused with what it said when it fails.

    `bare` runs it with the SDK as it is, without the short cut that `launch` describes.
    """
    findings: list[Finding] = []

    def analyze(resource: Resource) -> None:
        if analyzer:
            findings.extend(analyzer.resource(resource))

    engine = Engine(PROJECT, stack, analyze)
    program = root / "infra"
    with (
        _served(engine) as address,
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
        told = process.stderr.read()
        spent = ended(process, peak)
    if process.returncode:
        said = told.strip() or "\n".join(engine.errors[-1:])
        raise Refused(failure(stack, process.returncode, said, root))
    done = Capture(
        stack=stack,
        # They come in as their inputs are ready: in any order.
        resources=tuple(sorted(engine.resources.values(), key=lambda one: one.urn)),
        outputs=dict(sorted(engine.outputs.items())),
        problems=tuple(engine.problems),
        spent=spent,
    )
    if analyzer:
        findings.extend(analyzer.stack(done))
    ordered = sorted(findings, key=lambda one: (one.policy, one.urn, one.message))
    return replace(done, findings=tuple(ordered))


@contextlib.contextmanager
def _served(engine: Engine) -> Iterator[str]:
    """The address that the engine is served at, on this machine alone."""
    server = grpc.server(futures.ThreadPoolExecutor(16), options=OPTIONS)
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(engine, server)
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None).wait()
