"""The stand-in for Pulumi's engine and provider: takes what a program registers, refuses disorder.

It answers as an update would, with `${Type:name.output}` for what only Azure knows. The analyzer is
shown those as unknown, as it is in a preview.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    resource_pb2,
    resource_pb2_grpc,
)

from infra.preview.captured import SECRET, STACK, Resource

# Pulumi's protocol: the mark of a wrapped value, and that of a secret.
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"
# type → what Azure alone makes of it, nested as its outputs are. Whatever of it the program reads
# stands here: an optional input made from an output that is not there would be left out.
MADE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "managedidentity:UserAssignedIdentity": (("principalId",), ("clientId",)),
    "keyvault:Vault": (("properties", "vaultUri"),),
}
Analyze = Callable[[Resource], None]


class Engine(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """One run of one stack. `resources`, `problems`, `errors` and `outputs` are what came of it."""

    def __init__(self, project: str, stack: str, analyze: Analyze) -> None:
        self._project, self._stack, self._analyze = project, stack, analyze
        self._lock = threading.Lock()
        self._root = ""
        self._references: set[str] = set()
        self.resources: dict[str, Resource] = {}
        self.problems: list[str] = []
        self.errors: list[str] = []
        self.outputs: dict[str, Any] = {}

    # The engine's half of the protocol.
    def Log(self, request: Any, context: Any) -> Any:
        """Keep what the program reports as an error."""
        if request.severity == engine_pb2.ERROR:
            self.errors.append(request.message)
        return empty_pb2.Empty()

    def GetRootResource(self, request: Any, context: Any) -> Any:
        """The stack itself."""
        return engine_pb2.GetRootResourceResponse(urn=self._root)

    def SetRootResource(self, request: Any, context: Any) -> Any:
        """The stack itself."""
        self._root = request.urn
        return engine_pb2.SetRootResourceResponse()

    def RequirePulumiVersion(self, request: Any, context: Any) -> Any:
        """Any version will do."""
        return engine_pb2.RequirePulumiVersionResponse()

    # The monitor's half.
    def SupportsFeature(self, request: Any, context: Any) -> Any:
        """What the SDK needs to tell secrets and references apart."""
        has = request.id in {"secrets", "resourceReferences", "aliasSpecs"}
        return resource_pb2.SupportsFeatureResponse(hasSupport=has)

    def GetDeploymentInfo(self, request: Any, context: Any) -> Any:
        """The same, as newer SDKs ask."""
        feature = resource_pb2
        return resource_pb2.DeploymentInfo(
            supportedFeatures=[
                feature.RESOURCE_MONITOR_FEATURE_SECRETS,
                feature.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
                feature.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
            ]
        )

    def SignalAndWaitForShutdown(self, request: Any, context: Any) -> Any:
        """Nothing waits."""
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        """Refused: a program that asks Azure cannot be previewed without it."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the program asks Azure: {request.tok}")

    def RegisterResource(self, request: Any, context: Any) -> Any:
        """Take a resource; every URN is new, and what it depends on is there."""
        urn = self._urn(request)
        inputs = plain(json_format.MessageToDict(request.object))
        uses = {key: tuple(sorted(of.urns)) for key, of in request.propertyDependencies.items()}
        resource = Resource(
            urn=urn,
            type=request.type,
            name=request.name,
            parent=request.parent,
            inputs=inputs,
            custom=request.custom,
            protect=request.protect,
            dependencies=tuple(sorted(request.dependencies)),
            uses={key: urns for key, urns in uses.items() if urns},
            ignore_changes=tuple(request.ignoreChanges),
        )
        with self._lock:
            self.problems.extend(self._disorder(resource))
            self.resources[urn] = resource
            if request.type == STACK:
                self._root = urn
        self._analyze(resource)
        identity = reference(resource, "id") if request.custom else ""
        answer = struct_pb2.Struct()
        answer.update(outputs(resource) if request.custom else {})
        return resource_pb2.RegisterResourceResponse(urn=urn, id=identity, object=answer)

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:
        """Keep the stack's outputs."""
        if request.urn == self._root:
            self.outputs = plain(json_format.MessageToDict(request.outputs))
        return empty_pb2.Empty()

    def _urn(self, request: Any) -> str:
        within = request.parent.split("::")[2] if request.parent else STACK
        kind = request.type if within == STACK else f"{within}${request.type}"
        return f"urn:pulumi:{self._stack}::{self._project}::{kind}::{request.name}"

    def _disorder(self, resource: Resource) -> list[str]:
        found: list[str] = []
        if resource.urn in self.resources:
            return [f"two resources have the URN {resource.urn}"]
        token = reference(resource, "id")
        if resource.custom and token in self._references:
            found.append(f"{resource.urn}: another resource of that type and name is there")
        self._references |= {token} if resource.custom else set()
        used = {urn for urns in resource.uses.values() for urn in urns}
        needed = {*resource.dependencies, *used, *([resource.parent] if resource.parent else [])}
        for urn in sorted(needed - self.resources.keys()):
            found.append(f"{resource.urn} depends on {urn}, which is not registered")
        return found


def reference(resource: Resource, output: str) -> str:
    """What stands for an output that only Azure knows: `${Vault:vault.id}`."""
    return f"${{{resource.type.split(':')[-1]}:{resource.name}.{output}}}"


def outputs(resource: Resource) -> dict[str, Any]:
    """What a resource answers with: its inputs, its name, and what Azure makes of it."""
    found: dict[str, Any] = {**resource.inputs, "name": reference(resource, "name")}
    identity = found.get("identity")
    if isinstance(identity, dict) and isinstance(identity.get("userAssignedIdentities"), list):
        # A list on the way in, a mapping on the way out.
        members: dict[str, Any] = {one: {} for one in identity["userAssignedIdentities"]}
        found["identity"] = {**identity, "userAssignedIdentities": members}
    for path in MADE.get(resource.kind, ()):
        inner = found
        for key in path[:-1]:
            inner[key] = inner = dict(inner[key])
        inner[path[-1]] = reference(resource, path[-1])
    return found


def plain(value: Any) -> Any:
    """A value as the program gave it: whole numbers whole, secrets not shown."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET_SIGNATURE:
            return SECRET
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
