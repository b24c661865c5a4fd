"""Identities without secrets, and every role that an environment grants: least privilege.

Roles of a workspace's own identity: learn.microsoft.com/azure/machine-learning/
how-to-identity-based-service-authentication (user-assigned managed identity).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.program.compute import Workstations
from infra.program.monitoring import Monitoring
from infra.program.registry import Assets, Registry
from infra.program.site import Site
from infra.program.storage import Storage, Vault
from infra.program.workspace import Workspace
from infra.settings.model import Settings
from infra.settings.workflows import CUSTOM_ROLES, JOB_SUBMITTER, RELEASER, Purpose, subject


class Identity(pulumi.ComponentResource):
    """Identities of the workspace, each cluster, the endpoints and the workflows."""

    def __init__(self, name: str, site: Site) -> None:
        super().__init__("platform:identity:Identity", name)
        self._site, settings = site, site.settings
        self.workspace = self._identity("workspace")
        self.endpoints = self._identity("endpoints")
        self.train, self.release = self._workflow("train"), self._workflow("release")
        self.watch = self._workflow("watch")
        encrypted = settings.storage.customer_managed_key
        self.encryption = self._identity("encryption") if encrypted else None
        self.clusters = {
            cluster.name: self._identity(f"cluster-{cluster.name}") for cluster in settings.computes
        }
        self.register_outputs({})

    def _workflow(self, purpose: Purpose) -> managedidentity.UserAssignedIdentity:
        """One credential an identity: Azure refuses two concurrent writes."""
        identity = self._identity(purpose)
        managedidentity.FederatedIdentityCredential(
            f"github-{purpose}",
            resource_group_name=self._site.group,
            resource_name_=identity.name,
            federated_identity_credential_resource_name="github-environment",
            issuer="https://token.actions.githubusercontent.com",
            subject=subject(self._site.settings, purpose),
            audiences=["api://AzureADTokenExchange"],
            opts=pulumi.ResourceOptions(parent=identity),
        )
        return identity

    def _identity(self, name: str) -> managedidentity.UserAssignedIdentity:
        return managedidentity.UserAssignedIdentity(
            name,
            resource_name_=self._site.names.local("id", name),
            **self._site.place,
            opts=pulumi.ResourceOptions(parent=self),
        )


# learn.microsoft.com/azure/role-based-access-control/built-in-roles
ROLES: Mapping[str, str] = {
    "AcrPull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "AcrPush": "8311e382-0749-4cb8-b61a-304f252e45ec",
    "Azure AI Enterprise Network Connection Approver": "b556d68e-0be0-4f35-a333-ad7ee1ce17ea",
    "AzureML Data Scientist": "f6c7c914-8db3-469d-8ca1-694a8f32e121",
    "AzureML Metrics Writer (preview)": "635dd51f-9968-44d3-b7fb-6d9a6bd613ae",
    "AzureML Registry User": "1823dd4f-9b8c-4ab6-ab4e-7397a3684615",
    "Contributor": "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "Key Vault Administrator": "00482a5a-887f-4fb3-b363-3b7fe8e74483",
    "Key Vault Crypto Service Encryption User": "e147488a-f6f5-4113-8e2d-b22465e65bf6",
    "Managed Identity Operator": "f1a07417-d97a-45cb-824c-7a7467783830",
    "Monitoring Reader": "43d0d8ad-25c7-4714-9337-8ba259a9fe05",
    "Reader": "acdd72a7-3385-48ef-bd42-f606fba81ae7",
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "Storage File Data Privileged Contributor": "69566ab7-960f-475b-8e7c-b3118f30c6bd",
    "Storage Queue Data Contributor": "974c5e8b-45b9-4653-ba55-5f855dd0fb88",
    "Storage Table Data Contributor": "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3",
    "Virtual Machine User Login": "fb879df8-f326-4884-b1cf-06f3ad86be52",
}


@dataclass(frozen=True)
class Grant:
    """A role of `ROLES` or `CUSTOM_ROLES` on a scope.

    It is for an identity or for the person with an object id.
    """

    name: str
    assignee: managedidentity.UserAssignedIdentity | str
    role: str
    scope: pulumi.Input[str]

    @property
    def kind(self) -> Literal["User", "ServicePrincipal"]:
        """The type of the principal; stated, because Entra may not find a new identity yet."""
        return "User" if isinstance(self.assignee, str) else "ServicePrincipal"


class Grants(pulumi.ComponentResource):
    """Role assignments; resources that need them depend on `assignments`."""

    def __init__(self, name: str, site: Site, grants: Iterable[Grant]) -> None:
        super().__init__("platform:identity:Grants", name)
        self.assignments = [self._assignment(name, site, grant) for grant in grants]
        self.register_outputs({})

    def _assignment(self, name: str, site: Site, grant: Grant) -> authorization.RoleAssignment:
        definition = f"providers/Microsoft.Authorization/roleDefinitions/{self._id(site, grant)}"
        key = f"{site.settings.subscription}/{site.names.group}/{name}/{grant.name}/{grant.role}"
        return authorization.RoleAssignment(
            grant.name,
            # Stable, and different for each role: Azure refuses to change an assignment's role.
            role_assignment_name=str(uuid.uuid5(uuid.NAMESPACE_URL, key)),
            principal_id=grant.assignee
            if isinstance(grant.assignee, str)
            else grant.assignee.principal_id,
            principal_type=grant.kind,
            role_definition_id=f"/subscriptions/{site.settings.subscription}/{definition}",
            scope=grant.scope,
            description=f"{grant.role}: {grant.name}",
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _id(self, site: Site, grant: Grant) -> str:
        custom = {role.name: role.id(site.settings.subscription) for role in CUSTOM_ROLES}
        return custom.get(grant.role) or ROLES[grant.role]


READ_BLOBS, WRITE_BLOBS = "Storage Blob Data Reader", "Storage Blob Data Contributor"
WRITE_FILES = "Storage File Data Privileged Contributor"
_LAKE = {"read": READ_BLOBS, "write": WRITE_BLOBS}


def roles_before_workspace(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    vault: Vault,
    registry: Registry,
    monitoring: Monitoring,
    assets: Assets | None,
) -> list[Grant]:
    """The roles that must exist before the workspace."""
    own, images, operator = identity.workspace, registry.registry.id, "Managed Identity Operator"
    account, lake = storage.workspace.id, storage.lake.id
    grants = [
        Grant("workspace-storage", own, "Contributor", account),
        Grant("workspace-storage-blobs", own, WRITE_BLOBS, account),
        Grant("workspace-storage-files", own, WRITE_FILES, account),
        Grant("workspace-vault", own, "Contributor", vault.vault.id),
        Grant("workspace-vault-secrets", own, "Key Vault Administrator", vault.vault.id),
        Grant("workspace-images", own, "Contributor", images),
        Grant("workspace-insights", own, "Contributor", monitoring.insights.id),
        Grant("workspace-lake", own, READ_BLOBS, lake),
        Grant("endpoints-images", identity.endpoints, "AcrPull", images),
        # Reads models; a `data_collector` writes requests (how-to-collect-production-data).
        Grant("endpoints-storage", identity.endpoints, WRITE_BLOBS, account),
        # Uploads to a datastore without credentials use this identity, and a user-delegation SAS
        # that it signs grants no more than its own roles
        # (rest/api/storageservices/create-user-delegation-sas).
        Grant("train-storage", identity.train, WRITE_BLOBS, account),
        Grant("train-lake", identity.train, WRITE_BLOBS, lake),
        Grant("release-storage", identity.release, WRITE_BLOBS, account),
        # The audit log, and the requests and answers that a `data_collector` wrote.
        Grant("watch-storage", identity.watch, READ_BLOBS, account),
        # A release updates the endpoint including its identity, which requires this role
        # (role-based-access-control/built-in-roles, "Managed Identity Operator").
        Grant("release-endpoints", identity.release, operator, identity.endpoints.id),
    ]
    # The studio needs it to find the resources behind them (how-to-enable-studio-virtual-network).
    grants += [
        Grant(f"workspace-sees-{name}", own, "Reader", endpoint.id)
        for name, endpoint in storage.endpoints.items()
    ]
    if settings.network.isolation == "managed":
        approver = "Azure AI Enterprise Network Connection Approver"
        # Also for the shared registry: how-to-managed-network, "Approval of private endpoints".
        grants += [
            Grant(f"workspace-approves-{name}", own, approver, scope)
            for name, scope in (
                ("storage", account),
                ("lake", lake),
                ("vault", vault.vault.id),
                ("images", images),
                *([("share", storage.share.id)] if storage.share else []),
                *((f"assets-{part}", id) for part, id in (assets.parts if assets else {}).items()),
            )
        ]
    for cluster in settings.clusters:
        name, assignee = f"cluster-{cluster.name}", identity.clusters[cluster.name]
        grants += [
            Grant(f"{name}-images", assignee, "AcrPull", images),
            Grant(f"{name}-storage", assignee, WRITE_BLOBS, account),
            # A parallel step distributes its work through them (how-to-disable-local-auth-storage,
            # "Scenarios for role assignments").
            Grant(f"{name}-queues", assignee, "Storage Queue Data Contributor", account),
            Grant(f"{name}-tables", assignee, "Storage Table Data Contributor", account),
            Grant(f"{name}-lake", assignee, _LAKE[cluster.lake], lake),
        ]
    if settings.builder:
        # The only identity that pushes images. Like any job it reads sources and writes its log
        # (how-to-disable-local-auth-storage).
        name, assignee = (
            f"cluster-{settings.builder.name}",
            identity.clusters[settings.builder.name],
        )
        grants += [
            Grant(f"{name}-images", assignee, "AcrPush", images),
            Grant(f"{name}-storage", assignee, WRITE_BLOBS, account),
        ]
    return grants


def roles_after_workspace(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    workspace: Workspace,
    assets: Assets | None,
    vms: Workstations | None,
) -> Iterator[Grant]:
    """The roles on the workspace, on the shared registry and on VMs."""
    scope = workspace.workspace.id
    yield Grant("workspace-itself", identity.workspace, "Contributor", scope)
    yield Grant("train-workspace", identity.train, JOB_SUBMITTER.name, scope)
    yield Grant("release-workspace", identity.release, RELEASER.name, scope)
    yield Grant("watch-workspace", identity.watch, "Reader", scope)
    # A canary reads metrics and the request log.
    yield Grant("release-monitoring", identity.release, "Monitoring Reader", scope)
    yield Grant("endpoints-metrics", identity.endpoints, "AzureML Metrics Writer (preview)", scope)
    if assets:
        yield Grant("release-assets", identity.release, "AzureML Registry User", assets.id)
        # Read-only (how-to-manage-registries, "Allow users to use assets"): another environment
        # might serve what a job writes there.
        yield Grant("train-assets", identity.train, "Reader", assets.id)
        yield Grant("watch-assets", identity.watch, "Reader", assets.id)
        yield Grant("endpoints-assets", identity.endpoints, "Reader", assets.id)
        for cluster in settings.clusters:
            assignee = identity.clusters[cluster.name]
            yield Grant(f"cluster-{cluster.name}-assets", assignee, "Reader", assets.id)
    for instance in settings.machines("compute-instance"):
        # Its files are a share, mounted as the person (how-to-disable-local-auth-storage,
        # "Scenarios for role assignments").
        name, assignee = instance.name, instance.person
        yield Grant(f"person-{name}-workspace", assignee, "AzureML Data Scientist", scope)
        yield Grant(f"person-{name}-blobs", assignee, WRITE_BLOBS, storage.workspace.id)
        yield Grant(f"person-{name}-files", assignee, WRITE_FILES, storage.workspace.id)
        # There a datastore without credentials is read as the person
        # (how-to-identity-based-service-authentication, "Accessing storage services").
        yield Grant(f"person-{name}-lake", assignee, READ_BLOBS, storage.lake.id)
    for machine in settings.machines("data-science-vm"):
        if vms:
            vm = vms.machines[machine.name].id
            role = "Virtual Machine User Login"
            yield Grant(f"person-{machine.name}-sign-in", machine.person, role, vm)
