"""The settings of one environment: a stack file as one frozen value.

A stack file states only what differs from the defaults here. No code branches on the name of an
environment: every difference is a setting. The text below a field is its description in errors and
in editors.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from infra.settings.azure import PRESETS, SIZES, Names, Preset, Size
from ml.core.settings import CLOSED, invalid


@dataclass(frozen=True)
class Form:
    """The format of a string: a regular expression for all of it, and its description."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _check(self, text: str) -> str:
        if self._fits(text):
            return text
        lower = text.strip().lower()
        similar = [re.sub(r"[\s_]+", "-", lower), re.sub(r"\s+", "", lower)]
        meant = next((candidate for candidate in similar if self._fits(candidate)), None)
        raise invalid(self.words, f"did you mean `{meant}`?" if meant else "")

    def _fits(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


CONFIG = ConfigDict(**CLOSED, use_attribute_docstrings=True)
# The cluster that builds images where the container registry is private.
BUILDER = "image-builder"
# Default idle time of a compute instance.
IDLE_MINUTES = 60
# The container of the feature store's offline store, and its datastore in the workspace.
FEATURES = "features"

# 254 is the longest address (RFC 5321); a tag holds 256 characters.
EMAIL = Form(r"(?=.{5,254}$)[^@\s<>,;]+@[^@\s<>,;]+\.[^@\s<>,;]+", "one e-mail address")
GUID = Form(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "a GUID such as 6f8d2c1e-0000-4000-8000-000000000000",
)
REGION = Form(r"[a-z]+[a-z0-9]*", "a region such as westeurope")
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
WORKSPACE = Form(
    r"[A-Za-z0-9][A-Za-z0-9_-]{2,32}",
    "3 to 33 letters, digits, hyphens and underscores, a letter or digit first",
)
ACCOUNT = Form(r"[a-z0-9]{3,24}", "3 to 24 lower-case letters and digits")
CIDR = Form(r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}", "a range such as 10.60.0.0/16")
HOST = Form(
    r"(\*\.)?([a-z0-9]+(-+[a-z0-9]+)*\.)+[a-z]{2,}", "a host name such as pypi.org, or *.pypi.org"
)
CONTAINER = Form(
    r"(?=.{3,30}$)[a-z0-9](-?[a-z0-9])+", "3 to 30 lower-case letters, digits and single hyphens"
)
REVIEWER = Form(
    r"[A-Za-z0-9][A-Za-z0-9-]*(/[A-Za-z0-9_-]+)?", "a user, or organisation/team, of GitHub"
)
LABEL = Form(r"[A-Za-z0-9][\w.-]{0,63}", "a label of runners, as GitHub takes it")
GROUP = Form(r"[\w().-]{1,89}[\w()-]", "the name of a resource group")
ADDRESS = Form(r"\d{1,3}(\.\d{1,3}){3}", "an address such as 10.0.0.4")
# Azure ignores the case of ids, and its tools write them in different cases.
_IN_GROUP = rf"/subscriptions/{GUID.pattern}/[Rr]esource[Gg]roups/{GROUP.pattern}"


def _id(kind: str, words: str) -> Form:
    """Return the form of a resource id; `kind` is NAMESPACE/TYPE, in which `*` matches a name."""
    types = kind.replace("Microsoft.", r"[Mm]icrosoft\.").replace("*", r"[\w.-]{1,80}")
    return Form(rf"{_IN_GROUP}/providers/{types}/[\w.-]{{1,80}}", f"the resource id of {words}")


NETWORK_ID = _id("Microsoft.Network/virtualNetworks", "a virtual network")
SUBNET_ID = _id("Microsoft.Network/virtualNetworks/*/subnets", "a subnet")
LOGS_ID = _id("Microsoft.OperationalInsights/workspaces", "a Log Analytics workspace")
REGISTRY_ID = _id("Microsoft.ContainerRegistry/registries", "a container registry")
VAULT_ID = _id("Microsoft.KeyVault/vaults", "a key vault")
SCOPE_ID = _id("Microsoft.Insights/privateLinkScopes", "an Azure Monitor Private Link Scope")
ZONES = Form(rf"none|{_IN_GROUP}", "the id of a resource group, or none")
# `infra.settings.checks` checks that the size exists.
VM_SIZE = Form(r"\w+", "a VM size such as Standard_E4ds_v4")


@dataclass(frozen=True, kw_only=True)
class Network:
    """The virtual network, and whether Azure ML or a subnet of ours isolates compute."""

    __pydantic_config__ = CONFIG

    isolation: Literal["managed", "own"] = "managed"
    """`managed`: Azure ML's managed network; `own`: clusters in our own subnet, and deployments
    with `egress_public_network_access: disabled`; cannot be changed for an existing workspace.
    """
    address_space: Annotated[str, CIDR] = "10.60.0.0/16"
    """Range of a virtual network of ours, /16 to /24; cannot be changed once it is in use."""
    service_endpoints: bool = False
    """Also reach storage and vault by service endpoints: their public addresses then answer to the
    nodes' subnet, and storage-public-access and vault-public-access need waivers.
    """
    firewall: Literal["Basic", "Standard"] = "Standard"
    """SKU of the firewall that rules with host names need."""
    allowed_hosts: tuple[Annotated[str, HOST], ...] = ()
    """Hosts that compute may reach; the first one adds a firewall and its cost."""
    virtual_network: Annotated[str, NETWORK_ID] = ""
    """A virtual network to use in place of one of ours, by id. This stack does not change it: its
    owner makes the subnets, their security groups and routes, and the peering.
    """
    subnet: Annotated[str, SUBNET_ID] = ""
    """With `virtual_network`: the subnet of the private endpoints."""
    compute_subnet: Annotated[str, SUBNET_ID] = ""
    """With `virtual_network` and `isolation: own`: the subnet of the nodes."""
    private_dns_zones: Annotated[str, ZONES] = ""
    """Where the private DNS zones are: the id of a resource group, or `none` where Azure Policy
    registers the records. By default they are made here.
    """
    peer: Annotated[str, NETWORK_ID] = ""
    """The hub: a network of ours is peered with it (its owner peers it with ours), a given one is
    expected to be (`infra doctor`).
    """
    hub_firewall: Annotated[str, ADDRESS] = ""
    """With `peer`: the hub's firewall; all traffic out of a network of ours is routed to it, in
    place of a NAT gateway.
    """
    runners: Annotated[str, LABEL] = ""
    """Label of the self-hosted runners in this network: one of ours has a subnet `runners` for
    them, and `infra bootstrap` stores the label as the repository variable `RUNNER`.
    """
    runners_subnet: Annotated[str, SUBNET_ID] = ""
    """With `virtual_network` and `runners`: the subnet of the runners, in it or in its hub, which
    `infra doctor` checks.
    """


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The workspace's storage account and the data lake."""

    __pydantic_config__ = CONFIG

    redundancy: Literal["LRS", "ZRS", "GRS", "GZRS", "RAGRS", "RAGZRS"] = "ZRS"
    """How many copies, and where; to move an existing account into zones or out of them, convert it
    (`az storage account migration start`) before the change here.
    """
    containers: Annotated[
        tuple[Annotated[str, CONTAINER], ...], Field(min_length=1, max_length=20)
    ] = ("raw", "curated")
    """File systems of the lake; each is a datastore of the workspace."""
    datastores: Literal["identity", "sas"] = "identity"
    """How jobs reach the lake: by identity, or by a short-lived SAS for a path of its one
    container. Nothing renews the SAS: `infra sas ENV raw/2026/ --hours 8 | sed 's/[^?]*//' | pulumi
    config set --secret lake_sas`, then `pulumi up`.
    """
    sas_hours: Annotated[int, Field(ge=1, le=168)] = 8
    """Longest lifetime of a SAS, in hours."""
    soft_delete_days: Annotated[int, Field(ge=7, le=365)] = 14
    """Days in which a deletion can be undone."""
    cool_after_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days until a blob moves to the cool tier."""
    delete_after_days: Annotated[int, Field(ge=0, le=36500)] = 0
    """Days until a blob of the first container is deleted; 0 means never."""
    stored_gb: Annotated[int, Field(ge=0, le=10**7)] = 100
    """GB stored, for the cost estimate only."""
    customer_managed_key: bool = False
    """Encrypt with a key from our own vault; cannot be changed for existing accounts. If the first
    update ends with KeyVaultAuthenticationFailure, run it again: a new role takes effect in the
    vault after some minutes.
    """
    nfs_share_gib: Annotated[int, Field(ge=0, le=102400)] = 0
    """Size of an NFS share; 0 means none, otherwise 100 or more. A job mounts it itself, with
    nfs-common in its image: `mount -t nfs -o vers=4,minorversion=1,sec=sys
    ACCOUNT.file.core.windows.net:/ACCOUNT/shared DIR`.
    """


@dataclass(frozen=True, kw_only=True)
class Vault:
    """The key vault."""

    __pydantic_config__ = CONFIG

    soft_delete_days: Annotated[int, Field(ge=7, le=90)] = 90
    """Days in which a deleted secret can be recovered; cannot be changed for an existing vault."""
    generation: Annotated[int, Field(ge=1, le=9)] = 1
    """From 2 on a part of its name: a deleted vault holds its name for `soft_delete_days`, and
    nobody may purge it before. Another number is another vault.
    """
    id: Annotated[str, VAULT_ID] = ""
    """A vault to use in place of one of ours; this stack grants roles on it and changes nothing."""
    key: Annotated[str, Form(r"[0-9A-Za-z-]{1,127}", "the name of a key")] = "storage"
    """With `id` and `storage.customer_managed_key`: the name of its key that encrypts storage."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """What the Azure ML service keeps of a workspace: its jobs, metrics and metadata."""

    __pydantic_config__ = CONFIG

    customer_managed_key: bool = False
    """Encrypt it with the key of our own vault; cannot be changed for an existing workspace. Azure
    ML keeps it in its own subscription (`enableServiceSideCMKEncryption`).
    """
    high_business_impact: bool = False
    """Send Microsoft less diagnostic data; cannot be changed for an existing workspace."""
    generation: Annotated[int, Field(ge=1, le=9)] = 1
    """From 2 on a part of its name: a deleted workspace holds its name for fourteen days. Another
    number is another workspace.
    """
    name: Annotated[str, WORKSPACE] = ""
    """The name of a workspace to adopt (`pulumi import`); another name is another workspace."""
    storage_account: Annotated[str, ACCOUNT] = ""
    """The name of the storage account of a workspace to adopt: Azure changes neither the account of
    a workspace nor an account's infrastructure encryption, which must be on.
    """


@dataclass(frozen=True, kw_only=True)
class Images:
    """The container registry, and the node that builds custom images where it is private.

    A private registry cannot build images itself: its tasks run on public machines. One node of
    the workspace builds them (learn.microsoft.com/azure/machine-learning/how-to-managed-network,
    "Configure image builds"). The alternative is an agent pool in the network: a preview in few
    regions, and billed while idle.
    """

    __pydantic_config__ = CONFIG

    zone_redundant: bool = True
    """Spread over the zones of the region; cannot be changed for an existing registry."""
    keep_untagged_days: Annotated[int, Field(ge=1, le=365)] = 30
    """Days until an untagged image is deleted."""
    builder_size: Annotated[str, VM_SIZE] = "Standard_D4ds_v4"
    """Size of the node that builds images where the registry is private."""
    builds: Annotated[int, Field(ge=0, le=10000)] = 10
    """Images built in a typical month, for its cost."""
    registry: Annotated[str, REGISTRY_ID] = ""
    """A registry to use in place of one of ours; this stack grants roles on it and changes nothing.
    """


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Logs, metrics and alerts."""

    __pydantic_config__ = CONFIG

    retention_days: Annotated[int, Field(ge=30, le=730)] = 90
    """Days for which logs are kept."""
    daily_gb: Annotated[int, Field(ge=1, le=1000)] = 5
    """Daily cap on logs, in GB."""
    workspace: Annotated[str, LOGS_ID] = ""
    """A Log Analytics workspace to use in place of one of ours; its own settings hold there."""
    private_link_scope: Annotated[str, SCOPE_ID] = ""
    """The Azure Monitor Private Link Scope of the hub, to which its owner adds the logs of this
    stack. By default a private environment with logs and DNS zones of its own makes a scope; with
    central zones, where a second scope would override the names of the first, logs can be queried
    from public networks.
    """


@dataclass(frozen=True, kw_only=True)
class AssetRegistry:
    """The Azure ML registry through which environments share models and environments.

    Azure creates a storage account and a container registry for it, in the group
    `azureml-rg-NAME_…`.
    """

    __pydantic_config__ = CONFIG

    mode: Literal["create", "use", "none"] = "none"
    """`create`: this stack is the registry and nothing else; `use`: the environment uses one;
    `none`: its models stay in its workspace. Models of a private environment are uploaded to it as
    files, from inside its network: Azure cannot share models from storage without public addresses.
    """
    name: Annotated[str, NAME] = ""
    """Its name, the same in every stack."""
    stack: Annotated[str, Form(r"[a-z0-9]{1,7}", "the name of a stack: shared")] = ""
    """With `mode: use`: the stack that creates it, which is deployed before."""
    resource_group: Annotated[str, GROUP] = ""
    """With `mode: use`, of a registry that no stack here creates: its resource group."""
    subscription: Annotated[str, GUID] = ""
    """With `mode: use`: its subscription, where that is another one than the environment's."""
    regions: Annotated[tuple[Annotated[str, REGION], ...], Field(max_length=20)] = ()
    """With `mode: create`: further regions of environments that use it; each holds the models too.
    """


@dataclass(frozen=True, kw_only=True)
class FeatureStore:
    """The Azure ML feature store, with a container of the lake as its offline store."""

    __pydantic_config__ = CONFIG

    mode: Literal["create", "none"] = "none"
    """`create`: a workspace of the kind FeatureStore, and the container and datastore `features`,
    to which clusters with `lake: write` materialise.
    """
    redis: Literal["none", "Balanced_B0", "Balanced_B1", "Balanced_B3", "Balanced_B5"] = "none"
    """Size of the online store, Azure Managed Redis, billed by the hour. Endpoints read it, except
    with `isolation: own`; clusters with `lake: write` fill it.
    """
    replicated: bool = True
    """Whether Redis has a second node, at twice the price; without it a failure loses the values
    until the next materialisation.
    """


@dataclass(frozen=True, kw_only=True)
class Guardrails:
    """The budget, its recipients, and locks."""

    __pydantic_config__ = CONFIG

    monthly_budget: Annotated[int, Field(ge=1, le=10**7)]
    """Monthly budget, in the billing currency."""
    budget_from: Annotated[str, Form(r"20\d\d-(0[1-9]|1[0-2])", "a month such as 2026-12")]
    """First month of the budget: Azure accepts the month in which it is created, or one of the
    twelve after it.
    """
    locks: bool = True
    """Lock storage, vault and registry against deletion; an update that removes roles or containers
    (removes a cluster, changes `lake` or `person`) needs an update with false before it, because a
    lock also protects roles on a resource and what is inside it.
    """
    protect: bool = True
    """Pulumi refuses to replace or delete resources that hold data; `pulumi state unprotect`
    releases one.
    """


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A typical month, for the cost estimate only."""

    __pydantic_config__ = CONFIG

    jobs: Annotated[int, Field(ge=0, le=100000)] = 20
    """Jobs a month."""
    hours: Annotated[int, Field(ge=0, le=720)] = 2
    """Hours a job."""
    nodes: Annotated[int, Field(ge=0, le=1000)] = 1
    """Nodes a job."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A compute cluster: a preset or a size, from `min_nodes` to `max_nodes`."""

    __pydantic_config__ = CONFIG

    name: Annotated[str, COMPUTE]
    """Its name in the workspace."""
    preset: Preset | None = None
    """A size by its purpose; or `size`."""
    size: Annotated[str, VM_SIZE] | None = None
    """A size by its name; or `preset`; cannot be changed for an existing cluster."""
    priority: Literal["dedicated", "spot"] | None = None
    """By default CPU is dedicated and GPU is spot, except H100, which has no spot nodes."""
    min_nodes: Annotated[int, Field(ge=0, le=100)] = 0
    """Nodes that run even without jobs."""
    max_nodes: Annotated[int, Field(ge=1, le=1000)] = 4
    """Most nodes."""
    idle_minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """Minutes until an idle node is released."""
    lake: Literal["read", "write"] = "read"
    """Access of its identity to the data lake."""
    usage: Usage = field(default_factory=Usage)
    """A typical month."""

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
        """True if nodes are low-priority; the default for GPU sizes that Azure ML offers so."""
        by_default = self.hardware.gpus > 0 and self.hardware.low_priority
        return self.priority == "spot" if self.priority else by_default


@dataclass(frozen=True, kw_only=True)
class Training:
    """The limits of one job or step that a workflow submits for a pull request."""

    __pydantic_config__ = CONFIG

    hours: Annotated[int, Field(ge=1, le=720)] = 24
    """Hours of its `limits.timeout`."""
    nodes: Annotated[int, Field(ge=1, le=1000)] = 4
    """Nodes: `resources.instance_count`."""
    trials: Annotated[int, Field(ge=1, le=10000)] = 100
    """Trials of a sweep: `limits.max_total_trials`."""
    trials_at_once: Annotated[int, Field(ge=1, le=1000)] = 10
    """Trials of a sweep that run at once: `limits.max_concurrent_trials`."""


@dataclass(frozen=True, kw_only=True)
class Workstation:
    """A machine for one person: a compute instance of the workspace, or a Linux VM."""

    __pydantic_config__ = CONFIG

    name: Annotated[str, NAME]
    """Its name."""
    kind: Literal["compute-instance", "data-science-vm"] = "compute-instance"
    """An Azure ML compute instance, which reaches the same hosts as jobs (Git needs its host in
    `allowed_hosts`; our own network only lets it reach Azure), or a Linux data-science VM.
    """
    size: Annotated[str, VM_SIZE] = "Standard_E4ds_v4"
    """A VM size."""
    person: Annotated[str, GUID]
    """Object id of its user."""
    ssh_key: Annotated[str, Form(r"ssh-(rsa|ed25519) \S+.*", "a public key: ssh-ed25519 AAAA…")] = (
        ""
    )
    """Public key of a VM's administrator; cannot be changed for an existing VM."""
    idle_minutes: Annotated[int, Field(ge=15, le=4320)] = IDLE_MINUTES
    """Minutes until an idle instance stops."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of Entra ID, by object id."""

    __pydantic_config__ = CONFIG

    data_scientists: Annotated[str, GUID] = ""
    """Its members submit jobs, and read and write what jobs do, as users of an instance do."""
    reviewers: Annotated[str, GUID] = ""
    """Its members read the workspace, the shared registry, evidence and audit log, and nothing that
    endpoints collect of callers; `platform:reviewers` names who approves.
    """
    operators: Annotated[str, GUID] = ""
    """Its members read the workspace, its metrics and its logs."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An online endpoint; it may exist before its first model."""

    __pydantic_config__ = CONFIG

    name: Annotated[
        str,
        Form(
            r"(?=.{3,32}$)[a-z](-?[a-z0-9])+",
            "3 to 32 lower-case letters, digits and single hyphens, a letter first",
        ),
    ]
    """Its name in the region."""
    alert_errors: Annotated[int, Field(ge=1, le=10**6)] = 10
    """Failed requests a minute that raise an alert."""


@dataclass(frozen=True, kw_only=True)
class StackFile:
    """The contents of `config` in a stack file."""

    __pydantic_config__ = ConfigDict(**CONFIG, alias_generator=lambda name: f"platform:{name}")

    location: Annotated[str, REGION, Field(alias="azure-native:location")]
    """As `az account list-locations` names it."""
    subscription: Annotated[str, GUID, Field(alias="azure-native:subscriptionId")]
    """`az account list` names it."""
    tenant: Annotated[str, GUID, Field(alias="azure-native:tenantId")]
    """`az account list` names it."""
    name: Annotated[
        str, Form(r"[a-z][a-z0-9]{1,7}", "2 to 8 lower-case letters and digits, a letter first")
    ]
    """Short name of the platform, a part of every name."""
    repository: Annotated[
        str,
        Form(
            r"[A-Za-z0-9][A-Za-z0-9-]*(@\d+/(?=.*@\d+$)|/(?!.*@))"
            r"(?!\.{1,2}(@|$))(?!.*\.git(@|$))[A-Za-z0-9._-]+(@\d+)?",
            "owner/name or owner@id/name@id, as GitHub writes it and without .git",
        ),
    ]
    """GitHub repository whose workflows may sign in, with its ids where its tokens contain them
    (`infra bootstrap` tells).
    """
    owner: Annotated[str, EMAIL]
    """Recipient of alerts and budget notices."""
    cost_center: Annotated[
        str,
        Form(r"[\w .-]{1,64}", "1 to 64 letters (A to Z, a to z), digits, spaces, dots, - and _"),
    ]
    """Tag for billing."""
    kept_tags: Annotated[
        tuple[
            Annotated[str, Form(r"[^<>%&\\?/\"]{1,512}", "the name of a tag, as Azure takes it")],
            ...,
        ],
        Field(max_length=40),
    ] = ()
    """Names of tags that others set, such as Azure Policy; a deployment keeps their values."""
    reviewers: Annotated[tuple[Annotated[str, REVIEWER], ...], Field(max_length=6)] = ()
    """Teams (organisation/team) and users of GitHub who approve releases and deployments;
    `infra bootstrap` asks for them.
    """
    resource_group: Annotated[str, GROUP] = ""
    """A resource group to use in place of one of ours; cannot be changed once it is in use."""
    tags: Annotated[
        Mapping[
            Annotated[str, Form(r"[^<>%&\\?/]{1,128}", "1 to 128 characters without <>%&\\?/")],
            Annotated[str, Field(max_length=256)],
        ],
        Field(max_length=40),
    ] = field(default_factory=dict)
    """Tags of every resource, beside those of the template. Azure keeps 50."""
    exposure: Literal["private", "starter"] = "private"
    """`private`: reachable only through private endpoints; `starter`: public addresses, also
    without keys; cannot be changed for an existing workspace.
    """
    network: Network = field(default_factory=Network)
    """Virtual network."""
    storage: Storage = field(default_factory=Storage)
    """Storage accounts."""
    vault: Vault = field(default_factory=Vault)
    """Key vault."""
    workspace: Workspace = field(default_factory=Workspace)
    """What Azure ML keeps of the workspace."""
    images: Images = field(default_factory=Images)
    """Container registry."""
    monitoring: Monitoring = field(default_factory=Monitoring)
    """Logs and alerts."""
    asset_registry: AssetRegistry = field(default_factory=AssetRegistry)
    """The registry that environments share."""
    feature_store: FeatureStore = field(default_factory=FeatureStore)
    """Feature store."""
    clusters: Annotated[tuple[Cluster, ...], Field(max_length=200)] = ()
    """Compute clusters."""
    training: Training = field(default_factory=Training)
    """What jobs of pull requests may take of them."""
    workstations: Annotated[tuple[Workstation, ...], Field(max_length=100)] = ()
    """Machines for people."""
    groups: Groups = field(default_factory=Groups)
    """Groups of people."""
    endpoints: Annotated[tuple[Endpoint, ...], Field(max_length=100)] = ()
    """Online endpoints."""
    guardrails: Guardrails
    """Budget and locks."""


@dataclass(frozen=True, kw_only=True)
class Settings(StackFile):
    """One environment, or the registry that environments share; `environment` is the name of its
    stack.
    """

    environment: str

    @property
    def names(self) -> Names:
        """The names of the environment's resources."""
        identity = f"{self.subscription}/{self.name}/{self.environment}"
        suffix = hashlib.sha256(identity.lower().encode()).hexdigest()[:5]
        return Names(self.name, self.environment, suffix, self.resource_group)

    @property
    def workspace_name(self) -> str:
        """The name of the workspace."""
        generation = self.workspace.generation
        default = self.names.local("mlw", str(generation) if generation > 1 else "")
        return self.workspace.name or default

    @property
    def github(self) -> str:
        """The repository as owner/name without ids, for `gh` and GitHub's API."""
        return re.sub(r"@\d+", "", self.repository)

    @property
    def makes_registry(self) -> bool:
        """True if the stack is the shared registry alone, without an environment for models."""
        return self.asset_registry.mode == "create"

    @property
    def registry_group(self) -> str:
        """The resource group of the asset registry; "" without one."""
        registry = self.asset_registry
        if registry.mode == "none":
            return ""
        creator = self.environment if self.makes_registry else registry.stack
        return registry.resource_group or Names(self.name, creator, "").group

    @property
    def registry_subscription(self) -> str:
        """The subscription of the asset registry."""
        subscription = self.asset_registry.subscription
        is_own = subscription.lower() in ("", self.subscription.lower())
        return self.subscription if is_own else subscription

    @property
    def registry_id(self) -> str:
        """The resource id of the asset registry; "" without one."""
        if not self.registry_group:
            return ""
        return (
            f"/subscriptions/{self.registry_subscription}/resourceGroups/{self.registry_group}"
            f"/providers/Microsoft.MachineLearningServices/registries/{self.asset_registry.name}"
        )

    @property
    def has_key(self) -> bool:
        """True if a resource is encrypted with a key in the vault."""
        return self.storage.customer_managed_key or self.workspace.customer_managed_key

    @property
    def has_features(self) -> bool:
        """True if the environment has a feature store."""
        return self.feature_store.mode == "create"

    @property
    def has_redis(self) -> bool:
        """True if the feature store has an online store."""
        return self.feature_store.redis != "none"

    @property
    def containers(self) -> tuple[str, ...]:
        """The file systems of the lake."""
        return (*self.storage.containers, *([FEATURES] if self.has_features else []))

    @property
    def private(self) -> bool:
        """True if resources are reachable only through private endpoints."""
        return self.exposure == "private"

    @property
    def makes_scope(self) -> bool:
        """True if the stack creates an Azure Monitor private link scope for its logs."""
        monitoring, zones = self.monitoring, self.network.private_dns_zones
        is_existing = bool(monitoring.workspace or monitoring.private_link_scope or zones)
        return self.private and not self.makes_registry and not is_existing

    @property
    def needs_nat(self) -> bool:
        """True if machines are in a virtual network of this stack and need a NAT gateway."""
        has_machines = self.network.isolation == "own" or bool(self.machines("data-science-vm"))
        has_machines = has_machines or bool(self.network.runners)
        ours = not (self.network.virtual_network or self.network.hub_firewall)
        return self.private and has_machines and ours

    @property
    def builder(self) -> Cluster | None:
        """The one-node cluster that builds images for a private registry; None without one."""
        if not self.private or self.makes_registry:
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
        """Return the workstations of one kind."""
        return tuple(machine for machine in self.workstations if machine.kind == kind)
