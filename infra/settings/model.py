"""The settings of one environment: a stack file as one frozen value.

A stack file states only what differs from the defaults here. No code branches on the name of an
environment: every difference is a setting. A field is a type, a sentence for people, and the rule
that `reader` checks it by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from infra.catalog.sizes import PRESETS, SIZES, Preset, Size
from infra.settings.reader import Form, field

# The cluster that builds images where the container registry is private.
BUILDER = "image-builder"
# Default of a compute instance.
IDLE_MINUTES = 60

# 254 is the longest address (RFC 5321); a tag holds 256 characters.
EMAIL = Form(r"(?=.{5,254}$)[^@\s<>,;]+@[^@\s<>,;]+\.[^@\s<>,;]+", "one e-mail address")
GUID = Form(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "a GUID such as 6f8d2c1e-0000-4000-8000-000000000000",
)
NAME = Form(
    r"(?=.{3,16}$)[a-z](-?[a-z0-9])+",
    "3 to 16 lower-case letters, digits and single hyphens, a letter first",
)
# The part after the last hyphen needs a letter: how-to-create-attach-compute-cluster.
COMPUTE = Form(
    r"(?=.{3,16}$)(?!.*-\d+$)[a-z](-?[a-z0-9])+",
    "3 to 16 lower-case letters, digits and single hyphens, a letter first and one after the last"
    " hyphen",
)
CIDR = Form(r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}", "a range such as 10.60.0.0/16")
# `checks` knows which sizes exist.
VM_SIZE = Form(r"\w+", "a VM size such as Standard_E4ds_v4")


def _resource_id(kind: str) -> Form:
    group = r"/subscriptions/[0-9a-fA-F-]{36}/resourceGroups/[\w().-]+"
    return Form(
        rf"{group}/providers/{kind.replace('.', '[.]')}/\w+",
        f"an id such as /subscriptions/…/resourceGroups/…/providers/{kind}/…",
    )


@dataclass(frozen=True, kw_only=True)
class Network:
    """The virtual network, and whether Azure ML or a subnet of ours isolates compute."""

    isolation: Literal["managed", "own"] = field(
        "`managed`: Azure ML's managed network; `own`: clusters in our own subnet, and deployments"
        " with `egress_public_network_access: disabled`; cannot be changed for an existing"
        " workspace",
        "managed",
    )
    address_space: str = field(
        "range of the virtual network, /16 to /24; cannot be changed once the network is in use",
        "10.60.0.0/16",
        form=CIDR,
    )
    service_endpoints: bool = field(
        "also reach storage and vault by service endpoints: their public addresses then answer to"
        " the nodes' subnet, and storage-public-access and vault-public-access need waivers",
        False,
    )
    firewall: Literal["Basic", "Standard"] = field(
        "SKU of the firewall that rules with host names need", "Standard"
    )
    allowed_hosts: tuple[str, ...] = field(
        "hosts that compute may reach; the first one adds a firewall and its cost",
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
        "how many copies, and where; to move an existing account into zones or out of them, convert"
        " it (`az storage account migration start`) before the change here",
        "ZRS",
    )
    containers: tuple[str, ...] = field(
        "file systems of the lake; each is a datastore of the workspace",
        ("raw", "curated"),
        form=Form(
            r"(?=.{3,30}$)[a-z0-9](-?[a-z0-9])+",
            "3 to 30 lower-case letters, digits and single hyphens",
        ),
        low=1,
        high=20,
    )
    datastores: Literal["identity", "sas"] = field(
        "how jobs reach the lake: by identity, or by a short-lived SAS for a path of its one"
        " container. Nothing renews the SAS: `infra sas ENV raw/2026/ --hours 8 | sed 's/[^?]*//' |"
        " pulumi config set --secret lake_sas`, then `pulumi up`",
        "identity",
    )
    sas_hours: int = field("longest lifetime of a SAS, in hours", 8, low=1, high=168)
    soft_delete_days: int = field("days in which a deletion can be undone", 14, low=7, high=365)
    cool_after_days: int = field("days until a blob moves to the cool tier", 30, low=1, high=3650)
    delete_after_days: int = field(
        "days until a blob of the first container is deleted; 0 means never", 0, low=0, high=36500
    )
    stored_gb: int = field("GB stored, for the cost estimate only", 100, low=0, high=10**7)
    customer_managed_key: bool = field(
        "encrypt with a key from our own vault; cannot be changed for existing accounts. If the"
        " first update ends with KeyVaultAuthenticationFailure, run it again: a new role takes"
        " effect in the vault after some minutes",
        False,
    )
    nfs_share_gib: int = field(
        "size of an NFS share; 0 means none, otherwise 100 or more. A job mounts it itself, with"
        " nfs-common in its image: `mount -t nfs -o vers=4,minorversion=1,sec=sys"
        " ACCOUNT.file.core.windows.net:/ACCOUNT/shared DIR`",
        0,
        high=102400,
    )


@dataclass(frozen=True, kw_only=True)
class Vault:
    """The key vault."""

    soft_delete_days: int = field(
        "days in which a deleted secret can be recovered; cannot be changed for an existing vault",
        90,
        low=7,
        high=90,
    )


@dataclass(frozen=True, kw_only=True)
class Images:
    """The container registry, and the node that builds custom images where it is private.

    A private registry cannot build images itself: its tasks run on public machines. One node of
    the workspace builds them (learn.microsoft.com/azure/machine-learning/how-to-managed-network,
    "Configure image builds"). The alternative is an agent pool in the network: a preview in few
    regions, and billed while idle.
    """

    zone_redundant: bool = field(
        "spread over the zones of the region; cannot be changed for an existing registry", True
    )
    keep_untagged_days: int = field("days until an untagged image is deleted", 30, low=1, high=365)
    builder_size: str = field(
        "size of the node that builds images where the registry is private",
        "Standard_D4ds_v4",
        form=VM_SIZE,
    )
    builds: int = field("images built in a typical month, for its cost", 10, low=0, high=10000)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Logs, metrics and alerts."""

    retention_days: int = field("days for which logs are kept", 90, low=30, high=730)
    daily_gb: int = field("daily cap on logs, in GB", 5, low=1, high=1000)


