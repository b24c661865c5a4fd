"""The identities of GitHub's workflows: each purpose has a GitHub environment and a token subject.

A workflow that trains cannot deploy infrastructure, and one that deploys an environment cannot
change another. Each identity has one credential, whose subject names one GitHub environment.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from infra.settings.model import Settings
from ml.core.azure import APPROVER, ROLES

# preview: reads an environment and its state. train: submits jobs to its workspace. release:
# changes its endpoints and the shared registry. watch: reads both, and the requests to its models.
# deploy: changes its infrastructure.
Purpose = Literal["preview", "train", "release", "watch", "deploy"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
# `infra bootstrap` creates the identities of the former, the Pulumi program those of the latter.
BEFORE_THE_PROGRAM: tuple[Purpose, ...] = ("preview", "deploy")
OF_THE_PROGRAM: tuple[Purpose, ...] = ("train", "release", "watch")
# Purposes whose jobs need an approval.
REVIEWED: tuple[Purpose, ...] = ("release", "deploy")


def purposes(settings: Settings) -> tuple[Purpose, ...]:
    """Return the purposes of a stack; that of the shared registry has only preview and deploy."""
    return BEFORE_THE_PROGRAM if settings.makes_registry else PURPOSES


def github_environment(settings: Settings, purpose: Purpose) -> str:
    """Return the GitHub environment that jobs of this purpose name."""
    return f"{settings.environment}-{purpose}"


def subject(settings: Settings, purpose: Purpose) -> str:
    """Return the `sub` claim of a job's token (docs.github.com/actions/reference/security/oidc)."""
    return f"repo:{settings.repository}:environment:{github_environment(settings, purpose)}"


_ML, _BLOBS = "Microsoft.MachineLearningServices", "Microsoft.Storage"
_CONTAINERS = f"{_BLOBS}/storageAccounts/blobServices/containers"
_PATH = f"@Resource[{_CONTAINERS}/blobs:path]"
# Resource types of a workspace by azure-rest-api-specs; `how-to-assign-roles` lists those that a
# job needs, partly by older names.
_READ = (
    *("jobs", "experiments", "experiments/runs", "experiments/jobs", "computes", "datastores"),
    *("metadata/artifacts", "metadata/snapshots", "metadata/codes", "metadata/codes/versions"),
    *("onlineEndpoints", "onlineEndpoints/deployments", "schedules"),
)
_ASSETS = ("codes", "components", "data", "datasets", "environments", "models")


def _assets(verb: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}{part}/{verb}" for kind in kinds for part in ("", "/versions"))


def _workspace(*actions: str) -> tuple[str, ...]:
    """Return the given actions on a workspace, and all read actions except on secrets."""
    reads = ("read", *(f"{part}/read" for part in _READ), *_assets("read", *_ASSETS))
    return tuple(f"{_ML}/workspaces/{action}" for action in (*reads, *actions))


