"""Stand-in for Pulumi's engine and provider: records the resources that a program registers.

It responds as in an update, with `${Type:name.output}` for values that only Azure knows.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    provider_pb2,
    resource_pb2,
    resource_pb2_grpc,
)

from infra.preview import sdk_types
from infra.preview.capture import REFERENCE, SECRET, STACK, Resource
from infra.preview.launch import OUTPUTS
from infra.settings.azure import REGIONS

# Keys of Pulumi's protocol: a wrapped value, a secret, a resource reference.
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"
RESOURCE_SIGNATURE = "5cf8f73096256a8f31e491e813e4eb8e"
# kind → outputs that Azure creates, nested like the real ones. Every output that the program reads
# must be listed: an optional input that derives from a missing output would be dropped.
AZURE_OUTPUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "managedidentity:UserAssignedIdentity": (("principalId",), ("clientId",)),
    "keyvault:Key": (("keyUriWithVersion",),),
    "keyvault:Vault": (("properties", "vaultUri"),),
    "containerregistry:Registry": (("loginServer",),),
}
PROVIDER = "pulumi:providers:"
READ = "platform:read:Read"  # type of resources that a program only reads
# The beginning of ids that look like Azure's and replace references (`azure_like`).
AZURE_ID = "/subscriptions/6f8d2c1e-0000-4000-8000-000000000000/resourceGroups/rg/providers/id/"
_AZURE = re.compile(f"(?:{AZURE_ID})?([0-9a-f]{{32}})")
# Pulumi options that change how a resource is created, replaced or deleted.
OPTIONS = frozenset(
    (
        *("importId", "deleteBeforeReplace", "retainOnDelete", "deletedWith", "replaceOnChanges"),
        *("replace_with", "replacement_trigger", "pluginDownloadURL", "additionalSecretOutputs"),
        "customTimeouts",
    )
)
# The program's only invoke: it reads the registry that another stack creates.
REGISTRY = "azure-native:machinelearningservices:getRegistry"
RegistryLookup = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Engine(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """One run of one stack; the results are `resources`, `problems`, `errors` and `outputs`.

    With `azure_like` the engine returns ids like Azure's instead of references. The results are
    the same, unless the program declares other resources for real ids than for references.
    """

    def __init__(
        self,
        project: str,
        stack: str,
        lookup_registry: RegistryLookup | None = None,
        azure_like: bool = False,
    ) -> None:
        self._project, self._stack = project, stack
        self._azure_like, self._texts = azure_like, dict[str, str]()
        self._lookup_registry: RegistryLookup = lookup_registry or registry
        self._lock = threading.Lock()
        self._root = ""
        self._references: set[str] = set()
        # Pulumi providers by URN, apart from `resources` since they do not exist in Azure.
        self.providers: dict[str, Resource] = {}
        self.reads: dict[str, Resource] = {}  # existing resources that the program reads, by URN
        self.resources: dict[str, Resource] = {}
        self.problems: list[str] = []
        self.errors: list[str] = []
        self.outputs: dict[str, Any] = {}

    # Methods of the service Engine.
    def Log(self, request: Any, context: Any) -> Any:
        """Record an error that the program logged; ignore other levels."""
        if request.severity == engine_pb2.ERROR:
            self.errors.append(request.message)
        return empty_pb2.Empty()

    # Methods of the service ResourceMonitor.
    def GetDeploymentInfo(self, request: Any, context: Any) -> Any:
        """Return the features that the SDK needs to distinguish secrets and references."""
        return resource_pb2.DeploymentInfo(
            supportedFeatures=[
                resource_pb2.RESOURCE_MONITOR_FEATURE_SECRETS,
                resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
                resource_pb2.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
                resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_HOOKS,
            ]
        )

    def RegisterResourceHook(self, request: Any, context: Any) -> Any:
        """Accept a resource hook without running it, since nothing is created."""
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        """Return an invoke's outputs: the registry of another stack, else placeholders."""
        answer = struct_pb2.Struct()
        provider = self.providers.get(request.provider.rpartition("::")[0])
        arguments = {**(provider.inputs if provider else {}), **self._passed(request.args)}
        label = request.tok.rpartition(":")[2]
        if request.tok == REGISTRY:
            outputs = self._lookup_registry(arguments)
        else:
            outputs = sdk_types.answer(request.tok, label)
            name = f"{label} of {', '.join(map(str, arguments.values()))}"
            self._note(name, name, name)
        answer.update(self._answered({**arguments, **outputs}))
        return provider_pb2.InvokeResponse(**{"return": answer})

    def ReadResource(self, request: Any, context: Any) -> Any:
        """Return the id of an existing resource (`.get`), and placeholders for its outputs."""
        urn, answer = self._urn(request), struct_pb2.Struct()
        self._note(urn, request.name, request.id)
        if request.type == "pulumi:pulumi:StackReference":
            text = self._answered(f"${{StackReference:{request.name}.id}}")
            reference = {SIGNATURE: RESOURCE_SIGNATURE, "urn": urn, "name": text, "type": OUTPUTS}
            answer.update({"name": request.id, "outputs": reference, "secretOutputNames": []})
        else:
            outputs = sdk_types.answer(
                request.type, f"{request.type.split(':')[-1]}:{request.name}"
            )
            answer.update(self._answered({**outputs, "name": request.id.rpartition("/")[2]}))
        return resource_pb2.ReadResourceResponse(urn=urn, properties=answer)

    def RegisterResource(self, request: Any, context: Any) -> Any:
        """Record a resource, and a problem if its URN exists or a dependency is not registered."""
        urn = self._urn(request)
        inputs = self._passed(request.object)
        uses = {
            key: tuple(sorted(dependencies.urns))
            for key, dependencies in request.propertyDependencies.items()
        }
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
            hooks=tuple(
                name if field.name == "after_create" else f"{field.name} {name}"
                for field, names in request.hooks.ListFields()
                for name in names
            ),
            provider=request.provider.rpartition("::")[0].rpartition("::")[2],
            options={
                field.name: str(value)
                for field, value in request.ListFields()
                if field.name in OPTIONS
            },
        )
        with self._lock:
            self.problems.extend(self._disorder(resource))
            kept = self.providers if resource.type.startswith(PROVIDER) else self.resources
            kept[urn] = resource
            if request.type == STACK:
                self._root = urn
        identity = self._answered(reference(resource, "id")) if request.custom else ""
        answer = struct_pb2.Struct()
        answer.update(self._answered(outputs(resource)) if request.custom else {})
        return resource_pb2.RegisterResourceResponse(urn=urn, id=identity, object=answer)

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:
        """Record the outputs of the stack; ignore those of components."""
        if request.urn == self._root:
            self.outputs = self._passed(request.outputs)
        return empty_pb2.Empty()

    def _answered(self, value: Any) -> Any:
        """Return a value for the program; with `azure_like`, references become Azure-like ids."""
        if not self._azure_like:
            return value
        return json.loads(REFERENCE.sub(self._like_azure, json.dumps(value)))

    def _like_azure(self, match: re.Match[str]) -> str:
        text = hashlib.sha256(match[0].encode()).hexdigest()[:32]
        self._texts[text] = match[0]
        return f"{AZURE_ID}{text}" if match[0].endswith(".id}") else text

    def _passed(self, value: Any) -> Any:
        """Return a value from the program, with Azure-like texts mapped back to references."""
        text = json.dumps(plain(json_format.MessageToDict(value)))
        return json.loads(_AZURE.sub(lambda match: self._texts.get(match[1], match[0]), text))

    def _note(self, urn: str, name: str, id: str) -> None:
        """Record a resource that the program reads; rules can check only its id."""
        of_stack = f"urn:pulumi:{self._stack}::{self._project}::{READ}::{name}"
        self.reads[urn] = Resource(of_stack, READ, name, "", {"id": id})

    def _urn(self, request: Any) -> str:
        within = request.parent.split("::")[2] if request.parent else STACK
        kind = request.type if within == STACK else f"{within}${request.type}"
        return f"urn:pulumi:{self._stack}::{self._project}::{kind}::{request.name}"

    def _disorder(self, resource: Resource) -> list[str]:
        problems: list[str] = []
        if resource.urn in self.resources:
            return [f"two resources have the URN {resource.urn}"]
        token = reference(resource, "id")
        if resource.custom and token in self._references:
            problems.append(f"{resource.urn}: another resource has the same type and name")
        self._references |= {token} if resource.custom else set()
        used = {urn for urns in resource.uses.values() for urn in urns}
        needed = {*resource.dependencies, *used, *([resource.parent] if resource.parent else [])}
        for urn in sorted(needed - self.resources.keys() - self.reads.keys()):
            problems.append(f"{resource.urn} depends on {urn}, which is not registered")
        return problems


