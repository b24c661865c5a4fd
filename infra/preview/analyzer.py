"""The real CrossGuard analyzer: a process that serves a policy pack, and what it finds.

It is started as the Pulumi CLI starts it (pulumi: sdk/python/dist/pulumi-analyzer-policy-python):
in the pack's folder, with that folder as its program.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from infra.preview import sdk_types
from infra.preview.captured import REFERENCE, Capture, Finding, Resource, Spent
from infra.preview.processes import Peak, ended, started
from ml.core.errors import Problem, Refused

# Pulumi's protocol: a value that is not known yet.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
OPTIONS = [("grpc.max_receive_message_length", 400 * 1024 * 1024)]


class Analyzer:
    """A running policy pack, shared by the stacks that are previewed; a context manager.

    `spent` is what its process took, once it has ended.
    """

    def __init__(self, pack: Path, engine: str, project: str) -> None:
        self.spent = Spent(0.0, 0.0)
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open for as long as the process is
        with contextlib.ExitStack() as starting:
            self._process = starting.enter_context(
                started(
                    [sys.executable, "-u", "-m", "pulumi.policy", engine, "."],
                    cwd=pack,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env={
                        **os.environ,
                        "PULUMI_PROJECT": project,
                        "PULUMI_STACK": "preview",
                        "PULUMI_DRY_RUN": "true",
                    },
                )
            )
            self._peak = Peak(self._process.pid)
            self._begin(pack, said)
            self._running = starting.pop_all()

    def _begin(self, pack: Path, said: IO[str]) -> None:
        assert self._process.stdout
        port = self._process.stdout.readline().strip()
        if not port.isdigit():
            ended(self._process, self._peak)
            said.seek(0)
            last = next((line for line in reversed(said.readlines()) if line.strip()), "no reason")
            raise Refused(
                Problem(
                    "policy-pack",
                    f"the policy pack did not start: {last.strip()}",
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
        """What the policies of single resources say."""
        request = analyzer_pb2.AnalyzeRequest(
            type=resource.type,
            urn=resource.urn,
            name=resource.name,
            properties=_struct(resource.inputs),
            options=_options(resource),
        )
        return self._findings(self._stub.Analyze(request).diagnostics, resource.urn)

    def stack(self, capture: Capture) -> list[Finding]:
        """What the policies of a whole stack say."""
        request = analyzer_pb2.AnalyzeStackRequest()
        for one in capture.resources:
            shown = request.resources.add(
                type=one.type,
                urn=one.urn,
                name=one.name,
                parent=one.parent,
                dependencies=one.dependencies,
                properties=_struct(_outputs(one)),
                options=_options(one),
            )
            for key, urns in one.uses.items():
                shown.propertyDependencies[key].urns.extend(urns)
        return self._findings(self._stub.AnalyzeStack(request).diagnostics, "")

    def _findings(self, diagnostics: Iterable[Any], urn: str) -> list[Finding]:
        # CrossGuard puts the policy's description before what the policy said.
        return [
            Finding(
                one.policyName,
                one.enforcementLevel == analyzer_pb2.MANDATORY,
                one.urn or urn,
                one.message.removeprefix(self.policies.get(one.policyName, "")).strip(),
            )
            for one in diagnostics
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


def _options(resource: Resource) -> analyzer_pb2.AnalyzerResourceOptions:
    return analyzer_pb2.AnalyzerResourceOptions(
        protect=resource.protect,
        ignoreChanges=resource.ignore_changes,
        parent=resource.parent,
    )


def unknown(value: Any) -> Any:
    """A value as a preview shows it: what holds a reference is not known."""
    if isinstance(value, Mapping):
        return {key: unknown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [unknown(one) for one in value]
    return UNKNOWN if isinstance(value, str) and REFERENCE.search(value) else value


def _outputs(resource: Resource) -> Mapping[str, Any]:
    """What a policy of a whole stack is shown: outputs, not inputs.

    In a preview azure-native makes them up: an input that is an output too is as it was given, any
    other output is unknown, and names such as `computeName`, which are inputs alone, are not there
    (pulumi: step_generator.go, AnalyzeResources; pulumi-azure-native: provider.go, Create).
    """
    names = sdk_types.outputs(resource.type)
    if names is None:
        return resource.inputs
    return {name: resource.inputs.get(name, UNKNOWN) for name in sorted(names)}


def _struct(inputs: Mapping[str, Any]) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(unknown(inputs))
    return made
