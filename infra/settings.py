"""The settings of one environment: a stack file as one frozen value, checked once.

A stack file says only what differs from the defaults below. Nothing asks which environment it is:
what differs is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.fields import Form, field
from infra.sizes import PRESETS, SIZES, Preset, Size
from ml.specs.problems import Problem, Refused

HERE = Path(__file__).parent
EMAIL = Form(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an e-mail address")
GUID = Form(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "a GUID such as 6f8d2c1e-0000-4000-8000-000000000000",
)
NAME = Form(
    r"(?=.{3,16}$)[a-z](-?[a-z0-9])+",
    "3 to 16 lower-case letters, digits and single hyphens, a letter first",
)
CIDR = Form(r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}", "a range such as 10.60.0.0/16")


@dataclass(frozen=True, kw_only=True)
class Network:
    """The virtual network, and who isolates the compute: Azure ML or our own subnet."""

    isolation: Literal["managed", "own"] = field(
        "`managed`: Azure ML's own managed network; `own`: clusters in a subnet of ours", "managed"
    )
    address_space: str = field(
        "range of the virtual network, /16 to /24", "10.60.0.0/16", form=CIDR
    )
    service_endpoints: bool = field("reach storage and vault by service endpoints too", False)
    firewall: Literal["Basic", "Standard"] = field(
        "SKU of the firewall that fully qualified names bring", "Standard"
    )
    allowed_hosts: tuple[str, ...] = field(
        "hosts that compute may reach; the first one brings a firewall and its cost",
        (),
        form=Form(
            r"(\*\.)?([a-z0-9-]+\.)+[a-z]{2,}", "a host name such as pypi.org, or *.pypi.org"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The workspace's storage account and the data lake."""

    redundancy: Literal["LRS", "ZRS", "GRS", "GZRS", "RAGRS", "RAGZRS"] = field(
        "how many copies, and where", "ZRS"
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
        "how jobs reach the lake: by identity, or by a short SAS that `infra sas` issues",
        "identity",
    )
    sas_hours: int = field("longest life of a SAS, in hours", 8, low=1, high=168)
    soft_delete_days: int = field("days in which a delete can be undone", 14, low=7, high=365)
    cool_after_days: int = field("days until a blob moves to the cool tier", 30, low=1, high=3650)
    delete_after_days: int = field(
        "days until a blob of the first container is deleted; 0 means never", 0, low=0, high=36500
    )
    customer_managed_key: bool = field("encrypt with a key of our own vault", False)
    nfs_share_gib: int = field(
        "size of an NFS share for the workspace; 0 means none, else 100 or more", 0, high=102400
    )


@dataclass(frozen=True, kw_only=True)
class Vault:
    """The key vault."""

    soft_delete_days: int = field("days in which a secret can be recovered", 90, low=7, high=90)


@dataclass(frozen=True, kw_only=True)
class Images:
    """The container registry."""

    zone_redundant: bool = field("spread over the zones of the region", True)
    keep_untagged_days: int = field("days until an untagged image is deleted", 30, low=1, high=365)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Logs, metrics and alerts."""

    retention_days: int = field("days that logs are kept", 90, low=30, high=730)
    daily_gb: int = field("most that is taken in a day, in GB", 5, low=1, high=1000)


@dataclass(frozen=True, kw_only=True)
class AssetRegistry:
    """The Azure ML registry through which environments share models and environments."""

    mode: Literal["create", "use", "none"] = field(
        "exactly one environment creates it, the others use it", "none"
    )
    name: str = field("its name, the same in every environment", "", form=NAME)
    resource_group: str = field(
        "the group that it is in, where it is used",
        "",
        form=Form(r"[\w().-]{1,89}[\w()-]", "the name of a resource group"),
    )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a typical month is taken to be, for the estimate of the cost alone."""

    jobs: int = field("jobs a month", 20, low=0, high=100000)
    hours: int = field("hours a job", 2, low=0, high=720)
    nodes: int = field("nodes a job", 1, low=0, high=1000)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A compute cluster: a preset or a size, from `min_nodes` to `max_nodes`."""

    name: str = field("its name in the workspace", form=NAME)
    preset: Preset | None = field("a size by what it is for; or `size`", None)
    size: str | None = field(
        "a size by its name; or `preset`",
        None,
        form=Form(r"Standard_\w+", "a VM size such as Standard_E4ds_v4"),
    )
    priority: Literal["dedicated", "spot"] | None = field(
        "by default CPU is dedicated and GPU is spot", None
    )
    min_nodes: int = field("nodes that stay when there is no job", 0, low=0, high=100)
    max_nodes: int = field("most nodes", 4, low=1, high=1000)
    idle_minutes: int = field("minutes until an idle node goes", 15, low=1, high=1440)
    lake: Literal["read", "write"] = field("what its identity may do with the data lake", "write")
    usage: Usage = field("a typical month", Usage)

    @property
    def vm_size(self) -> str:
        """The size that the cluster has, by preset or by name."""
        return PRESETS[self.preset] if self.preset else str(self.size)

    @property
    def hardware(self) -> Size:
        """What is in a node."""
        return SIZES[self.vm_size]

    @property
    def spot(self) -> bool:
        """Whether nodes may be taken away: as stated, else for GPUs."""
        return self.priority == "spot" if self.priority else self.hardware.gpus > 0


@dataclass(frozen=True, kw_only=True)
class Workstation:
    """A machine for one person: a compute instance of the workspace, or a Linux VM."""

    name: str = field("its name", form=NAME)
    kind: Literal["compute-instance", "data-science-vm"] = field(
        "an Azure ML compute instance, or a Linux data-science VM", "compute-instance"
    )
    size: str = field(
        "a VM size",
        "Standard_E4ds_v4",
        form=Form(r"Standard_\w+", "a VM size such as Standard_E4ds_v4"),
    )
    person: str = field("object id of who it is for", form=GUID)
    ssh_key: str = field(
        "public key of a VM's administrator",
        "",
        form=Form(r"ssh-(rsa|ed25519) \S+.*", "a public key: ssh-ed25519 AAAA…"),
    )
    idle_minutes: int = field("minutes until an idle instance stops", 60, low=15, high=4320)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An online endpoint, which may be there before its first model."""

    name: str = field(
        "its name in the region",
        form=Form(
            r"(?=.{3,32}$)[a-z](-?[a-z0-9])+",
            "3 to 32 lower-case letters, digits and single hyphens, a letter first",
        ),
    )
    alert_errors: int = field("failed requests a minute that raise an alert", 10, low=1, high=10**6)


