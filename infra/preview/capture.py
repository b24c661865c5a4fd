"""The resources that a run of the program declared, as plain data, and the diff of two runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

# A value that only Azure knows, such as an id: `${Type:logical name.output}`.
REFERENCE = re.compile(r"\$\{[^}]+\}")
SECRET = "[secret]"
STACK = "pulumi:pulumi:Stack"


def logical_name(reference: str) -> str:
    """Return the name in `${Type:name.output}`; any other text unchanged."""
    match = re.search(r"\$\{\w+:([^}]+)\.\w+\}", reference)
    return match[1] if match else reference


@dataclass(frozen=True)
class Resource:
    """One resource that the program registered."""

    urn: str
    type: str  # such as `azure-native:storage:StorageAccount`
    name: str
    parent: str  # a URN; "" for none
    inputs: Mapping[str, Any]  # names in camelCase; SECRET for a secret value
    custom: bool = True  # False for components and the stack
    protect: bool = False
    dependencies: tuple[str, ...] = ()  # URNs
    # Input → URNs of the resources that it derives from.
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignore_changes: tuple[str, ...] = ()
    # Names of resource hooks; the event comes first unless it is `after_create`.
    hooks: tuple[str, ...] = ()
    provider: str = ""  # name of an explicit provider; "" for the stack's default
    options: Mapping[str, str] = field(default_factory=dict)  # further Pulumi options by name

    @property
    def kind(self) -> str:
        """The type without its provider: `storage:StorageAccount`."""
        return self.type.split(":", 1)[1]


@dataclass(frozen=True)
class Breach:
    """A policy violation of a resource."""

    policy: str
    mandatory: bool  # True if it blocks an update
    urn: str
    message: str


@dataclass(frozen=True)
class Capture:
    """One run of the program for one stack."""

    stack: str
    resources: tuple[Resource, ...]
    outputs: Mapping[str, Any]
    findings: tuple[Breach, ...] = ()
    problems: tuple[str, ...] = ()  # errors for which a real engine would reject the program

    @property
    def provided(self) -> Sequence[Resource]:
        """The resources that would exist in Azure: all except components and the stack."""
        return [resource for resource in self.resources if resource.custom]

    def component(self, resource: Resource) -> str:
        """Return the name of the component that a resource belongs to; "" if it has none."""
        by_urn = {item.urn: item for item in self.resources}
        top = resource
        while top.parent and by_urn[top.parent].type != STACK:
            top = by_urn[top.parent]
        return "" if top is resource and resource.custom else top.name


ABSENT = "(not set)"
# `path` of a rule about a whole resource.
ADDED, REMOVED = "added", "removed"


@dataclass(frozen=True)
class Property:
    """The change of one property."""

    path: str  # dotted, such as `sku.name`
    before: Any  # ABSENT if it was not set
    after: Any  # ABSENT if it is not set


@dataclass(frozen=True)
class ResourceChange:
    """The change of one resource, or of a file that defines a stack."""

    what: Literal["added", "removed", "changed"]
    kind: str  # of the resource, or the path of the file
    name: str
    urn: str  # "" for a file
    # The changed properties; if added or removed, those of `_role_identity`.
    properties: tuple[Property, ...] = ()


@dataclass(frozen=True)
class ImmutableRule:
    """A kind of change, selected by regular expressions, with its outcome and an alternative."""

    kind: str  # pattern of the resource's kind
    path: str  # pattern of a property's path, or REMOVED for the whole resource
    outcome: str  # may contain `{path}`, `{before}` and `{after}`
    instead: str  # what to do instead
    source: str
    when: str = ".*"  # pattern of `before → after`


_ML = "machinelearningservices"
_HOLDS = f"storage:StorageAccount|keyvault:Vault|(containerregistry|{_ML}):Registry"
_NO_ZONES, _ZONES = "Standard_(LRS|(RA)?GRS)", "Standard_(RA)?G?ZRS"
# Changes that Azure or Pulumi cannot make to existing resources. A preview does not know what
# exists, so matches are notes and block nothing. Each rule cites a document or the provider's
# source (paths without host: learn.microsoft.com/azure). The page on `isolationMode` contradicts
# itself about opening an isolated workspace; the rule assumes that it is impossible.
IMMUTABLE: tuple[ImmutableRule, ...] = (
    ImmutableRule(
        f"resources:ResourceGroup|{_ML}:Workspace|{_HOLDS}",
        "location|(resourceGroup|workspace|account|vault|registry)Name",
        "Pulumi replaces it and its content is lost; `guardrails.protect` prevents this",
        "create a second environment with another stack file",
        "pulumi/pulumi-azure-native: provider/pkg/gen/replacement.go and provider/diff.go",
    ),
    ImmutableRule(
        f"storage:(BlobContainer|FileShare)|keyvault:Key|{_HOLDS}",
        REMOVED,
        "`guardrails.protect` and `locks` keep it; without them its content is deleted with it",
        "copy it, set `locks: false` in an update before this, and `pulumi state unprotect`",
        "pulumi.com/docs/iac/concepts/resources/options/protect; lock-resources, Lock inheritance",
    ),
    ImmutableRule(
        "authorization:RoleAssignment|network:PrivateEndpoint",
        f"{REMOVED}|principalId|roleAssignmentName",
        "with `guardrails.locks` the lock on its resource keeps it",
        "set `locks: false` in an update before this",
        "azure-resource-manager/management/lock-resources, Considerations;"
        " hashicorp/terraform-provider-azurerm#17478 (ScopeLocked)",
    ),
    ImmutableRule(
        f"{_ML}:Workspace",
        "managedNetwork.isolationMode",
        "{path} stays {before} and does not become {after}",
        "create a second workspace with another stack file (a change from Disabled works after its"
        " clusters, instances and deployments are deleted)",
        "machine-learning/how-to-managed-network, Limitations, Migration of compute resources",
    ),
    ImmutableRule(
        f"{_ML}:Workspace",
        "hbiWorkspace|enableServiceSideCMKEncryption|encryption.*",
        "Azure rejects a change of {path}",
        "leave `platform:workspace` unchanged, or create a second workspace",
        "machine-learning/concept-customer-managed-keys, Limitations; concept-data-encryption",
    ),
    ImmutableRule(
        f"{_ML}:Compute",
        REMOVED,
        "Pulumi's provider deletes it without `underlyingResourceAction`, which Azure ML requires",
        "`az ml compute delete`, then `pulumi up --refresh` notices its absence",
        "rest/api/azureml/compute/delete; pulumi/pulumi-azure-native: provider/provider.go, Delete",
    ),
    ImmutableRule(
        f"{_ML}:Compute",
        r"tags\..*|properties\.properties\.(vmSize|vmPriority|subnet\.id|idleTimeBeforeShutdown"
        r"|personalComputeInstanceSettings\..*)",
        "its size, priority, subnet, person, idle time and tags cannot be changed",
        "`az ml compute delete` (also deletes its disk), then `pulumi up --refresh` recreates it",
        "hashicorp/terraform-provider-azurerm: r/machine_learning_compute_*; Azure/bicep#17617",
    ),
    ImmutableRule(
        "storage:StorageAccount",
        r"sku\.name",
        "Azure rejects the change to {after} without a conversion",
        "`az storage account migration start` first (LRS to GZRS: by GRS or ZRS)",
        "storage/common/redundancy-migration; rest/api/storagerp/storage-accounts/update, sku",
        when=f"{_NO_ZONES} → {_ZONES}|{_ZONES} → {_NO_ZONES}",
    ),
    ImmutableRule(
        "storage:StorageAccount",
        r"encryption\.services\.(queue|table)\.keyType",
        "the owner of the key for its queues and tables cannot be changed",
        "leave `customer_managed_key` unchanged, or create a second environment",
        "storage/common/account-encryption-key-create",
    ),
    ImmutableRule(
        "keyvault:Vault",
        r"properties\.softDeleteRetentionInDays",
        "Azure rejects a change of the days",
        "leave `soft_delete_days` unchanged",
        "key-vault/general/soft-delete-overview",
    ),
    ImmutableRule(
        "containerregistry:Registry",
        "zoneRedundancy",
        "it cannot be changed",
        "leave `zone_redundant` unchanged: in a region with zones, every registry uses them",
        "container-registry/zone-redundancy",
    ),
    ImmutableRule(
        "network:VirtualNetwork",
        r"addressSpace\..*|subnets\[.*\]\.addressPrefix",
        "Azure rejects a new range for a subnet in use",
        "leave `address_space` unchanged, or create a second environment",
        "virtual-network/virtual-network-manage-subnet, Change subnet settings",
    ),
    ImmutableRule(
        "network:PrivateEndpoint",
        r"privateLinkServiceConnections\[.*\]\.privateLinkServiceId",
        "Azure rejects a change of the target",
        "`az network private-endpoint delete`, then `pulumi up --refresh` recreates it",
        "Azure/bicep-registry-modules#1513",
    ),
    ImmutableRule(
        "compute:VirtualMachine",
        r"osProfile\.linuxConfiguration\.ssh\..*",
        "Azure rejects a change of `ssh_key`",
        "leave it unchanged, and `az vm user update --ssh-key-value` on the machine",
        "hashicorp/terraform-provider-azurerm: r/linux_virtual_machine, admin_ssh_key",
    ),
)


def changes(before: Capture | None, after: Capture) -> tuple[ResourceChange, ...]:
    """Return the changes between two runs, sorted by URN; all are added if `before` is None."""
    old = {resource.urn: resource for resource in before.provided} if before else {}
    new = {resource.urn: resource for resource in after.provided}
    replaced = [
        change
        for urn in sorted(old.keys() | new.keys())
        for change in _change(old.get(urn), new.get(urn), new)
    ]
    # Without resources the stack file was deleted: its outputs are not a change.
    if before and new and (outputs := differences(before.outputs, after.outputs)):
        replaced.append(ResourceChange("changed", "pulumi:outputs", "outputs", "", outputs))
    return tuple(replaced)


def differences(before: Any, after: Any) -> tuple[Property, ...]:
    """Return the nested values in which `before` and `after` differ, sorted by path."""
    old, new = dict(_walk(before, "")), dict(_walk(after, ""))
    return tuple(
        Property(path, old.get(path, ABSENT), new.get(path, ABSENT))
        for path in sorted(old.keys() | new.keys())
        if old.get(path, ABSENT) != new.get(path, ABSENT)
    )


def _change(
    before: Resource | None, after: Resource | None, remaining: Collection[str]
) -> Iterator[ResourceChange]:
    if after is None:
        assert before
        lost = tuple(Property(path, value, ABSENT) for path, value in _role_identity(before))
        yield ResourceChange("removed", before.kind, before.name, before.urn, lost)
    elif before is None:
        new_values = tuple(Property(path, ABSENT, value) for path, value in _role_identity(after))
        yield ResourceChange("added", after.kind, after.name, after.urn, new_values)
    else:
        differing = tuple(
            difference
            for difference in differences(_leaves(before), _leaves(after))
            if not _ignored(difference.path, after)
        )
        # Dependencies that were dropped although their resource still exists.
        unordered = sorted(({*before.dependencies} - {*after.dependencies}) & {*remaining})
        if unordered:
            names = ", ".join(urn.rpartition("::")[2] for urn in unordered)
            differing += (Property("(dependsOn)", names, ABSENT),)
        if differing:
            yield ResourceChange("changed", after.kind, after.name, after.urn, differing)


def _role_identity(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Yield principal, role and scope of a role assignment; nothing for other resources."""
    if resource.kind == "authorization:RoleAssignment":
        for path in ("principalId", "roleDefinitionId", "scope"):
            yield path, resource.inputs.get(path, ABSENT)