def registry(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a registry as the provider would, in every region, with placeholders for accounts."""

    def account(part: str) -> Mapping[str, Any]:
        id = f"${{Registry:{arguments['registryName']}.{part}}}"
        return {"armResourceId": {"resourceId": id}}

    region = {
        "acrDetails": [{"systemCreatedAcrAccount": account("images")}],
        "storageAccountDetails": [{"systemCreatedStorageAccount": account("storage")}],
    }
    return {"regionDetails": [{"location": location, **region} for location in sorted(REGIONS)]}


def reference(resource: Resource, output: str) -> str:
    """Return the placeholder of an output that only Azure knows: `${Vault:vault.id}`."""
    return f"${{{resource.type.split(':')[-1]}:{resource.name}.{output}}}"


def outputs(resource: Resource) -> dict[str, Any]:
    """Return the outputs of a resource: its inputs, its name, and what Azure creates."""
    result: dict[str, Any] = {**resource.inputs, "name": reference(resource, "name")}
    identity = result.get("identity")
    if isinstance(identity, dict) and isinstance(identity.get("userAssignedIdentities"), list):
        # azure-native takes a list of ids as the input, and outputs a mapping by id.
        members: dict[str, Any] = {id: {} for id in identity["userAssignedIdentities"]}
        result["identity"] = {**identity, "userAssignedIdentities": members}
    for path in AZURE_OUTPUTS.get(resource.kind, ()):
        inner = result
        for key in path[:-1]:
            inner[key] = inner = dict(inner[key])
        inner[path[-1]] = reference(resource, path[-1])
    return result


def plain(value: Any) -> Any:
    """Return a protobuf value as plain data: whole floats as integers, secrets as SECRET."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET_SIGNATURE:
            return SECRET
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
