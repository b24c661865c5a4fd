"""Runs Pulumi programs against the stand-in engine, and the policy pack in the real analyzer.

Each is a process of its own, which ends with its block. The analyzer is started as the Pulumi CLI
starts it (pulumi: sdk/python/dist/pulumi-analyzer-policy-python): in the pack's folder, with that
folder as its program.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, engine_pb2_grpc, resource_pb2_grpc

from infra.preview import sdk_types
from infra.preview.capture import REFERENCE, Breach, Capture, Resource
from infra.preview.engine import Ask, Engine
from infra.settings import loader
from ml.core.errors import Place, Problem, Refused
from ml.core.imports import ROOT

PROJECT = "platform"
# Replaces every secret of the configuration: a preview needs none.
NO_SECRET = json.dumps({f"{PROJECT}:lake_sas": "no-secret"})
OPTIONS = [("grpc.max_receive_message_length", 400 * 1024 * 1024)]
_FRAME = re.compile(r' +File "(.+)", line (\d+)')
# Refused settings name their own line; another revision may have the class elsewhere.
_REFUSED = re.compile(r"\A[\w.]+\.Refused: ")
# Of what a policy pack writes to its standard error, in bytes.
_LONGEST = 1 << 20
# Pulumi's protocol: a value that is unknown until the update.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


@dataclass(frozen=True)
class Runner:
    """The process of launch.py, which runs one program at a time; `errors` is their output."""

    process: subprocess.Popen[str]
    errors: IO[str]

    def capture(
        self,
        stack: str,
        *,
        root: Path = ROOT,
        policies: Analyzer | None = None,
        config: Mapping[str, str] | None = None,
        ask: Ask | None = None,
        bare: bool = False,
    ) -> Capture:
        """One run of the program of the tree at `root`; Refused with its own message if it fails.

        `config` is what Pulumi would hand to it beside the stack file, as `-c` does. `bare` runs it
        without the shortcut that `launch` describes.
        """
        findings: list[Breach] = []
        failures: list[Refused] = []

        def analyze(resource: Resource) -> None:
            try:
                findings.extend(policies.resource(resource) if policies else ())
            except Refused as refused:  # the program would hear of it, and end
                failures.append(refused)

        values = {**loader.configuration(stack, root / "infra"), **(config or {})}
        engine = Engine(PROJECT, stack, analyze, ask)
        with served(engine) as address:
            code, errors = self._run(
                {
                    "engine": address,
                    "project": PROJECT,
                    "stack": stack,
                    "root": str(root),
                    "config": values,
                    "bare": bare,
                }
            )
        if failures:
            raise failures[0]
        if code:
            errors = errors.strip() or "\n".join(engine.errors[-1:])
            raise Refused(failure(stack, code, errors, root))
        result = Capture(
            stack=stack,
            # They register in any order, as their inputs become ready.
            resources=tuple(sorted(engine.resources.values(), key=lambda resource: resource.urn)),
            outputs=dict(sorted(engine.outputs.items())),
            problems=tuple(engine.problems),
        )
        if policies:
            findings.extend(policies.stack(result))
        findings.sort(key=lambda finding: (finding.policy, finding.urn, finding.message))
        return replace(result, findings=tuple(findings))

    def _run(self, request: dict[str, object]) -> tuple[int, str]:
        """The exit code of a program, and what it wrote to its standard error."""
        assert self.process.stdin and self.process.stdout
        self.errors.seek(0)
        self.errors.truncate()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        # Without an answer launch.py itself has ended.
        answer = self.process.stdout.readline() or self.process.wait() or 1
        self.errors.seek(0)
        return int(answer), self.errors.read()


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    """A runner of programs, which ends with the block."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        started(
            [sys.executable, str(Path(__file__).with_name("launch.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "PULUMI_CONFIG": NO_SECRET,
                "PULUMI_CONFIG_SECRET_KEYS": json.dumps(list(json.loads(NO_SECRET))),
            },
        ) as process,
    ):
        yield Runner(process, errors)


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


def captures(runner: Runner, stacks: Sequence[str], *, root: Path = ROOT) -> list[Capture]:
    """A capture of each stack of the tree at `root`, with the findings of the tree's policy pack.

    Refused if a program fails or the pack does not start.
    """
    with (
        served(Engine(PROJECT, "policies", lambda _: None)) as engine,
        analyzer(root / "policies" / "infra", engine) as policies,
    ):
        return [runner.capture(stack, root=root, policies=policies) for stack in stacks]


