"""Changes that Azure or Pulumi makes to nothing that is there: a table, each row with its source.

A preview does not know whether anything is there, so that these are notes and refuse nothing. Only
what a document says or the provider's source stands here; what Azure makes in place needs no row.
Of opening an isolated workspace its page says once that it cannot be, and elsewhere how it is done:
what is shown is the cautious reading. learn.microsoft.com/azure is left out of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from infra.preview.changes import Change

REMOVED = "removed"  # In place of a property: the resource itself goes.


@dataclass(frozen=True)
class Row:
    """What becomes of a change, and what to do instead; `when` is a pattern of `before → after`."""

    kind: str
    path: str
    what: str
    instead: str
    source: str
    when: str = ".*"


_ML = "machinelearningservices"
_HOLDS = f"storage:StorageAccount|keyvault:Vault|(containerregistry|{_ML}):Registry"
_NO_ZONES, _ZONES = "Standard_(LRS|(RA)?GRS)", "Standard_(RA)?G?ZRS"
ROWS: tuple[Row, ...] = (
    Row(
        f"resources:ResourceGroup|{_ML}:Workspace|{_HOLDS}",
        "location|(resourceGroup|workspace|account|vault|registry)Name",
        "Pulumi makes it anew: refused with `guardrails.protect`, else what it holds is lost",
        "another stack file makes an environment beside it",
        "pulumi/pulumi-azure-native: provider/pkg/gen/replacement.go and provider/diff.go",
    ),
    Row(
        f"storage:(BlobContainer|FileShare)|keyvault:Key|{_HOLDS}",
        REMOVED,
        "`guardrails.protect` and `locks` keep it, and without them it goes with what it holds",
        "copy that, set `locks: false` in an update before this one, and `pulumi state unprotect`",
        "pulumi.com/docs/iac/concepts/resources/options/protect; lock-resources, Lock inheritance",
    ),
    Row(
        "authorization:RoleAssignment|network:PrivateEndpoint",
        f"{REMOVED}|principalId|roleAssignmentName",
        "with `guardrails.locks` the lock on what it is for keeps it",
        "set `locks: false` in an update before this one",
        "azure-resource-manager/management/lock-resources, Considerations;"
        " hashicorp/terraform-provider-azurerm#17478 (ScopeLocked)",
    ),
    Row(
        f"{_ML}:Workspace",
        "managedNetwork.isolationMode",
        "{path} stays {before}, it does not become {after}",
        "another stack file makes a workspace beside it (from Disabled it does, once its clusters,"
        " instances and deployments are deleted)",
        "machine-learning/how-to-managed-network, Limitations, Migration of compute resources",
    ),
    Row(
        f"{_ML}:Compute",
        REMOVED,
        "Pulumi's provider deletes it without `underlyingResourceAction`, which Azure ML requires",
        "`az ml compute delete`, and `pulumi up --refresh` sees that it is gone",
        "rest/api/azureml/compute/delete; pulumi/pulumi-azure-native: provider/provider.go, Delete",
    ),
    Row(
        f"{_ML}:Compute",
        r"properties\.properties\.(vmSize|vmPriority|subnet\.id|idleTimeBeforeShutdown"
        r"|personalComputeInstanceSettings\..*)",
        "it keeps the size, priority, subnet, person and idle time that it was made with",
        "`az ml compute delete` (its disk goes too), and `pulumi up --refresh` makes it anew",
        "hashicorp/terraform-provider-azurerm: r/machine_learning_compute_*; Azure/bicep#17617",
    ),
    Row(
        "storage:StorageAccount",
        r"sku\.name",
        "it comes to {after} by a conversion, and Azure refuses that as a setting",
        "`az storage account migration start` first (LRS to GZRS: by GRS or ZRS)",
        "storage/common/redundancy-migration; rest/api/storagerp/storage-accounts/update, sku",
        when=f"{_NO_ZONES} → {_ZONES}|{_ZONES} → {_NO_ZONES}",
    ),
    Row(
        "storage:StorageAccount",
        r"encryption\.services\.(queue|table)\.keyType",
        "whose key encrypts its queues and tables cannot be changed",
        "leave `customer_managed_key` as it was; another stack file makes other accounts",
        "storage/common/account-encryption-key-create",
    ),
    Row(
        "keyvault:Vault",
        r"properties\.softDeleteRetentionInDays",
        "Azure refuses other days than it was made with",
        "leave `soft_delete_days` as it was",
        "key-vault/general/soft-delete-overview",
    ),
    Row(
        "containerregistry:Registry",
        "zoneRedundancy",
        "it stays as it was made",
        "leave `zone_redundant` as it was: where a region has zones, every registry is in them",
        "container-registry/zone-redundancy",
    ),
    Row(
        "network:VirtualNetwork",
        r"addressSpace\..*|subnets\[.*\]\.addressPrefix",
        "Azure refuses another range for a subnet that has anything in it, such as an endpoint",
        "leave `address_space` as it was; another stack file makes a network beside it",
        "virtual-network/virtual-network-manage-subnet, Change subnet settings",
    ),
    Row(
        "network:PrivateEndpoint",
        r"privateLinkServiceConnections\[.*\]\.privateLinkServiceId",
        "Azure refuses to lead it elsewhere",
        "`az network private-endpoint delete`, and `pulumi up --refresh` makes it anew",
        "Azure/bicep-registry-modules#1513",
    ),
    Row(
        "compute:VirtualMachine",
        r"osProfile\.linuxConfiguration\.ssh\..*",
        "Azure refuses another `ssh_key`",
        "leave it as it was, and `az vm user update --ssh-key-value` on the machine",
        "hashicorp/terraform-provider-azurerm: r/linux_virtual_machine, admin_ssh_key",
    ),
)


def lasting(changes: Iterable[Change]) -> Iterator[str]:
    """A line for each row and what it says, with the resources that meet it."""
    told: dict[str, dict[str, None]] = {}
    for change in changes:
        for text in _said(change):
            told.setdefault(text, {})[change.name] = None
    yield from (f"{', '.join(names)}: {text}" for text, names in told.items())


def _said(change: Change) -> Iterator[str]:
    gone = change.what == "removed"
    leaves = [(REMOVED, "", "")] if gone else [astuple(one) for one in change.properties]
    for row in ROWS:
        for path, before, after in leaves if re.fullmatch(row.kind, change.kind) else ():
            if re.fullmatch(row.path, path) and re.fullmatch(row.when, f"{before} → {after}"):
                what = row.what.format(path=path, before=before, after=after)
                yield f"if there already, {what}: {row.instead}"
