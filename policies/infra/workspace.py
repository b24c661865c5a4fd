"""Rules for the workspace, its compute and endpoints, the shared registry and feature store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from policies.infra.limits import Limits
from policies.infra.network import is_internal, is_narrow_tag
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings, is_cluster

# A host, or all hosts of a registered domain; `*.com` does not match.
_HOST = re.compile(r"(\*\.)?([\w-]+\.)+[\w-]{2,}")
# Domains in which anybody can rent a host name, and public suffixes such as co.uk.
_RENTED = re.compile(
    r"(.*\.)?((blob|dfs|file|queue|table|web|z\d+\.web)\.core\.windows\.net|azurewebsites\.net"
    r"|azure(edge|fd)\.net|cloudapp\.(azure\.com|net)|trafficmanager\.net|windows\.net|azurecr\.io"
    r"|(github|gitlab)\.io|amazonaws\.com|cloudfront\.net|googleapis\.com|appspot\.com|run\.app"
    r"|herokuapp\.com|netlify\.app|vercel\.app|(pages|workers|fly|r2)\.dev|ngrok(-free)?\.(io|app)"
    r"|(r2\.cloudflarestorage|backblazeb2|digitaloceanspaces|wasabisys|onrender|firebaseapp)\.com"
    r"|hf\.space|web\.app|azurecontainerapps\.io|azure-api\.net|blob\.storage\.azure\.net)"
    r"|(co|com|org|net|gov|ac|edu)\.[a-z]{2}"
)
# Input of a workspace → the kind of resource that it names. Azure ML creates missing ones itself, a
# registry even with an admin password (how-to-use-managed-identities).
PARTS: Mapping[str, str] = {
    "storageAccount": Kind.ACCOUNT,
    "keyVault": Kind.VAULT,
    "containerRegistry": Kind.CONTAINER_REGISTRY,
    "applicationInsights": Kind.APPLICATION_INSIGHTS,
}


RULES = Rules()


@RULES.resource(
    "workspace-identity",
    "The workspace has a user-assigned identity.",
    "AZR-000407",
    Kind.WORKSPACE,
)
def _identity(item: Item, limits: Limits) -> Iterator[str]:
    if item.value("identity.type") != "UserAssigned":
        yield f"`identity.type` is {item.value('identity.type')}, must be UserAssigned"
    if not item.value("primaryUserAssignedIdentity"):
        yield "`primaryUserAssignedIdentity` is not set"


@RULES.stack("workspace-parts", "The workspace uses resources that this stack declares.", "own")
def _parts(items: Sequence[Item], limits: Limits) -> StackFindings:
    kinds = {item.urn: item.kind for item in items}
    for item in items:
        for part, kind in PARTS.items() if item.kind == Kind.WORKSPACE else ():
            ours = kind in {kinds.get(urn) for urn in item.sources(part)}
            if not ours and not limits.allows_id(str(item.value(part))):
                hint = "nor listed as `given` in limits.yml, so no rule checks it"
                yield item, f"`{part}` is not declared in this stack, {hint}"


@RULES.stack(
    "workspace-isolation",
    "Compute reaches approved destinations only.",
    "Azure Policy 6ddb1705-c8cf-450e-aa4b-19ad6703c440, AVM",
)
def _isolation(items: Sequence[Item], limits: Limits) -> StackFindings:
    """A managed network allows approved outbound only, or all compute is in a virtual network.

    A job that names no cluster runs on serverless compute, which then needs a subnet too.
    """
    clusters = [item for item in items if item.kind == Kind.COMPUTE]
    in_subnets = bool(clusters) and all(
        cluster.value("properties.properties.subnet") for cluster in clusters
    )
    for item in items:
        mode = item.value("managedNetwork.isolationMode", "Disabled")
        if item.kind != Kind.WORKSPACE or mode == "AllowOnlyApprovedOutbound":
            continue
        if not in_subnets:
            yield item, f"`isolationMode` is {mode}, and compute is not in a subnet of ours"
        elif mode != "Disabled":
            yield item, f"`isolationMode` is {mode}, must be Disabled if compute is in a subnet"
        elif not item.value("serverlessComputeSettings.serverlessComputeCustomSubnet"):
            yield item, "`serverlessComputeCustomSubnet` is not set, for jobs that name no cluster"


@RULES.resource(
    "workspace-outbound-endpoint",
    "The managed network reaches storage by a private endpoint.",
    "CKV_AZURE_243",
    Kind.WORKSPACE,
)
def _outbound_endpoint(item: Item, limits: Limits) -> Iterator[str]:
    if item.value("managedNetwork.isolationMode") == "Disabled":
        return  # `workspace-isolation` checks that our own network takes its place
    rules = item.members("managedNetwork.outboundRules")
    if not any(rule.value("type") == "PrivateEndpoint" for rule in rules):
        yield "no outbound rule of the managed network is a private endpoint"


@RULES.resource(
    "workspace-outbound", "The approved destinations are narrow.", "own", Kind.WORKSPACE
)
def _outbound(item: Item, limits: Limits) -> Iterator[str]:
    """No rule approves hosts, tags or addresses that other tenants can use."""
    for rule in item.members("managedNetwork.outboundRules"):
        target = rule.value("destination")
        match rule.value("type"):
            case "PrivateEndpoint":
                continue
            case "FQDN":
                narrow = str(target) in limits.hosts or _is_narrow_host(str(target))
            case kind:
                narrow = kind == "ServiceTag" and _is_narrow(rule, limits)
        if not narrow:
            yield f"an outbound rule lets compute reach {target}"


def _is_narrow_host(host: str) -> bool:
    """Return whether a host name is valid and not in a domain where anybody can rent a host."""
    is_host = _HOST.fullmatch(host) is not None
    return is_host and not _RENTED.fullmatch(host.lower().removeprefix("*."))


def _is_narrow(rule: Item, limits: Limits) -> bool:
    """Return whether a ServiceTag rule is narrow; address prefixes, if any, override its tag."""
    prefixes = rule.value("destination.addressPrefixes", [])
    if prefixes:
        return prefixes != UNKNOWN and all(is_internal(str(prefix)) for prefix in prefixes)
    return is_narrow_tag(str(rule.value("destination.serviceTag", UNKNOWN)), limits)


@RULES.resource(
    "compute-identity", "Each cluster has a user-assigned identity.", "own", Kind.COMPUTE
)
def _cluster_identity(item: Item, limits: Limits) -> Iterator[str]:
    if is_cluster(item) and item.value("identity.type") != "UserAssigned":
        yield f"`identity.type` is {item.value('identity.type')}, must be UserAssigned"


@RULES.resource("compute-ssh", "Nodes cannot be reached by SSH from outside.", "own", Kind.COMPUTE)
def _ssh(item: Item, limits: Limits) -> Iterator[str]:
    """A cluster outside a virtual network has an open SSH port by default."""
    key, default = (
        ("remoteLoginPortPublicAccess", "NotSpecified")
        if is_cluster(item)
        else ("sshSettings.sshPublicAccess", "Disabled")
    )
    access = item.value(f"properties.properties.{key}", default)
    if access != "Disabled":
        yield f"`{key}` is {access}, must be Disabled"


@RULES.resource(
    "compute-personal", "A compute instance belongs to one person.", "own", Kind.COMPUTE
)
def _personal(item: Item, limits: Limits) -> Iterator[str]:
    sharing = item.value("properties.properties.applicationSharingPolicy", "Shared")
    if item.value("properties.computeType") == "ComputeInstance" and sharing != "Personal":
        yield f"`applicationSharingPolicy` is {sharing}, must be Personal"


@RULES.resource(
    "assets-anonymous",
    "The shared registry cannot be read without signing in.",
    "own",
    Kind.ML_REGISTRY,
)
def _registry_blobs(item: Item, limits: Limits) -> Iterator[str]:
    key = "systemCreatedStorageAccount.allowBlobPublicAccess"
    for region in item.members("regionDetails"):
        for account in region.members("storageAccountDetails"):
            if account.value(key) is not False:
                yield f"`{key}` must be false"


@RULES.resource("datastore-no-key", "Datastores contain no account key.", "own", Kind.DATASTORE)
def _credentials(item: Item, limits: Limits) -> Iterator[str]:
    kind = item.value("properties.credentials.credentialsType")
    if kind not in ("None", "Sas"):
        yield f"`credentialsType` is {kind}, must be None or a user-delegation Sas"


RULES.resource(
    "workspace-datastores",
    "The workspace's own datastores are read by identity.",
    "AVM WAF",
    Kind.WORKSPACE,
).must("systemDatastoresAuthMode", "Identity", default="AccessKey")
RULES.resource(
    "workspace-v2",
    "The v1 API, which bypasses the private endpoint, is off.",
    "own",
    Kind.WORKSPACE,
).must("v1LegacyMode", False, default=False)
RULES.resource(
    "compute-kind",
    "Compute is a cluster or an instance: rules cover no other kind.",
    "own",
    Kind.COMPUTE,
).must("properties.computeType", ("AmlCompute", "ComputeInstance"))
RULES.resource(
    "compute-local-auth",
    "Nodes accept no local password or key.",
    "AZR-000404 CKV_AZURE_142",
    Kind.COMPUTE,
).must("properties.disableLocalAuth", True, default=False)
RULES.resource("compute-node-address", "Nodes have no public address.", "own", Kind.COMPUTE).must(
    "properties.properties.enableNodePublicIp", False, default=True
)
RULES.resource(
    "endpoint-identity", "Endpoints have a user-assigned identity.", "own", Kind.ENDPOINT
).must("identity.type", "UserAssigned")
RULES.resource(
    "workspace-behind-network", "No public access behind the network.", "own", Kind.WORKSPACE
).must("allowPublicAccessWhenBehindVnet", False, default=False)
RULES.resource(
    "endpoint-auth", "Endpoints accept Entra tokens only, not keys.", "own", Kind.ENDPOINT
).must("properties.authMode", "AADToken")


@RULES.stack("redis-users", "Only identities of the stack read and write Redis.", "own")
def _users(items: Sequence[Item], limits: Limits) -> StackFindings:
    identities = {item.urn for item in items if item.kind == Kind.IDENTITY}
    for item in items:
        principals = item.sources("user")
        if item.kind == Kind.REDIS_USER and (not principals or not principals <= identities):
            yield item, "grants access to a principal that is not an identity of this stack"


@RULES.resource("cost-redis-size", "Redis has an allowed size.", "own", Kind.REDIS)
def _size(item: Item, limits: Limits) -> Iterator[str]:
    """limits.yml lists the allowed sizes, since Redis is billed by the hour, used or not."""
    size = item.value("sku.name", UNKNOWN)
    if size not in limits.redis_sizes:
        yield f"`sku.name` is {size}; allowed here: {', '.join(limits.redis_sizes) or 'none'}"


RULES.resource("redis-tls", "TLS is 1.2 or newer.", "own", Kind.REDIS).must(
    "minimumTlsVersion", ("1.2", "1.3"), default="1.0"
)
RULES.resource("redis-replicated", "Redis survives the loss of a node.", "own", Kind.REDIS).must(
    "highAvailability", "Enabled", default="Enabled"
)
RULES.resource("redis-encrypted", "Redis speaks TLS only.", "own", Kind.REDIS_DATABASE).must(
    "clientProtocol", "Encrypted", default="Encrypted"
)
RULES.resource("redis-keys", "Redis accepts no keys.", "own", Kind.REDIS_DATABASE).must(
    "accessKeysAuthentication", "Disabled", default="Enabled"
)
RULES.resource(
    "connection-identity", "Connections use an identity, no key.", "own", Kind.CONNECTION
).must("properties.authType", "ManagedIdentity")