@contextlib.contextmanager
def analyzer(pack: Path, engine: str) -> Iterator[Analyzer]:
    """A policy pack that runs until the end of the block; Refused if it does not start."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        started(
            [sys.executable, "-u", "-m", "pulumi.policy", engine, "."],
            cwd=pack,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "PULUMI_PROJECT": PROJECT,
                "PULUMI_STACK": "preview",
                "PULUMI_DRY_RUN": "true",
            },
        ) as process,
    ):
        assert process.stdout
        port = process.stdout.readline().strip()
        if not port.isdecimal():
            process.wait()
            errors.seek(0)
            lines = reversed(errors.readlines())
            reason = next((line.strip() for line in lines if line.strip()), "no reason")
            found = f"the policy pack did not start: {reason}"
            expected = "rules, limits.yml and waivers.yml that load"
            hint = f"fix {pack.parent.name}/{pack.name}"
            raise Refused(Problem("policy-pack", found, expected, hint))
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield Analyzer(channel, errors, pack.parents[1])


class Analyzer:
    """A client of a running policy pack, which applies every policy at its own level.

    `errors` is the pack's standard error; `root` is the tree with its rules.
    """

    def __init__(self, channel: grpc.Channel, errors: IO[str], root: Path) -> None:
        self._errors, self._root = errors, root
        self._stub = analyzer_pb2_grpc.AnalyzerStub(channel)
        self._descriptions = {}
        configuration = analyzer_pb2.ConfigureAnalyzerRequest()
        for policy in self._stub.GetAnalyzerInfo(empty_pb2.Empty()).policies:
            self._descriptions[policy.name] = policy.description
            level = configuration.policyConfig[policy.name]
            level.enforcementLevel = policy.enforcementLevel
        self._stub.Configure(configuration)

    def resource(self, resource: Resource) -> list[Breach]:
        """Findings of the policies of single resources; Refused where a rule fails."""
        request = analyzer_pb2.AnalyzeRequest(
            type=resource.type,
            urn=resource.urn,
            name=resource.name,
            properties=_struct(resource.inputs),
            options=_options(resource),
            provider=analyzer_pb2.AnalyzerProviderResource(
                type="pulumi:providers:azure-native", name=resource.provider or "default"
            ),
        )
        return self._findings(self._stub.Analyze, request, resource.urn)

    def stack(self, capture: Capture) -> list[Breach]:
        """Findings of the policies of a whole stack; Refused where a rule fails."""
        request = analyzer_pb2.AnalyzeStackRequest()
        for resource in capture.resources:
            message = request.resources.add(
                type=resource.type,
                urn=resource.urn,
                name=resource.name,
                parent=resource.parent,
                dependencies=resource.dependencies,
                properties=_struct(_outputs(resource)),
                options=_options(resource),
            )
            for key, urns in resource.uses.items():
                message.propertyDependencies[key].urns.extend(urns)
        return self._findings(self._stub.AnalyzeStack, request, "")

    def _findings(self, ask: Callable[[Any], Any], request: Any, urn: str) -> list[Breach]:
        try:
            diagnostics = ask(request).diagnostics
        except grpc.RpcError:
            # The pack goes on writing where it is: the file is read without moving in it.
            output = os.pread(self._errors.fileno(), _LONGEST, 0).decode(errors="replace")
            reason, place = last_exception(output, self._root, "policies")
            found, expected = f"a rule failed with {reason}", "a rule that handles every resource"
            hint = "fix the code that the message names"
            raise Refused(Problem("rule-failed", found, expected, hint, place)) from None
        # CrossGuard puts the policy's description before its message.
        return [
            Breach(
                diagnostic.policyName,
                diagnostic.enforcementLevel == analyzer_pb2.MANDATORY,
                diagnostic.urn or urn,
                diagnostic.message.removeprefix(
                    self._descriptions.get(diagnostic.policyName, "")
                ).strip(),
            )
            for diagnostic in diagnostics
        ]


def _options(resource: Resource) -> analyzer_pb2.AnalyzerResourceOptions:
    return analyzer_pb2.AnalyzerResourceOptions(
        protect=resource.protect,
        ignoreChanges=resource.ignore_changes,
        parent=resource.parent,
    )


def unknown(value: Any) -> Any:
    """A value as a preview shows it: unknown if it contains a reference."""
    if isinstance(value, Mapping):
        return {key: unknown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unknown(item) for item in value]
    return UNKNOWN if isinstance(value, str) and REFERENCE.search(value) else value


def _outputs(resource: Resource) -> Mapping[str, Any]:
    """The outputs of a resource, which policies of a whole stack see instead of its inputs.

    In a preview azure-native derives them: an input that is also an output has its value, any other
    output is unknown, and names such as `computeName`, which are only inputs, are absent (pulumi:
    step_generator.go, AnalyzeResources; pulumi-azure-native: provider.go, Create).
    """
    names = sdk_types.outputs(resource.type)
    if names is None:
        return resource.inputs
    return {name: resource.inputs.get(name, UNKNOWN) for name in sorted(names)}


def _struct(inputs: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(unknown(inputs))
    return struct


def failure(stack: str, code: int, errors: str, root: Path) -> Problem:
    """A failed program as a problem, at its own line and without the SDK's traceback.

    `errors` is its standard error; `root` is the tree with its code.
    """
    reason, place = last_exception(errors, root, "infra")
    return Problem(
        "program-failed",
        f"the program of `{stack}` ended with {code}: {_REFUSED.sub('', reason)}",
        "exit code 0",
        "fix the code that the message names",
        None if _REFUSED.match(reason) else place,
    )


def last_exception(errors: str, root: Path, room: str) -> tuple[str, Place | None]:
    """The exception of the last traceback in a text, and its last line in a room of the tree."""
    lines = errors.strip().splitlines()
    frames = {at: match for at, line in enumerate(lines) if (match := _FRAME.match(line))}
    last = max(frames, default=-1)
    # After a traceback comes the exception, on one line or more; other output ends with the reason.
    message = [line for line in lines[last + 1 :] if not line.startswith(" ")]
    reason = " ".join(line.strip() for line in (message if frames else lines[-1:]))
    own = [
        Place(str(Path(path).relative_to(root)), int(line))
        for path, line in (match.groups() for match in frames.values())
        if Path(path).is_relative_to(root / room)
    ]
    return reason[:1500] or "no message", own[-1] if own else None


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest, and with it every process it started.

    `options` are Popen's. A signal during the start is delivered once the process can be ended.
    """
    process = None
    try:
        with _signals_delayed():
            process = subprocess.Popen(command, text=True, process_group=0, **options)
        yield process
    finally:
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until no process of the group holds the pipes


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
