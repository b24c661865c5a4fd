"""Identities without secrets, and all role assignments of an environment, with least privilege.

Roles of a workspace's own identity: learn.microsoft.com/azure/machine-learning/
how-to-identity-based-service-authentication (user-assigned managed identity).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.program.compute import Workstations
from infra.program.monitoring import Monitoring
from infra.program.registries import Assets, Registry
from infra.program.site import Component, Options, Site
from infra.program.storage import OnlineStore, Storage, Vault
from infra.program.workspace import FeatureStore, Workspace
from infra.settings.model import FEATURES, Settings
from infra.settings.workflows import (
    BLOB_WRITER,
    COLLECTED,
    JOB_SUBMITTER,
    OF_JOBS,
    OF_UPLOADS,
    REGISTRY_PUBLISHER,
    RELEASER,
    RELEASES,
    Purpose,
    reads_except,
    role_id,
    subject,
    writes_only,
)
from ml.core.azure import APPROVER, AUDIENCE, ISSUER


class Identity(Component):
    """Identities of the workspace, each cluster, the endpoints and the workflows."""

    def __init__(self, name: str, site: Site, opts: Options = None) -> None:
        super().__init__("identity:Identity", name, opts, "identity")
        self._site, settings = site, site.settings
        self.workspace = self._identity("workspace")
        self.endpoints = self._identity("endpoints")
        self.train, self.release = self._workflow("train"), self._workflow("release")
        self.watch = self._workflow("watch")
        encrypted = settings.storage.customer_managed_key
        self.encryption = self._identity("encryption") if encrypted else None
        self.features = self._identity("features") if settings.has_features else None
        self.clusters = {
            cluster.name: self._identity(f"cluster-{cluster.name}") for cluster in settings.computes
        }
        self.register_outputs({})

    def _workflow(self, purpose: Purpose) -> managedidentity.UserAssignedIdentity:
        """Create a workflow's identity with one credential: Azure rejects concurrent writes."""
        identity = self._identity(purpose)
        managedidentity.FederatedIdentityCredential(
            self.child(f"github-{purpose}"),
            resource_group_name=self._site.group,
            resource_name_=identity.name,
            federated_identity_credential_resource_name="github-environment",
            issuer=ISSUER,
            subject=subject(self._site.settings, purpose),
            audiences=[AUDIENCE],
            opts=pulumi.ResourceOptions(parent=identity),
        )
        return identity

    def _identity(self, name: str) -> managedidentity.UserAssignedIdentity:
        return managedidentity.UserAssignedIdentity(
            self.child(name),
            resource_name_=self._site.names.local("id", name),
            **self._site.place,
            opts=pulumi.ResourceOptions(parent=self),
        )


@dataclass(frozen=True)
class Grant:
    """A role assignment: a role of an assignee on a scope."""

    name: str
    assignee: managedidentity.UserAssignedIdentity | str  # the object id of a person or group
    role: str  # of ROLES or CUSTOM_ROLES
    scope: pulumi.Input[str]
    condition: str | None = None  # limits the role (role-based-access-control/conditions-overview)
    to_group: bool = False  # `assignee` is a group

    @property
    def kind(self) -> Literal["Group", "User", "ServicePrincipal"]:
        """The principal type, which Azure needs because Entra may not find a new identity yet."""
        if self.to_group:
            return "Group"
        return "User" if isinstance(self.assignee, str) else "ServicePrincipal"


# Azure Resource Manager responds before a new role assignment has propagated. A resource that uses
# it at once is rejected, or created without its datastores (MicrosoftDocs/azure-docs#111772,
# Azure/azure-cli#22510). Propagation cannot be polled; Azure's own modules wait as long as this.
PROPAGATION_S = 120


async def wait_for_propagation(args: pulumi.ResourceHookArgs) -> None:
    """Wait until a newly created role assignment has propagated; its dependents wait too."""
    await asyncio.sleep(PROPAGATION_S)


class Grants(Component):
    """Role assignments; a resource that needs them must depend on `assignments`."""

    def __init__(
        self, name: str, site: Site, grants: Iterable[Grant], opts: Options = None
    ) -> None:
        usual = ("rights", "workspace-rights", "encryption-rights")
        super().__init__("identity:Grants", name, opts, *usual)
        hook = pulumi.ResourceHook(f"{name}-count", wait_for_propagation)
        self._hooks = pulumi.ResourceHookBinding(after_create=[hook])
        self.assignments = [self._assignment(name, site, grant) for grant in grants]
        self.register_outputs({})

    def _assignment(self, name: str, site: Site, grant: Grant) -> authorization.RoleAssignment:
        subscription = site.settings.subscription
        # A resource of another stack has a known id, maybe in another subscription. A custom role
        # must be defined in the subscription where it is assigned.
        is_known = isinstance(grant.scope, str) and grant.scope.startswith("/subscriptions/")
        scope_subscription = str(grant.scope).split("/")[2] if is_known else subscription
        definition_id = role_id(grant.role, scope_subscription)
        definition = f"providers/Microsoft.Authorization/roleDefinitions/{definition_id}"
        key = f"{subscription}/{site.names.group}/{name}/{grant.name}/{grant.role}"
        return authorization.RoleAssignment(
            self.child(grant.name),
            # Stable, and different per role, because Azure cannot change the role of an assignment.
            role_assignment_name=str(uuid.uuid5(uuid.NAMESPACE_URL, key)),
            principal_id=grant.assignee
            if isinstance(grant.assignee, str)
            else grant.assignee.principal_id,
            principal_type=grant.kind,
            role_definition_id=f"/subscriptions/{scope_subscription}/{definition}",
            scope=grant.scope,
            condition=grant.condition,
            condition_version="2.0" if grant.condition else None,
            description=f"{grant.role}: {grant.name}",
            opts=pulumi.ResourceOptions(parent=self, hooks=self._hooks),
        )


