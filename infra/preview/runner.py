"""Runs Pulumi programs against the stand-in engine, then the policy pack on their resources."""

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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

import grpc
from pulumi.runtime.proto import engine_pb2_grpc, resource_pb2_grpc

from infra.preview import sdk_types
from infra.preview.capture import REFERENCE, Breach, Capture, Resource, changes
from infra.preview.engine import Engine, RegistryLookup
from infra.settings import loader
from ml.core.errors import Place, Problem, UserError
from ml.core.imports import ROOT
from policies.infra import pack
from policies.infra.rule import UNKNOWN, Item

PROJECT = "platform"
# A placeholder for the only secret of the configuration.
NO_SECRET = json.dumps({f"{PROJECT}:lake_sas": "no-secret"})
OPTIONS = [("grpc.max_receive_message_length", 400 * 1024 * 1024)]
# Pulumi's names of the default provider, that of the stack's own subscription, begin with this.
DEFAULT_PROVIDER = "default"
_FRAME = re.compile(r' +File "(.+)", line (\d+)')
# A UserError has its own `file:line`. Other revisions may define the class in another module.
_REFUSED = re.compile(r"\A[\w.]+\.UserError: ")


@dataclass(frozen=True)
class Runner:
    """The process of launch.py, which runs one program at a time."""

    process: subprocess.Popen[str]
    errors: IO[str]  # stderr of the process and its programs

    def capture(
        self,
        stack: str,
        *,
        root: Path = ROOT,
        policies: pack.Context | None = None,
        config: Mapping[str, str] | None = None,
        lookup_registry: RegistryLookup | None = None,
        bare: bool = False,
        azure_like: bool = False,
    ) -> Capture:
        """Run the program of the tree at `root`; raise UserError with its message if it fails.

        `config` overrides the configuration of the stack file, as `-c` does. `bare` keeps aliases
        (see `launch`); `azure_like` uses Azure-like ids (see `Engine`). With `policies` the
        capture has their findings.
        """
        values = {**loader.configuration(stack, root / "infra"), **(config or {})}
        engine = Engine(PROJECT, stack, lookup_registry, azure_like)
        with served(engine) as address:
            request = {"engine": address, "project": PROJECT, "stack": stack, "root": str(root)}
            code, errors = self._run({**request, "config": values, "bare": bare})
        if code:
            errors = errors.strip() or "\n".join(engine.errors[-1:])
            raise UserError(failure(stack, code, errors, root))
        result = Capture(
            stack=stack,
            # Sorted, because resources register in any order, when their inputs are ready.
            resources=tuple(sorted(engine.resources.values(), key=lambda resource: resource.urn)),
            outputs=dict(sorted(engine.outputs.items())),
            problems=tuple(engine.problems),
        )
        if policies is None:
            return result
        problems = findings(
            policies,
            result,
            [*engine.resources.values(), *engine.providers.values(), *engine.reads.values()],
        )
        return replace(result, findings=tuple(problems))

    def _run(self, request: dict[str, object]) -> tuple[int, str]:
        """Run the program of a request; return its exit code and standard error."""
        assert self.process.stdin and self.process.stdout
        self.errors.seek(0)
        self.errors.truncate()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        # No line means that launch.py itself has exited.
        answer = self.process.stdout.readline() or self.process.wait() or 1
        self.errors.seek(0)
        return int(answer), self.errors.read()


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    """Start launch.py and yield its Runner; the process is killed at the end of the block."""
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
    """Serve the engine by gRPC on 127.0.0.1 during the block; yield its address."""
    server = grpc.server(futures.ThreadPoolExecutor(16), options=OPTIONS)
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(engine, server)
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None).wait()


def captures(
    runner: Runner, stacks: Sequence[str], *, root: Path = ROOT, context: pack.Context | None = None
) -> list[Capture]:
    """Return a capture of each stack of the tree at `root`, with the policy pack's findings.

    A second run with Azure-like ids detects a program that declares less in a preview. `context`
    defaults to the repository's limits and waivers. Raise UserError if a program fails, or if
    limits.yml or waivers.yml cannot be read.
    """
    context = context or pack.load()
    results = [runner.capture(stack, root=root, policies=context) for stack in stacks]
    return [
        replace(capture, problems=(*capture.problems, *_id_differences(capture, azure_like)))
        for capture in results
        for azure_like in [runner.capture(capture.stack, root=root, azure_like=True)]
    ]


def _id_differences(capture: Capture, azure_like: Capture) -> Iterator[str]:
    """Yield a problem for each resource that differs in the run with Azure-like ids."""
    for change in changes(capture, azure_like):
        paths = ", ".join(difference.path for difference in change.properties) or change.what
        yield f"{change.name}: an update declares it differently: {paths}"


