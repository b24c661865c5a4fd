"""The real CrossGuard analyzer, a process that serves a policy pack, and its findings.

It is started like the Pulumi CLI starts it (pulumi: sdk/python/dist/pulumi-analyzer-policy-python):
in the pack's folder, with that folder as its program.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from infra.preview import sdk_types
from infra.preview.capture import REFERENCE, Capture, Finding, Resource, Spent
from infra.preview.engine import Engine
from infra.preview.runner import OPTIONS, PROJECT, ROOT, Peak, capture, ended, served, started
from ml.core.errors import Problem, Refused

# Pulumi's protocol: a value that is unknown until the update.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


class Analyzer:
    """A running policy pack, shared by all stacks of a preview; a context manager.

    `spent` is the cost of its process, once it has ended.
    """

    def __init__(self, pack: Path, engine: str, project: str) -> None:
        self.spent = Spent(0.0, 0.0)
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open while the process runs
        with contextlib.ExitStack() as starting:
            self._process = starting.enter_context(
                started(
                    [sys.executable, "-u", "-m", "pulumi.policy", engine, "."],
                    cwd=pack,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={
                        **os.environ,
                        "PULUMI_PROJECT": project,
                        "PULUMI_STACK": "preview",
                        "PULUMI_DRY_RUN": "true",
                    },
                )
            )
            self._peak = Peak(self._process.pid)
            self._connect(pack, errors)
            self._running = starting.pop_all()

    def _connect(self, pack: Path, errors: IO[str]) -> None:
        assert self._process.stdout
        port = self._process.stdout.readline().strip()
        if not port.isdigit():
            ended(self._process, self._peak)
            errors.seek(0)
            lines = reversed(errors.readlines())
            reason = next((line.strip() for line in lines if line.strip()), "no reason")
            raise Refused(
                Problem(
                    "policy-pack",
                    f"the policy pack did not start: {reason}",
                    "rules, limits.yml and waivers.yml that load",
                    f"look at {pack.parent.name}/{pack.name}",
                )
            )
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        self._stub = analyzer_pb2_grpc.AnalyzerStub(self._channel)
        configuration = analyzer_pb2.ConfigureAnalyzerRequest()
        self.policies = {}
        for policy in self._stub.GetAnalyzerInfo(empty_pb2.Empty()).policies:
            self.policies[policy.name] = policy.description
            level = configuration.policyConfig[policy.name]
            level.enforcementLevel = policy.enforcementLevel
        self._stub.Configure(configuration)

    def resource(self, resource: Resource) -> list[Finding]:
        """Findings of the policies of single resources."""
        request = analyzer_pb2.AnalyzeRequest(
            type=resource.type,
            urn=resource.urn,
            name=resource.name,
            properties=_struct(resource.inputs),
            options=_options(resource),
        )
        return self._findings(self._stub.Analyze(request).diagnostics, resource.urn)

    def stack(self, capture: Capture) -> list[Finding]:
        """Findings of the policies of a whole stack."""
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
        return self._findings(self._stub.AnalyzeStack(request).diagnostics, "")

    def _findings(self, diagnostics: Iterable[Any], urn: str) -> list[Finding]:
        # CrossGuard puts the policy's description before its message.
        return [
            Finding(
                diagnostic.policyName,
                diagnostic.enforcementLevel == analyzer_pb2.MANDATORY,
                diagnostic.urn or urn,
                diagnostic.message.removeprefix(
                    self.policies.get(diagnostic.policyName, "")
                ).strip(),
            )
            for diagnostic in diagnostics
        ]

    def __enter__(self) -> Analyzer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._running:
            self._channel.close()
            self._process.terminate()
            self.spent = ended(self._process, self._peak)


def captures(
    stacks: Sequence[str], *, root: Path = ROOT, policies: bool = True
) -> tuple[list[Capture], Analyzer | None]:
    """Run the program of the tree at `root` for each stack; Refused if it fails.

    The analyzer that checked them is returned after its end; None without `policies`.
    """
    with contextlib.ExitStack() as stack:
        analyzer = None
        if policies:
            engine = stack.enter_context(served(Engine(PROJECT, "policies", lambda _: None)))
            analyzer = stack.enter_context(Analyzer(root / "policies" / "infra", engine, PROJECT))
        results = [capture(name, root=root, policies=analyzer) for name in stacks]
    return results, analyzer


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