READ_BLOBS, WRITE_BLOBS = "Storage Blob Data Reader", "Storage Blob Data Contributor"
WRITE_FILES = "Storage File Data Privileged Contributor"
_LAKE = {"read": READ_BLOBS, "write": BLOB_WRITER.name}
# Conditions on the workspace's storage account, so that only releases can write the audit log.
_BY_JOBS = writes_only(*OF_JOBS, except_path=COLLECTED)
_BY_CLIENTS = writes_only(*OF_JOBS, *OF_UPLOADS, except_path=COLLECTED)
_BY_ENDPOINTS = writes_only(*OF_JOBS, path=COLLECTED)
_BY_RELEASES = writes_only(*OF_JOBS, *OF_UPLOADS, RELEASES)


def roles_before_workspace(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    vault: Vault,
    registry: Registry,
    monitoring: Monitoring,
    assets: Assets | None,
    redis: OnlineStore | None,
) -> list[Grant]:
    """Return the role assignments that must exist before the workspace is created."""
    workspace, images, operator = identity.workspace, registry.id, "Managed Identity Operator"
    account, lake = storage.workspace.id, storage.lake.id
    holders = {"workspace": workspace} | (
        {"features": identity.features} if identity.features else {}
    )
    grants = [
        grant
        for name, holder in holders.items()
        for grant in (
            Grant(f"{name}-storage", holder, "Contributor", account),
            Grant(f"{name}-storage-blobs", holder, WRITE_BLOBS, account),
            Grant(f"{name}-storage-files", holder, WRITE_FILES, account),
            Grant(f"{name}-vault", holder, "Contributor", vault.id),
            Grant(f"{name}-vault-secrets", holder, "Key Vault Administrator", vault.id),
            Grant(f"{name}-images", holder, "Contributor", images),
            Grant(f"{name}-insights", holder, "Contributor", monitoring.insights.id),
        )
    ]
    if identity.features:
        offline = storage.containers[FEATURES].id
        grants.append(Grant("features-offline-store", identity.features, READ_BLOBS, offline))
    grants += [
        Grant("workspace-lake", workspace, READ_BLOBS, lake),
        Grant("endpoints-images", identity.endpoints, "AcrPull", images),
        # To read models; a `data_collector` writes requests (how-to-collect-production-data).
        Grant("endpoints-storage", identity.endpoints, BLOB_WRITER.name, account, _BY_ENDPOINTS),
        # Uploads to a datastore without credentials use this identity, and a user-delegation SAS
        # that it signs grants no more than its own roles
        # (rest/api/storageservices/create-user-delegation-sas).
        Grant("train-storage", identity.train, BLOB_WRITER.name, account, _BY_CLIENTS),
        Grant("train-lake", identity.train, READ_BLOBS, lake),
        Grant("release-storage", identity.release, BLOB_WRITER.name, account, _BY_RELEASES),
        # To read the audit log, and the requests and responses that a `data_collector` wrote.
        Grant("watch-storage", identity.watch, READ_BLOBS, account),
        # A release updates the endpoint including its identity, which requires this role
        # (role-based-access-control/built-in-roles, "Managed Identity Operator").
        Grant("release-endpoints", identity.release, operator, identity.endpoints.id),
    ]
    # The studio must read the private endpoints of storage (how-to-enable-studio-virtual-network).
    grants += [
        Grant(f"workspace-sees-{name}", workspace, "Reader", endpoint.id)
        for name, endpoint in storage.endpoints.items()
    ]
    if settings.network.isolation == "managed":
        # Also for the shared registry: how-to-managed-network, "Approval of private endpoints".
        grants += [
            Grant(f"workspace-approves-{name}", workspace, APPROVER, scope)
            for name, scope in (
                ("storage", account),
                ("lake", lake),
                ("vault", vault.id),
                ("images", images),
                *([("share", storage.share.id)] if storage.share else []),
                *([("redis", redis.cluster.id)] if redis else []),
                *((f"assets-{part}", id) for part, id in (assets.parts if assets else {}).items()),
            )
        ]
    for cluster in settings.computes:
        name, assignee = f"cluster-{cluster.name}", identity.clusters[cluster.name]
        # Only the image builder's identity pushes images. Like any job, a build reads sources and
        # writes its log (how-to-disable-local-auth-storage).
        is_builder = cluster == settings.builder
        grants += [
            Grant(f"{name}-images", assignee, "AcrPush" if is_builder else "AcrPull", images),
            Grant(f"{name}-storage", assignee, BLOB_WRITER.name, account, _BY_JOBS),
        ]
        if is_builder:
            continue
        # A parallel step distributes its work through queues and tables
        # (how-to-disable-local-auth-storage, "Scenarios for role assignments").
        grants += [
            Grant(f"{name}-queues", assignee, "Storage Queue Data Contributor", account),
            Grant(f"{name}-tables", assignee, "Storage Table Data Contributor", account),
            Grant(f"{name}-lake", assignee, _LAKE[cluster.lake], lake),
        ]
    return grants