@dataclass(frozen=True)
class CustomRole:
    """A custom role. It lists its actions without wildcards, so that new resource types of the
    service are not allowed automatically.
    """

    name: str
    description: str
    actions: tuple[str, ...]
    data_actions: tuple[str, ...] = ()

    def id(self, subscription: str) -> str:
        """Return the role's GUID, the same for every platform in the subscription."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{subscription.lower()}/{self.name}"))

    def permissions(self, actions: object) -> Mapping[str, object]:
        """Return the role's permissions with these `actions`, in Azure's format."""
        return {
            "actions": actions,
            "notActions": [],
            "dataActions": self.data_actions,
            "notDataActions": [],
        }

    def definition(self, subscription: str, actions: object) -> Mapping[str, object]:
        """Return the body of a PUT of `Microsoft.Authorization/roleDefinitions`, 2022-04-01."""
        return {
            "properties": {
                # Must be unique in the tenant.
                "roleName": f"{self.name} ({subscription})",
                "description": self.description,
                "assignableScopes": [f"/subscriptions/{subscription}"],
                "permissions": [self.permissions(actions)],
            }
        }


JOB_SUBMITTER = CustomRole(
    "AzureML Job Submitter",
    "Trains in a workspace, and registers nothing that serves there.",
    _workspace(
        "jobs/write",
        "jobs/cancel/action",
        "experiments/write",
        "experiments/runs/write",
        "experiments/runs/submit/action",
        *_assets("write", "codes", "components", "data", "environments"),
        "codes/versions/startPendingUpload/action",
        "environments/build/action",
        "environments/readSecrets/action",
        "metadata/artifacts/write",
        "metadata/codes/write",
        "metadata/codes/versions/write",
    ),
)
RELEASER = CustomRole(
    "AzureML Releaser",
    "Changes the deployments, traffic and models of a workspace; cannot run jobs.",
    _workspace(
        "onlineEndpoints/write",
        "onlineEndpoints/score/action",
        "onlineEndpoints/deployments/write",
        "onlineEndpoints/deployments/delete",
        "onlineEndpoints/deployments/getLogs/action",
        *_assets("write", "codes", "environments", "models"),
        "codes/versions/startPendingUpload/action",
    ),
)
# The built-in Storage Blob Data Contributor may delete whole containers. No condition can prevent
# that, because it is not a data action (role-based-access-control/conditions-format).
BLOB_WRITER = CustomRole(
    "AzureML Blob Writer",
    "Reads and writes blobs; cannot make, change or delete containers.",
    (
        f"{_CONTAINERS}/read",
        f"{_BLOBS}/storageAccounts/blobServices/generateUserDelegationKey/action",
    ),
    tuple(
        f"{_CONTAINERS}/blobs/{verb}"
        for verb in ("read", "write", "delete", "add/action", "move/action")
    ),
)
# The built-in AzureML Registry User may also delete models that environments serve or roll back to
# (how-to-manage-registries, "Manage access to registries").
REGISTRY_PUBLISHER = CustomRole(
    "AzureML Registry Publisher",
    "Adds versions to a shared registry, and removes none.",
    tuple(
        f"{_ML}/registries/{action}"
        for action in ("read", "assets/read", "assets/write", "assets/stage/write")
    ),
)
CUSTOM_ROLES = (JOB_SUBMITTER, RELEASER, BLOB_WRITER, REGISTRY_PUBLISHER)
# Roles that an environment assigns on its shared registry and on the registry's accounts.
ON_REGISTRY = ("Reader", APPROVER, REGISTRY_PUBLISHER.name)
# The container of releases: the audit log, and the last written state of each endpoint.
RELEASES = "releases"
# The path of a `data_collector`'s requests and responses (how-to-collect-production-data). They are
# in the container of job outputs, where jobs of other projects must not read them.
COLLECTED = "modelDataCollector/*"
# The containers of a workspace's two blob datastores, which hold job outputs.
OF_JOBS = ("azureml", "azureml-blobstore-*")
# The containers that Azure ML creates for uploaded code, named by a GUID.
OF_UPLOADS = ("-".join("?" * digits for digits in (8, 4, 4, 4, 12)),)


def writes_only(*containers: str, path: str = "", except_path: str = "") -> str:
    """Return the condition of a role assignment that writes only blobs of these containers.

    `path` limits writing to paths that match; paths that match `except_path` are neither written
    nor read. `*` matches any text, `?` one character
    (role-based-access-control/conditions-format, StringLike).
    """
    writes = " AND ".join(
        f"!(ActionMatches{{'{action}'}})"
        for action in BLOB_WRITER.data_actions
        if not action.endswith("/read")
    )
    names = " OR ".join(
        f"@Resource[{_CONTAINERS}:name] StringLike '{container}'" for container in containers
    )
    below = f" AND ({_PATH} StringLike '{path}')" if path else ""
    if not except_path:
        return f"(({writes}) OR (({names}){below}))"
    excluded = f"({_PATH} StringNotLike '{except_path}')"
    return f"(({writes}) OR (({names}){below} AND {excluded})) AND {reads_except(except_path)}"


def reads_except(path: str) -> str:
    """Return the condition of a role assignment that can list, but not read, blobs at `path`
    (storage/blobs/storage-auth-abac-examples, "Read blobs … with a path").
    """
    reads = (
        f"!(ActionMatches{{'{_CONTAINERS}/blobs/read'}} AND NOT SubOperationMatches{{'Blob.List'}})"
    )
    return f"(({reads}) OR ({_PATH} StringNotLike '{path}'))"


# Roles that assign roles: role-based-access-control/delegate-role-assignments-examples.
ROLE_MANAGERS: Mapping[str, str] = {
    "Owner": "8e3af657-a8ff-443c-a75c-2fe8c4bcb635",
    "Role Based Access Control Administrator": "f58310d9-a9f6-439a-9e8d-f62e7b41a168",
    "User Access Administrator": "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9",
}


def role_id(name: str, subscription: str) -> str:
    """Return the GUID of a built-in role of `ROLES`, or of a custom role in `subscription`."""
    custom = {role.name: role.id(subscription) for role in CUSTOM_ROLES}
    return custom.get(name) or ROLES[name]


def role_name(definition: str) -> str:
    """Return the name of the role with this `roleDefinitionId`; its GUID if unknown.

    The id decides what Azure grants; the description of an assignment may claim another role.
    """
    *scope, id = definition.lower().rstrip("/").split("/")
    custom = {role.id("".join(scope[2:3])): role.name for role in CUSTOM_ROLES}
    named = {guid: name for name, guid in [*ROLES.items(), *ROLE_MANAGERS.items()]}
    return {**named, **custom}.get(id, id)