@dataclass(frozen=True, kw_only=True)
class AssetRegistry:
    """The Azure ML registry through which environments share models and environments.

    Azure creates a storage account and a container registry for it, in the group
    `azureml-rg-NAME_…`; their ids are known only after that. A private endpoint to a private asset
    registry reaches neither of them (learn.microsoft.com/azure/machine-learning/
    how-to-registry-network-isolation, "Use assets from registry in workspace").
    """

    mode: Literal["create", "use", "none"] = field(
        "exactly one environment creates it and is deployed first, the others use it; models of a"
        " private environment are uploaded to it as files, from inside its network: Azure cannot"
        " share models from storage without public addresses",
        "none",
    )
    name: str = field("its name, the same in every environment", "", form=NAME)
    resource_group: str = field(
        "with `mode: use`: its resource group, in the same subscription and region",
        "",
        form=Form(r"[\w().-]{1,89}[\w()-]", "the name of a resource group"),
    )
    storage: str = field(
        "id of the storage account that Azure created for it: jobs read its models there",
        "",
        form=_resource_id("Microsoft.Storage/storageAccounts"),
    )
    images: str = field(
        "id of the container registry that Azure created for it: jobs pull its images there",
        "",
        form=_resource_id("Microsoft.ContainerRegistry/registries"),
    )


@dataclass(frozen=True, kw_only=True)
class Guardrails:
    """The budget, its recipients, and locks."""

    monthly_budget: int = field("monthly budget, in the billing currency", low=1, high=10**7)
    budget_from: str = field(
        "first month of the budget: Azure accepts the month in which it is created, or one of the"
        " twelve after it",
        form=Form(r"20\d\d-(0[1-9]|1[0-2])", "a month such as 2026-12"),
    )
    locks: bool = field(
        "lock storage, vault and registry against deletion; an update that removes roles or"
        " containers (removes a cluster, changes `lake` or `person`) needs an update with false"
        " before it, because a lock also protects roles on a resource and what is inside it",
        True,
    )
    protect: bool = field(
        "Pulumi refuses to replace or delete resources that hold data; `pulumi state unprotect`"
        " releases one",
        True,
    )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A typical month, for the cost estimate only."""

    jobs: int = field("jobs a month", 20, low=0, high=100000)
    hours: int = field("hours a job", 2, low=0, high=720)
    nodes: int = field("nodes a job", 1, low=0, high=1000)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A compute cluster: a preset or a size, from `min_nodes` to `max_nodes`."""

    name: str = field("its name in the workspace", form=COMPUTE)
    preset: Preset | None = field("a size by its purpose; or `size`", None)
    size: str | None = field(
        "a size by its name; or `preset`; cannot be changed for an existing cluster",
        None,
        form=VM_SIZE,
    )
    priority: Literal["dedicated", "spot"] | None = field(
        "by default CPU is dedicated and GPU is spot, except H100, which has no spot nodes", None
    )
    min_nodes: int = field("nodes that run even without jobs", 0, low=0, high=100)
    max_nodes: int = field("most nodes", 4, low=1, high=1000)
    idle_minutes: int = field("minutes until an idle node is released", 15, low=1, high=1440)
    lake: Literal["read", "write"] = field("access of its identity to the data lake", "write")
    usage: Usage = field("a typical month", Usage)

    @property
    def vm_size(self) -> str:
        """The VM size, by preset or by name."""
        return PRESETS[self.preset] if self.preset else str(self.size)

    @property
    def hardware(self) -> Size:
        """The hardware of a node."""
        return SIZES[self.vm_size]

    @property
    def spot(self) -> bool:
        """Whether nodes are low-priority: as stated, else for GPUs that Azure ML offers so."""
        by_default = self.hardware.gpus > 0 and self.hardware.low_priority
        return self.priority == "spot" if self.priority else by_default


