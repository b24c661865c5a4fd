"""Rules of the workspace, its compute and its endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from policies.infra.limits import Limits
from policies.infra.rule import Item, Rule, must

WORKSPACE = "machinelearningservices:Workspace"
COMPUTE = "machinelearningservices:Compute"
ENDPOINT = "machinelearningservices:OnlineEndpoint"
ASSETS = "machinelearningservices:Registry"
DATASTORE = "machinelearningservices:Datastore"


def _identity(item: Item, limits: Limits) -> Iterator[str]:
    if item.at("identity.type") != "UserAssigned":
        yield f"`identity.type` is {item.at('identity.type')}, must be UserAssigned"
    if not item.at("primaryUserAssignedIdentity"):
        yield "`primaryUserAssignedIdentity` is not set"


def _cluster_identity(item: Item, limits: Limits) -> Iterator[str]:
    cluster = item.at("properties.computeType") == "AmlCompute"
    if cluster and item.at("identity.type") != "UserAssigned":
        yield "a cluster acts by a user-assigned identity of its own"


def _ssh(item: Item, limits: Limits) -> Iterator[str]:
    """A cluster's port is open where it has no network of ours, unless it says otherwise."""
    cluster = item.at("properties.computeType") == "AmlCompute"
    where, default = (
        ("remoteLoginPortPublicAccess", "NotSpecified")
        if cluster
        else ("sshSettings.sshPublicAccess", "Disabled")
    )
    found = item.at(f"properties.properties.{where}", default)
    if found != "Disabled":
        yield f"`{where}` is {found}, must be Disabled"


def _personal(item: Item, limits: Limits) -> Iterator[str]:
    found = item.at("properties.properties.applicationSharingPolicy", "Shared")
    if item.at("properties.computeType") == "ComputeInstance" and found != "Personal":
        yield f"`applicationSharingPolicy` is {found}, must be Personal"


def _assets(item: Item, limits: Limits) -> Iterator[str]:
    account = "systemCreatedStorageAccount.allowBlobPublicAccess"
    for region in item.each("regionDetails"):
        for one in region.each("storageAccountDetails"):
            if one.at(account) is not False:
                yield f"`{account}` is not false"


def _no_stored_key(item: Item, limits: Limits) -> Iterator[str]:
    kind = item.at("properties.credentials.credentialsType")
    if kind not in ("None", "Sas"):
        yield f"`credentialsType` is {kind}, must be None or a user-delegation Sas"


RULES: tuple[Rule, ...] = (
    must(
        "workspace-public-access",
        WORKSPACE,
        "publicNetworkAccess",
        ("Disabled",),
        "A workspace does not answer on public addresses.",
        "AZR-000406 CKV_AZURE_144 CKV2_AZURE_49",
        "Enabled",
    ),
    Rule(
        "workspace-identity",
        "A workspace acts by a user-assigned identity.",
        "AZR-000407",
        (WORKSPACE,),
        _identity,
    ),
    must(
        "workspace-datastores",
        WORKSPACE,
        "systemDatastoresAuthMode",
        ("Identity",),
        "The workspace's own datastores are reached by identity.",
        "AVM WAF",
        "AccessKey",
    ),
    must(
        "workspace-v2",
        WORKSPACE,
        "v1LegacyMode",
        (False,),
        "The v1 API, which skips the private endpoint's controls, is off.",
        "own",
        False,
    ),
    Rule(
        "datastore-no-key",
        "A datastore holds no account key.",
        "own",
        (DATASTORE,),
        _no_stored_key,
    ),
    must(
        "compute-local-auth",
        COMPUTE,
        "properties.disableLocalAuth",
        (True,),
        "Nobody signs in to a node by password or key.",
        "AZR-000404 CKV_AZURE_142",
        False,
    ),
    must(
        "compute-node-address",
        COMPUTE,
        "properties.properties.enableNodePublicIp",
        (False,),
        "Nodes have no public address.",
        "own",
        True,
    ),
    must(
        "compute-kind",
        COMPUTE,
        "properties.computeType",
        ("AmlCompute", "ComputeInstance"),
        "Compute is of a kind that rules have been written for.",
        "own",
    ),
    Rule("compute-ssh", "Nobody reaches a node by SSH from outside.", "own", (COMPUTE,), _ssh),
    Rule(
        "compute-personal",
        "An instance is one person's.",
        "own",
        (COMPUTE,),
        _personal,
    ),
    Rule(
        "assets-anonymous",
        "Nothing in the shared registry is read without signing in.",
        "own",
        (ASSETS,),
        _assets,
    ),
    Rule(
        "compute-identity",
        "Each cluster acts by a user-assigned identity.",
        "own",
        (COMPUTE,),
        _cluster_identity,
    ),
    must(
        "endpoint-auth",
        ENDPOINT,
        "properties.authMode",
        ("AADToken",),
        "Endpoints take Entra tokens, no keys.",
        "own",
    ),
    must(
        "endpoint-public-access",
        ENDPOINT,
        "properties.publicNetworkAccess",
        ("Disabled",),
        "Endpoints do not answer on public addresses.",
        "own",
        "Enabled",
    ),
    must(
        "assets-public-access",
        ASSETS,
        "publicNetworkAccess",
        ("Disabled",),
        "The shared registry does not answer on public addresses.",
        "own",
        "Enabled",
    ),
)