def roles_after_workspace(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    workspace: Workspace,
    assets: Assets | None,
    features: FeatureStore | None,
    vms: Workstations | None,
) -> Iterator[Grant]:
    """Yield the role assignments to create after the workspace, including those of people."""
    scope = workspace.workspace.id
    if features and identity.features:
        itself = features.workspace.id
        yield Grant("features-itself", identity.features, "Contributor", itself)
    yield Grant("workspace-itself", identity.workspace, "Contributor", scope)
    yield Grant("train-workspace", identity.train, JOB_SUBMITTER.name, scope)
    yield Grant("release-workspace", identity.release, RELEASER.name, scope)
    yield Grant("watch-workspace", identity.watch, "Reader", scope)
    # A canary reads metrics and the request log.
    yield Grant("release-monitoring", identity.release, "Monitoring Reader", scope)
    yield Grant("endpoints-metrics", identity.endpoints, "AzureML Metrics Writer (preview)", scope)
    if assets:
        yield Grant("release-assets", identity.release, REGISTRY_PUBLISHER.name, assets.id)
        # Read-only (how-to-manage-registries, "Allow users to use assets"): another environment
        # might serve what a job writes there.
        yield Grant("train-assets", identity.train, "Reader", assets.id)
        yield Grant("watch-assets", identity.watch, "Reader", assets.id)
        yield Grant("endpoints-assets", identity.endpoints, "Reader", assets.id)
        for cluster in settings.clusters:
            assignee = identity.clusters[cluster.name]
            yield Grant(f"cluster-{cluster.name}-assets", assignee, "Reader", assets.id)
    # One set of assignments per person, since Azure rejects duplicates (RoleAssignmentExists). The
    # name has the person's id, so that it survives the removal of one of several instances.
    instances = settings.machines("compute-instance")
    for person in dict.fromkeys(instance.person.lower() for instance in instances):
        yield from _data_scientist(f"person-{person}", person, storage, scope)
    groups = settings.groups
    if groups.data_scientists:
        members = _data_scientist("data-scientists", groups.data_scientists, storage, scope)
        yield from (replace(grant, to_group=True) for grant in members)
    if groups.reviewers:
        # The people of `platform:reviewers` approve in GitHub; they read evidence, reports and the
        # audit log, which are blobs.
        who, account, read = groups.reviewers, storage.workspace.id, reads_except(COLLECTED)
        yield Grant("reviewers-workspace", who, "Reader", scope, to_group=True)
        yield Grant("reviewers-blobs", who, READ_BLOBS, account, read, to_group=True)
        if assets:
            yield Grant("reviewers-assets", who, "Reader", assets.id, to_group=True)
    for role in ("Reader", "Monitoring Reader") if groups.operators else ():
        name = f"operators-{role.rpartition(' ')[0].lower() or 'workspace'}"
        yield Grant(name, groups.operators, role, scope, to_group=True)
    for machine in settings.machines("data-science-vm"):
        if vms:
            vm = vms.machines[machine.name].id
            role = "Virtual Machine User Login"
            yield Grant(f"person-{machine.name}-sign-in", machine.person, role, vm)


def _data_scientist(
    name: str, principal: str, storage: Storage, workspace: pulumi.Input[str]
) -> Iterator[Grant]:
    """Yield the roles of a person, or of a group's members, who submit jobs."""
    yield Grant(f"{name}-workspace", principal, "AzureML Data Scientist", workspace)
    # A compute instance mounts its file share as the person (how-to-disable-local-auth-storage,
    # "Scenarios for role assignments").
    blobs, account = BLOB_WRITER.name, storage.workspace.id
    yield Grant(f"{name}-blobs", principal, blobs, account, _BY_CLIENTS)
    yield Grant(f"{name}-files", principal, WRITE_FILES, account)
    # A compute instance reads a datastore without credentials as the person
    # (how-to-identity-based-service-authentication, "Accessing storage services").
    yield Grant(f"{name}-lake", principal, READ_BLOBS, storage.lake.id)