@dataclass(frozen=True, kw_only=True)
class Workstation:
    """A machine for one person: a compute instance of the workspace, or a Linux VM."""

    name: str = field("its name", form=NAME)
    kind: Literal["compute-instance", "data-science-vm"] = field(
        "an Azure ML compute instance, which reaches the same hosts as jobs (Git needs its host in"
        " `allowed_hosts`; our own network only lets it reach Azure), or a Linux data-science VM",
        "compute-instance",
    )
    size: str = field("a VM size", "Standard_E4ds_v4", form=VM_SIZE)
    person: str = field("object id of its user", form=GUID)
    ssh_key: str = field(
        "public key of a VM's administrator; cannot be changed for an existing VM",
        "",
        form=Form(r"ssh-(rsa|ed25519) \S+.*", "a public key: ssh-ed25519 AAAA…"),
    )
    idle_minutes: int = field(
        "minutes until an idle instance stops", IDLE_MINUTES, low=15, high=4320
    )


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An online endpoint; it may exist before its first model."""

    name: str = field(
        "its name in the region",
        form=Form(
            r"(?=.{3,32}$)[a-z](-?[a-z0-9])+",
            "3 to 32 lower-case letters, digits and single hyphens, a letter first",
        ),
    )
    alert_errors: int = field("failed requests a minute that raise an alert", 10, low=1, high=10**6)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One environment; `environment` is the name of its stack."""

    environment: str = field("the stack", internal=True)
    location: str = field(
        "as `az account list-locations` names it",
        key="azure-native:location",
        form=Form(r"[a-z]+[a-z0-9]*", "a region such as westeurope"),
    )
    subscription: str = field(
        "`az account list` names it", key="azure-native:subscriptionId", form=GUID
    )
    tenant: str = field("`az account list` names it", key="azure-native:tenantId", form=GUID)
    name: str = field(
        "short name of the platform, a part of every name",
        form=Form(r"[a-z][a-z0-9]{1,7}", "2 to 8 lower-case letters and digits, a letter first"),
    )
    repository: str = field(
        "GitHub repository whose workflows may sign in, with its ids where its tokens contain them"
        " (`infra bootstrap` tells)",
        form=Form(
            r"[A-Za-z0-9][A-Za-z0-9-]*(@\d+/(?=.*@\d+$)|/(?!.*@))"
            r"(?!\.{1,2}(@|$))(?!.*\.git(@|$))[A-Za-z0-9._-]+(@\d+)?",
            "owner/name or owner@id/name@id, as GitHub writes it and without .git",
        ),
    )
    owner: str = field("recipient of alerts and budget notices", form=EMAIL)
    cost_center: str = field(
        "tag for billing",
        form=Form(
            r"[\w .-]{1,64}", "1 to 64 letters (A to Z, a to z), digits, spaces, dots, - and _"
        ),
    )
    exposure: Literal["private", "starter"] = field(
        "`private`: reachable only through private endpoints; `starter`: public addresses, also"
        " without keys; cannot be changed for an existing workspace",
        "private",
    )
    network: Network = field("virtual network", Network)
    storage: Storage = field("storage accounts", Storage)
    vault: Vault = field("key vault", Vault)
    images: Images = field("container registry", Images)
    monitoring: Monitoring = field("logs and alerts", Monitoring)
    asset_registry: AssetRegistry = field("shared registry", AssetRegistry)
    clusters: tuple[Cluster, ...] = field("compute clusters", (), high=200)
    workstations: tuple[Workstation, ...] = field("machines for people", (), high=100)
    endpoints: tuple[Endpoint, ...] = field("online endpoints", (), high=100)
    guardrails: Guardrails = field("budget and locks")

    @property
    def github(self) -> str:
        """The repository without ids, as GitHub's own commands take it."""
        return re.sub(r"@\d+", "", self.repository)

    @property
    def private(self) -> bool:
        """Whether everything is reachable only through private endpoints."""
        return self.exposure == "private"

    @property
    def needs_nat(self) -> bool:
        """Whether machines run in our own network and need a NAT gateway to get out."""
        own = self.network.isolation == "own" or bool(self.machines("data-science-vm"))
        return self.private and own

    @property
    def builder(self) -> Cluster | None:
        """The one-node cluster that builds images where the registry is private."""
        if not self.private:
            return None
        usage = Usage(jobs=self.images.builds, hours=1, nodes=1)
        size = self.images.builder_size
        return Cluster(name=BUILDER, size=size, priority="dedicated", max_nodes=1, usage=usage)

    @property
    def computes(self) -> tuple[Cluster, ...]:
        """Every cluster of the workspace: those of the stack file, and the image builder."""
        return (*self.clusters, *([self.builder] if self.builder else []))

    @property
    def sizes(self) -> frozenset[str]:
        """Every VM size that the environment may pay for."""
        clusters = [cluster.vm_size for cluster in self.computes]
        return frozenset([*clusters, *(machine.size for machine in self.workstations)])

    def machines(
        self, kind: Literal["compute-instance", "data-science-vm"]
    ) -> tuple[Workstation, ...]:
        """The workstations of one kind."""
        return tuple(machine for machine in self.workstations if machine.kind == kind)
