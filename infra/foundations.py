"""What an environment stands on: the parts of its settings besides what runs in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.fields import Form, field
from infra.forms import CIDR, NAME, VM_SIZE, resource


@dataclass(frozen=True, kw_only=True)
class Network:
    """The virtual network, and who isolates the compute: Azure ML or our own subnet."""

    isolation: Literal["managed", "own"] = field(
        "`managed`: Azure ML's own managed network; `own`: clusters in a subnet of ours, and"
        " deployments with `egress_public_network_access: disabled`; a workspace keeps what it was"
        " made with",
        "managed",
    )
    address_space: str = field(
        "range of the virtual network, /16 to /24; a network with anything in it keeps it",
        "10.60.0.0/16",
        form=CIDR,
    )
    service_endpoints: bool = field(
        "reach storage and vault by service endpoints too: their public addresses answer to the"
        " nodes' subnet, for which storage-public-access and vault-public-access want waivers",
        False,
    )
    firewall: Literal["Basic", "Standard"] = field(
        "SKU of the firewall that fully qualified names bring", "Standard"
    )
    allowed_hosts: tuple[str, ...] = field(
        "hosts that compute may reach; the first one brings a firewall and its cost",
        (),
        form=Form(
            r"(\*\.)?([a-z0-9]+(-+[a-z0-9]+)*\.)+[a-z]{2,}",
            "a host name such as pypi.org, or *.pypi.org",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The workspace's storage account and the data lake."""

    redundancy: Literal["LRS", "ZRS", "GRS", "GZRS", "RAGRS", "RAGZRS"] = field(
        "how many copies, and where; accounts come into zones, and out of them, by a conversion"
        " (`az storage account migration start`), which goes before the change here",
        "ZRS",
    )
    containers: tuple[str, ...] = field(
        "file systems of the lake, each a datastore of the workspace",
        ("raw", "curated"),
        form=Form(
            r"(?=.{3,30}$)[a-z0-9](-?[a-z0-9])+",
            "3 to 30 lower-case letters, digits and single hyphens",
        ),
        low=1,
        high=20,
    )
    datastores: Literal["identity", "sas"] = field(
        "how jobs reach the lake: by identity, or by a short SAS of a path of its one container,"
        " which nobody renews by itself: `infra sas ENV raw/2026/ --hours 8 | sed 's/[^?]*//' |"
        " pulumi config set --secret lake_sas`, then `pulumi up`",
        "identity",
    )
    sas_hours: int = field("longest life of a SAS, in hours", 8, low=1, high=168)
    soft_delete_days: int = field("days in which a delete can be undone", 14, low=7, high=365)
    cool_after_days: int = field("days until a blob moves to the cool tier", 30, low=1, high=3650)
    delete_after_days: int = field(
        "days until a blob of the first container is deleted; 0 means never", 0, low=0, high=36500
    )
    stored_gb: int = field("GB that are stored, for the cost alone", 100, low=0, high=10**7)
    customer_managed_key: bool = field(
        "encrypt with a key of our own vault; decided before the accounts are made. Where the first"
        " update ends with KeyVaultAuthenticationFailure, run it again: the vault knows the right"
        " to the key minutes after it was given",
        False,
    )
    nfs_share_gib: int = field(
        "size of an NFS share; 0 means none, else 100 or more. A job mounts it by itself, with"
        " nfs-common in its image: `mount -t nfs -o vers=4,minorversion=1,sec=sys"
        " ACCOUNT.file.core.windows.net:/ACCOUNT/shared DIR`",
        0,
        high=102400,
    )


@dataclass(frozen=True, kw_only=True)
class Vault:
    """The key vault."""

    soft_delete_days: int = field(
        "days in which a secret can be recovered; a vault keeps what it was made with",
        90,
        low=7,
        high=90,
    )


@dataclass(frozen=True, kw_only=True)
class Images:
    """The container registry, and who builds custom images where it is private.

    A private registry takes no builds of its own (its tasks run on public machines), so one node
    of the workspace builds them: learn.microsoft.com/azure/machine-learning/how-to-managed-network,
    "Configure image builds". An agent pool in the network would be the other way; it is a preview
    in few regions, and paid for while it stands.
    """

    zone_redundant: bool = field(
        "spread over the zones of the region; a registry keeps what it was made with", True
    )
    keep_untagged_days: int = field("days until an untagged image is deleted", 30, low=1, high=365)
    builder_size: str = field(
        "size of the node that builds images where the registry is private",
        "Standard_D4ds_v4",
        form=VM_SIZE,
    )
    builds: int = field("images that a typical month builds, for its cost", 10, low=0, high=10000)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Logs, metrics and alerts."""

    retention_days: int = field("days that logs are kept", 90, low=30, high=730)
    daily_gb: int = field("most that is taken in a day, in GB", 5, low=1, high=1000)


@dataclass(frozen=True, kw_only=True)
class AssetRegistry:
    """The Azure ML registry through which environments share models and environments.

    Azure makes a storage account and a container registry for it, in a group of its own,
    `azureml-rg-NAME_…`: their ids are known once it is there. Where it is private, a private
    endpoint of the registry leads to neither (learn.microsoft.com/azure/machine-learning/
    how-to-registry-network-isolation, "Use assets from registry in workspace").
    """

    mode: Literal["create", "use", "none"] = field(
        "exactly one environment creates it, and is deployed first, the others use it; what a"
        " private environment trains goes there from files, in its network: Azure shares nothing"
        " out of storage without public addresses",
        "none",
    )
    name: str = field("its name, the same in every environment", "", form=NAME)
    resource_group: str = field(
        "the group that it is in, where it is used: in the same subscription and region",
        "",
        form=Form(r"[\w().-]{1,89}[\w()-]", "the name of a resource group"),
    )
    storage: str = field(
        "id of the storage account that Azure made for it: jobs reach its models by it",
        "",
        form=resource("Microsoft.Storage/storageAccounts"),
    )
    images: str = field(
        "id of the container registry that Azure made for it: jobs reach its images by it",
        "",
        form=resource("Microsoft.ContainerRegistry/registries"),
    )


@dataclass(frozen=True, kw_only=True)
class Guardrails:
    """The budget, its recipients, and locks."""

    monthly_budget: int = field("budget of a month, in the currency of billing", low=1, high=10**7)
    budget_from: str = field(
        "month in which the budget begins: Azure takes the one in which it is made, or one of the"
        " twelve after it",
        form=Form(r"20\d\d-(0[1-9]|1[0-2])", "a month such as 2026-12"),
    )
    locks: bool = field(
        "lock storage, vault and registry against deletion; false in an update before one that"
        " takes rights or containers away (a cluster goes, `lake` or `person` changes), since"
        " what is on a locked thing, and in it, cannot be taken away either",
        True,
    )
    protect: bool = field(
        "make Pulumi refuse to replace or delete what holds data; `pulumi state unprotect` lets"
        " one thing go",
        True,
    )