def findings(
    context: pack.Context, capture: Capture, resources: Sequence[Resource]
) -> list[Breach]:
    """Evaluate the rules on the resources and on the whole stack; return the sorted findings.

    Raise UserError if a rule raises an exception.
    """
    items = [_item(resource, resource.inputs) for resource in resources]
    stack = [
        replace(_item(resource, _outputs(resource)), uses=resource.uses)
        for resource in capture.resources
    ]
    try:
        violations = [violation for item in items for violation in pack.violations(context, item)]
        violations += pack.violations(context, None, stack)
    except UserError:  # names the rule of a plug-in
        raise
    except Exception:
        reason, place = last_exception(traceback.format_exc(), ROOT, "policies")
        violation, expected = f"a rule failed with {reason}", "a rule that handles every resource"
        hint = "fix the code that the message names"
        raise UserError(Problem("rule-failed", violation, expected, hint, place)) from None
    breaches = [
        Breach(
            pack.EXEMPTED,
            False,
            violation.item.urn,
            f"{violation.rule}: {violation.message}; {violation.exemption}",
        )
        if violation.exemption
        else Breach(violation.rule, True, violation.item.urn, violation.message)
        for violation in violations
    ]
    return sorted(breaches, key=lambda breach: (breach.policy, breach.urn, breach.message))


def _item(resource: Resource, properties: Mapping[str, Any]) -> Item:
    """Return a resource as CrossGuard passes it to a rule."""
    return Item(
        pack.kind_of(resource.type),
        resource.name,
        resource.urn,
        unknown(properties),
        ignores=resource.ignore_changes,
        protected=resource.protect,
        provider=resource.provider or DEFAULT_PROVIDER,
    )


def unknown(value: Any) -> Any:
    """Return a value as in Pulumi's preview: texts with a reference become UNKNOWN."""
    if isinstance(value, Mapping):
        return {key: unknown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unknown(item) for item in value]
    return UNKNOWN if isinstance(value, str) and REFERENCE.search(value) else value


def _outputs(resource: Resource) -> Mapping[str, Any]:
    """Return the outputs of a resource, which stack policies get instead of its inputs.

    In a preview azure-native derives them: an input that is also an output has its value, any other
    output is unknown, and names such as `computeName`, which are only inputs, are absent (pulumi:
    step_generator.go, AnalyzeResources; pulumi-azure-native: provider.go, Create).
    """
    names = sdk_types.outputs(resource.type)
    if names is None:
        return resource.inputs
    return {name: resource.inputs.get(name, UNKNOWN) for name in sorted(names)}


def failure(stack: str, code: int, errors: str, root: Path) -> Problem:
    """Return the Problem of a failed program, at its last line of `infra`, without the traceback.

    `errors` is the program's standard error; `root` is the tree with its code.
    """
    reason, place = last_exception(errors, root, "infra")
    return Problem(
        "program-failed",
        f"the program of `{stack}` ended with {code}: {_REFUSED.sub('', reason)}",
        "exit code 0",
        "fix the code that the message names",
        None if _REFUSED.match(reason) else place,
    )


def last_exception(errors: str, root: Path, folder: str) -> tuple[str, Place | None]:
    """Return the exception of the last traceback in `errors`, and its last frame in `folder`."""
    lines = errors.strip().splitlines()
    frames = {number: match for number, line in enumerate(lines) if (match := _FRAME.match(line))}
    last = max(frames, default=-1)
    # The exception, of one line or more, follows the traceback; without one, take the last line.
    message = [line for line in lines[last + 1 :] if not line.startswith(" ")]
    reason = " ".join(line.strip() for line in (message if frames else lines[-1:]))
    places = [
        Place(str(Path(path).relative_to(root)), int(line))
        for path, line in (match.groups() for match in frames.values())
        if Path(path).is_relative_to(root / folder)
    ]
    return reason[:1500] or "no message", places[-1] if places else None


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process; kill it with all its child processes at the end of the block.

    `options` are Popen's. SIGINT and SIGTERM kill the process at once and are raised again after
    the block, because an exception raised in a callback of gRPC or of an import would be lost.
    """
    process: subprocess.Popen[str] | None = None
    received: list[int] = []

    def end(number: int, frame: FrameType | None = None) -> None:
        received.append(number)
        if process is not None:
            _kill(process)

    try:
        with _handled(end):
            try:
                process = subprocess.Popen(command, text=True, process_group=0, **options)
                if received:
                    _kill(process)
                yield process
            finally:
                if process is not None:
                    _kill(process)
                    process.communicate()  # until no process of the group holds the pipes
    finally:
        for number in received:
            signal.raise_signal(number)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with `handler` in the block; do nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
