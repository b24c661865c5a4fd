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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from infra.preview import sdk_types
from infra.preview.capture import REFERENCE, Capture, Finding, Resource
from infra.preview.engine import Engine
from infra.preview.runner import OPTIONS, PROJECT, ROOT, Runner, served, started
from ml.core.errors import Problem, Refused

# Pulumi's protocol: a value that is unknown until the update.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


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
        if not port.isdigit():
            process.wait()
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
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield Analyzer(channel)


class Analyzer:
    """A client of a running policy pack, which applies every policy at its own level."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = analyzer_pb2_grpc.AnalyzerStub(channel)
        self._descriptions = {}
        configuration = analyzer_pb2.ConfigureAnalyzerRequest()
        for policy in self._stub.GetAnalyzerInfo(empty_pb2.Empty()).policies:
            self._descriptions[policy.name] = policy.description
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