def _ignored(path: str, resource: Resource) -> bool:
    """Return whether the resource option `ignore_changes` covers the property at `path`."""
    inner = tuple(f"{ignored}{mark}" for ignored in resource.ignore_changes for mark in ".[")
    return path in resource.ignore_changes or path.startswith(inner)


def _leaves(resource: Resource) -> dict[str, Any]:
    options = {"protect": resource.protect, "ignoreChanges": list(resource.ignore_changes)}
    options |= {"provider": resource.provider} if resource.provider else {}
    options |= {"hooks": ", ".join(resource.hooks)} if resource.hooks else {}
    options |= resource.options
    leaves = dict(_walk(resource.inputs, ""))
    return {**leaves, **{f"({key})": str(value) for key, value in options.items()}}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested values; list items have names in paths if all are unique."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        names = [_item_name(item) for item in value]
        named = all(names) and len(set(names)) == len(names)
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{names[index] if named else index}]")
    elif path:
        yield path, value


def _item_name(item: Any) -> Any:
    return item.get("name") if isinstance(item, Mapping) else isinstance(item, str) and item


def immutable_changes(changes: Iterable[ResourceChange]) -> Iterator[str]:
    """Yield a note for each rule of IMMUTABLE that changes match, with the resources' names."""
    notes: dict[str, dict[str, None]] = {}
    for change in changes:
        for note in _notes(change):
            notes.setdefault(note, {})[change.name] = None
    yield from (f"{', '.join(names)}: {note}" for note, names in notes.items())


def _notes(change: ResourceChange) -> Iterator[str]:
    leaves = {
        "added": [],
        "removed": [(REMOVED, "", "")],
        "changed": [astuple(difference) for difference in change.properties],
    }[change.what]
    for rule in IMMUTABLE:
        for path, before, after in leaves if re.fullmatch(rule.kind, change.kind) else ():
            if re.fullmatch(rule.path, path) and re.fullmatch(rule.when, f"{before} → {after}"):
                outcome = rule.outcome.format(path=path, before=before, after=after)
                yield f"if it already exists, {outcome}: {rule.instead}"
