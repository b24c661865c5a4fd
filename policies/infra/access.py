"""Rules for role assignments, locks, identities and the sign-in of workflows."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache

from ml.core.azure import APPROVER, ISSUER, ROLES
from policies.infra.limits import Limits, environment
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings, sources_of, users_of

# Roles that `infra bootstrap` defines; their ids contain the subscription.
BLOB_WRITER = "AzureML Blob Writer"
CUSTOM_ROLES = (
    *("AzureML Job Submitter", "AzureML Releaser", BLOB_WRITER),
    "AzureML Registry Publisher",
)
# The roles of a workflow, by the suffix of its GitHub environment's name. Training changes neither
# endpoints nor the shared registry; releasing runs no jobs; watching changes nothing.
WORKFLOWS: Mapping[str, frozenset[str]] = {
    "train": frozenset(
        {"AzureML Job Submitter", "Reader", BLOB_WRITER, "Storage Blob Data Reader"}
    ),
    "release": frozenset(
        {
            "AzureML Releaser",
            "AzureML Registry Publisher",
            "Managed Identity Operator",
            "Monitoring Reader",
            BLOB_WRITER,
        }
    ),
    "watch": frozenset({"Reader", "Storage Blob Data Reader"}),
}
# Roles that change or open a resource: only the workspace's own identity needs them.
MANAGING = ("Contributor", "Key Vault Administrator", APPROVER)
CONTAINER_WRITER = "Storage Blob Data Contributor"
# The container of the audit log.
RELEASES = "releases"
_CONTAINERS = "Microsoft.Storage/storageAccounts/blobServices/containers"
_WRITES = " AND ".join(
    f"!(ActionMatches{{'{_CONTAINERS}/blobs/{verb}'}})"
    for verb in ("write", "delete", "add/action", "move/action")
)
_NAME = rf"@Resource\[{re.escape(_CONTAINERS)}:name\] StringLike '[^']+'"
# The path of the requests and responses that endpoints collect.
COLLECTED = "modelDataCollector/*"
_PATH = f"@Resource[{_CONTAINERS}/blobs:path]"
_READS = (
    f"!(ActionMatches{{'{_CONTAINERS}/blobs/read'}} AND NOT SubOperationMatches{{'Blob.List'}})"
)
_APART = re.escape(f"({_PATH} StringNotLike '{COLLECTED}')")
_CONDITION = re.compile(
    rf"\(\({re.escape(_WRITES)}\) OR \(\((?P<names>{_NAME}(?: OR {_NAME})*)\)"
    # Optionally narrower: only below a path, or neither writing nor reading collected requests.
    rf"(?:(?P<below> AND \({re.escape(_PATH)} StringLike '[^']+'\))?\)\)"
    rf"|(?P<apart> AND {_APART}\)\) AND \(\({re.escape(_READS)}\) OR {_APART}\)))"
)
# Kinds of resources that may use an identity of the stack; workflows use others.
_HOLDERS = (Kind.WORKSPACE, Kind.COMPUTE, Kind.ENDPOINT)
IDENTITY_OPERATOR = "Managed Identity Operator"
# /subscriptions/S/resourceGroups/G/providers/NAMESPACE/TYPE/NAME: role-based-access-control/
# scope-overview. A shorter scope is a resource group, a subscription or a management group.
_SCOPE_PARTS = 8


RULES = Rules()


def role(assignment: Item) -> str:
    """Return the name of the role that an assignment grants; its GUID if it is not listed."""
    return _role(str(assignment.value("roleDefinitionId", "")).lower())


@cache
def _role(definition: str) -> str:
    granted = definition.rsplit("/", 1)[-1]
    subscription = definition.removeprefix("/subscriptions/").partition("/")[0]
    for name in CUSTOM_ROLES:
        if granted == str(uuid.uuid5(uuid.NAMESPACE_URL, f"{subscription}/{name}")):
            return name
    return next((name for name, id in ROLES.items() if id == granted), granted)


@RULES.resource(
    "role-least",
    "Only listed roles are granted, each on one resource.",
    "own",
    Kind.ROLE_ASSIGNMENT,
)
def _least_privilege(item: Item, limits: Limits) -> Iterator[str]:
    if role(item) not in (*ROLES, *CUSTOM_ROLES):
        yield f"grants `{role(item)}`, which is not one of the roles in ml/core/azure.py"
    scope = str(item.value("scope", ""))
    if scope != UNKNOWN and len(scope.strip("/").split("/")) < _SCOPE_PARTS:
        yield f"is granted on `{scope}`, which is wider than one resource"


@RULES.stack("role-not-on-group", "Roles are not granted on the resource group.", "own")
def _not_on_group(items: Sequence[Item], limits: Limits) -> StackFindings:
    """The scope is unknown in a preview, so the rule checks the resources that it derives from."""
    groups = {item.urn for item in items if item.kind == Kind.RESOURCE_GROUP}
    for item in items:
        if item.kind == Kind.ROLE_ASSIGNMENT and groups & item.sources("scope"):
            yield item, "is granted on the resource group, not on one resource"


@RULES.stack("role-once", "A principal has a role on a scope once.", "own")
def _once(items: Sequence[Item], limits: Limits) -> StackFindings:
    """No role assignment repeats the role, principal and scope of an earlier one.

    Azure rejects the second (RoleAssignmentExists), whatever its name or condition. In a preview,
    an unknown principal or scope is identified by the resources that it derives from.
    """
    first: dict[tuple[str, ...], Item] = {}
    for item in items:
        if item.kind != Kind.ROLE_ASSIGNMENT:
            continue
        granted = _known(item, "roleDefinitionId").rpartition("/")[2]
        key = granted, _known(item, "principalId"), _known(item, "scope")
        if all(key) and (earlier := first.setdefault(key, item)) is not item:
            yield item, f"grants {role(item)} to the principal and on the scope of `{earlier.name}`"


def _known(item: Item, name: str) -> str:
    """Return an id in lower case; if unknown, the URNs that it derives from; "" without any."""
    value = str(item.value(name, UNKNOWN))
    sources = " ".join(sorted(item.sources(name))) if value == UNKNOWN else value
    return sources.strip("/").lower()


@RULES.stack(
    "role-managing", "Only the workspace's identity manages the workspace's resources.", "own"
)
def _managing(items: Sequence[Item], limits: Limits) -> StackFindings:
    identities = sources_of(items, Kind.WORKSPACE, "identity")
    for item in items:
        granted = role(item) if item.kind == Kind.ROLE_ASSIGNMENT else ""
        principals = item.sources("principalId")
        if granted in MANAGING and (not principals or not principals <= identities):
            yield item, f"grants {granted} to an identity that is not the workspace's own"
        if granted == IDENTITY_OPERATOR and identities & item.sources("scope"):
            yield item, f"grants {granted} on the workspace's identity: its holder can act as it"


@RULES.stack(
    "storage-writers",
    "Only releases write the audit log, and only endpoints the requests they collect.",
    "own",
)
def _writers(items: Sequence[Item], limits: Limits) -> StackFindings:
    """Only the role assignments of releases can overwrite the audit log.

    The workspace's account holds the audit log beside the containers of jobs. Only the workspace's
    identity may delete containers, because no condition can limit that action.
    """
    accounts = sources_of(items, Kind.WORKSPACE, "storageAccount")
    identities = sources_of(items, Kind.WORKSPACE, "identity")
    clusters = sources_of(items, Kind.COMPUTE, "identity")
    releases = sources_of(
        items,
        Kind.CREDENTIAL,
        "resourceName",
        lambda credential: str(credential.value("subject", "")).endswith("-release"),
    )
    for item in items:
        granted = role(item) if item.kind == Kind.ROLE_ASSIGNMENT else ""
        principals = item.sources("principalId")
        if granted not in (BLOB_WRITER, CONTAINER_WRITER) or (
            principals and principals <= identities
        ):
            continue
        if granted == CONTAINER_WRITER:
            yield item, f"grants {granted}, which may delete whole containers: use {BLOB_WRITER}"
        elif accounts & item.sources("scope") or not item.sources("scope"):
            # A condition of another form than `infra.settings.workflows.writes_only` may allow
            # anything.
            match = _CONDITION.fullmatch(str(item.value("condition", "")))
            if match is None or item.value("conditionVersion") != "2.0":
                yield item, "has no condition that names the containers that it writes"
                continue
            names = re.findall(r"StringLike '([^']+)'", match["names"])
            is_of_releases = principals and principals <= releases
            if any(fnmatchcase(RELEASES, name) for name in names) and not is_of_releases:
                yield item, f"writes `{RELEASES}`, where the audit log is"
            elif not (match["below"] or match["apart"] or is_of_releases):
                yield item, f"reads and writes `{COLLECTED}`, where requests of callers are"
        elif not principals or not principals <= clusters:
            yield item, "writes the lake, which only clusters do"


@RULES.stack(
    "lock-not-on-group",
    "Locks are on resources with data, not on the resource group.",
    "azure-resource-manager/management/lock-resources",
)
def _locks(items: Sequence[Item], limits: Limits) -> StackFindings:
    groups = {item.urn for item in items if item.kind == Kind.RESOURCE_GROUP}
    for item in items:
        if item.kind != Kind.LOCK:
            continue
        scope = item.sources("scope")
        if not scope or scope & groups:
            yield item, "a lock on the resource group stops clusters from releasing nodes"
        if item.value("level") != "CanNotDelete":
            yield item, f"`level` is {item.value('level')}: a read-only resource cannot be used"


@RULES.stack("compute-own-identity", "Each cluster has an identity that nothing else uses.", "own")
def _shared_identities(items: Sequence[Item], limits: Limits) -> StackFindings:
    """A job has the rights of its cluster's identity, so no other resource may use that identity;
    endpoints may share one with each other.
    """
    for users in users_of(items, _HOLDERS, "identity").values():
        kinds = {user.kind for user in users}
        for item in users if len(users) > 1 else ():
            if item.kind == Kind.COMPUTE or (item.kind == Kind.ENDPOINT and len(kinds) > 1):
                others = ", ".join(f"`{user.name}`" for user in users if user is not item)
                yield item, f"shares its identity with {others}"


@RULES.stack(
    "federation-own-identity",
    "A workflow has an identity of its own, for its own repository.",
    "own",
)
def _workflow_identity(items: Sequence[Item], limits: Limits) -> StackFindings:
    """No resource uses a workflow's identity; its tag and its credential name one repository."""
    by_urn, users = {item.urn: item for item in items}, users_of(items, _HOLDERS, "identity")
    for item in items:
        if item.kind != Kind.CREDENTIAL:
            continue
        identities = [by_urn[urn] for urn in item.uses.get("resourceName", ()) if urn in by_urn]
        repositories = {f"repo:{identity.value('tags.repository')}" for identity in identities}
        if repositories != {str(item.value("subject", "")).split(":environment:")[0]}:
            yield item, "`subject` names another repository than the identity's tag"
        for identity in identities:
            for user in users.get(identity.urn, ()):
                yield item, f"lets a workflow act as `{user.name}`"