@dataclass(frozen=True, kw_only=True)
class Guardrails:
    """The budget, its recipients, and locks."""

    monthly_budget: int = field("budget of a month, in the currency of billing", low=1, high=10**7)
    budget_from: str = field(
        "month in which the budget begins: Azure takes the one in which it is made, or a later",
        form=Form(r"20\d\d-(0[1-9]|1[0-2])", "a month such as 2026-12"),
    )
    locks: bool = field("lock storage, vault and registry against deletion", True)
    protect: bool = field("make Pulumi refuse to replace or delete what holds data", True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One environment, checked. `environment` is the name of its stack."""

    environment: str = field("the stack", internal=True)
    location: str = field(
        "region",
        key="azure-native:location",
        form=Form(r"[a-z]+[a-z0-9]*", "a region such as westeurope"),
    )
    subscription: str = field("subscription", key="azure-native:subscriptionId", form=GUID)
    tenant: str = field("tenant", key="azure-native:tenantId", form=GUID)
    name: str = field(
        "short name of the platform, a part of every name",
        form=Form(r"[a-z][a-z0-9]{1,7}", "2 to 8 lower-case letters and digits, a letter first"),
    )
    repository: str = field(
        "GitHub repository whose workflows may sign in",
        form=Form(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+", "owner/name"),
    )
    owner: str = field("who is told of alerts and budgets", form=EMAIL)
    cost_center: str = field("tag for billing", form=Form(r"[\w .-]{1,64}", "a short text"))
    exposure: Literal["private", "starter"] = field(
        "`private`: reached through private endpoints alone; `starter`: public addresses, still"
        " without keys",
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
    def private(self) -> bool:
        """Whether everything is reached through private endpoints alone."""
        return self.exposure == "private"

    @property
    def sizes(self) -> frozenset[str]:
        """Every VM size that the environment may pay for."""
        return frozenset(
            [*(one.vm_size for one in self.clusters), *(one.size for one in self.workstations)]
        )

    @property
    def image_builder(self) -> str | None:
        """The cluster that builds images: the first one without a GPU."""
        return next((one.name for one in self.clusters if not one.hardware.gpus), None)

    def machines(
        self, kind: Literal["compute-instance", "data-science-vm"]
    ) -> tuple[Workstation, ...]:
        """The workstations of one kind."""
        return tuple(one for one in self.workstations if one.kind == kind)


def stacks(folder: Path = HERE) -> tuple[str, ...]:
    """The environments that have a stack file, by name."""
    files = folder.glob("Pulumi.*.yaml")
    return tuple(sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files))


def load(stack: str, folder: Path = HERE) -> Settings:
    """The settings of a stack; Refused with every problem of its file, each with line and key."""
    from infra import agreement, reading

    if stack not in stacks(folder):
        known = ", ".join(stacks(folder)) or "none"
        hint = f"write {folder.name}/Pulumi.{stack}.yaml beside the others"
        raise Refused(Problem("unknown-stack", f"no stack `{stack}`", f"one of: {known}", hint))
    document = reading.document(folder / f"Pulumi.{stack}.yaml")
    settings = reading.settings(Settings, document, environment=stack)
    problems = tuple(agreement.problems(settings, document))
    if problems:
        raise Refused(*problems)
    return settings