@RULES.resource(
    "federation-one-environment",
    "A workflow signs in only from a GitHub environment of its own stack.",
    "own",
    Kind.CREDENTIAL,
)
def _subject(item: Item, limits: Limits) -> Iterator[str]:
    """No credential names another environment, whose jobs would bypass this one's reviewers."""
    stack, subject = environment(item.urn), str(item.value("subject", ""))
    purposes = "|".join(WORKFLOWS)
    if not re.fullmatch(rf"repo:[^:*]+:environment:{re.escape(stack)}-({purposes})", subject):
        expected = " or ".join(f"{stack}-{purpose}" for purpose in WORKFLOWS)
        yield f"`subject` is {subject}, must be repo:OWNER/NAME:environment: with {expected}"
    issuer = str(item.value("issuer", ""))
    # An enterprise may have its own issuer, whose URL begins with GitHub's.
    if issuer != ISSUER and not issuer.startswith(f"{ISSUER}/"):
        yield f"`issuer` is {issuer}, must be {ISSUER}"


@RULES.stack(
    "federation-separate", "What trains cannot release, and what releases cannot train.", "own"
)
def _separate(items: Sequence[Item], limits: Limits) -> StackFindings:
    """No identity has more than one credential, or a role of another purpose."""
    identities = users_of(items, [Kind.CREDENTIAL], "resourceName")
    for credentials in identities.values():
        for credential in credentials[1:]:
            yield credential, f"signs in as the identity of `{credentials[0].name}` too"
    for item in items:
        if item.kind != Kind.ROLE_ASSIGNMENT:
            continue
        for urn in item.sources("principalId") & identities.keys():
            for credential in identities[urn]:
                purpose = str(credential.value("subject", "")).rpartition("-")[2]
                if role(item) not in WORKFLOWS.get(purpose, frozenset()):
                    yield item, f"grants {role(item)} to the workflows of `{credential.name}`"
