"""Least privilege: every right that an environment grants, in one place.

What a workspace's own identity needs: learn.microsoft.com/azure/machine-learning/
how-to-identity-based-service-authentication (user-assigned managed identity).
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.components.assets import Assets
from infra.components.grants import Grant
from infra.components.identity import Identity
from infra.components.monitoring import Monitoring
from infra.components.registry import Registry
from infra.components.storage import Storage
from infra.components.vault import Vault
from infra.components.workspace import Workspace
from infra.components.workstations import Workstations
from infra.settings import Settings

_LAKE = {"read": "Storage Blob Data Reader", "write": "Storage Blob Data Contributor"}


def before(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    vault: Vault,
    registry: Registry,
    monitoring: Monitoring,
    assets: Assets | None,
) -> list[Grant]:
    """The rights on what the workspace stands on; it is made once they are there."""
    own, images = identity.workspace, registry.registry.id
    blobs = "Storage Blob Data Contributor"
    grants = [
        Grant("workspace-storage", own, "Contributor", storage.workspace.id),
        Grant("workspace-storage-blobs", own, blobs, storage.workspace.id),
        Grant(
            "workspace-storage-files",
            own,
            "Storage File Data Privileged Contributor",
            storage.workspace.id,
        ),
        Grant("workspace-vault", own, "Contributor", vault.vault.id),
        Grant("workspace-vault-secrets", own, "Key Vault Administrator", vault.vault.id),
        Grant("workspace-images", own, "Contributor", images),
        Grant("workspace-insights", own, "Contributor", monitoring.insights.id),
        Grant("workspace-lake", own, "Storage Blob Data Reader", storage.lake.id),
        Grant("endpoints-images", identity.endpoints, "AcrPull", images),
        # It reads models, and a `data_collector` writes requests (how-to-collect-production-data).
        Grant("endpoints-storage", identity.endpoints, blobs, storage.workspace.id),
        # What it uploads to a datastore without credentials goes there under its own name, and a
        # user-delegation SAS that it signs gives no more than it has itself
        # (rest/api/storageservices/create-user-delegation-sas).
        Grant("pipeline-storage", identity.pipeline, blobs, storage.workspace.id),
        Grant("pipeline-lake", identity.pipeline, blobs, storage.lake.id),
        # A release writes the whole endpoint, its identity too, which takes the right to assign it
        # (role-based-access-control/built-in-roles, "Managed Identity Operator").
        Grant(
            "pipeline-endpoints",
            identity.pipeline,
            "Managed Identity Operator",
            identity.endpoints.id,
        ),
    ]
    # How the studio finds what is behind them (how-to-enable-studio-virtual-network).
    grants += [
        Grant(f"workspace-sees-{name}", own, "Reader", endpoint.id)
        for name, endpoint in storage.endpoints.items()
    ]
    if settings.network.isolation == "managed":
        approver = "Azure AI Enterprise Network Connection Approver"
        # The shared registry too: how-to-managed-network, "Approval of private endpoints".
        grants += [
            Grant(f"workspace-approves-{name}", own, approver, scope)
            for name, scope in (
                ("storage", storage.workspace.id),
                ("lake", storage.lake.id),
                ("vault", vault.vault.id),
                ("images", images),
                *([("share", storage.share.id)] if storage.share else []),
                *(
                    (f"assets-{what}", id)
                    for what, id in (assets.reached if assets else {}).items()
                ),
            )
        ]
    for cluster in settings.clusters:
        who = identity.clusters[cluster.name]
        grants += [
            Grant(f"cluster-{cluster.name}-images", who, "AcrPull", images),
            Grant(f"cluster-{cluster.name}-storage", who, blobs, storage.workspace.id),
            # What shares out the work of a parallel step (how-to-disable-local-auth-storage,
            # "Scenarios for role assignments").
            Grant(
                f"cluster-{cluster.name}-queues",
                who,
                "Storage Queue Data Contributor",
                storage.workspace.id,
            ),
            Grant(
                f"cluster-{cluster.name}-tables",
                who,
                "Storage Table Data Contributor",
                storage.workspace.id,
            ),
            Grant(f"cluster-{cluster.name}-lake", who, _LAKE[cluster.lake], storage.lake.id),
        ]
    if settings.builder:
        # The only one that puts images there. It reads what they are built from and, as any job
        # does, writes its log (how-to-disable-local-auth-storage).
        who = identity.clusters[settings.builder.name]
        grants += [
            Grant(f"cluster-{settings.builder.name}-images", who, "AcrPush", images),
            Grant(f"cluster-{settings.builder.name}-storage", who, blobs, storage.workspace.id),
        ]
    return grants


def after(
    settings: Settings,
    identity: Identity,
    storage: Storage,
    workspace: Workspace,
    assets: Assets | None,
    machines: Workstations | None,
) -> Iterator[Grant]:
    """The rights on the workspace, on the shared registry and on machines."""
    scope = workspace.workspace.id
    yield Grant("workspace-itself", identity.workspace, "Contributor", scope)
    yield Grant("pipeline-workspace", identity.pipeline, "AzureML Data Scientist", scope)
    yield Grant("endpoints-metrics", identity.endpoints, "AzureML Metrics Writer (preview)", scope)
    if assets:
        yield Grant("pipeline-assets", identity.pipeline, "AzureML Registry User", assets.id)
        # Who uses what is shared reads it (how-to-manage-registries, "Allow users to use assets"):
        # what a job could write there, another environment might serve.
        yield Grant("endpoints-assets", identity.endpoints, "Reader", assets.id)
        for cluster in settings.clusters:
            who = identity.clusters[cluster.name]
            yield Grant(f"cluster-{cluster.name}-assets", who, "Reader", assets.id)
    for instance in settings.machines("compute-instance"):
        # Its files are a share, mounted under the person's own name (how-to-disable-local-auth-
        # storage, "Scenarios for role assignments").
        name, who, files = (
            instance.name,
            instance.person,
            "Storage File Data Privileged Contributor",
        )
        yield Grant(f"person-{name}-workspace", who, "AzureML Data Scientist", scope)
        yield Grant(
            f"person-{name}-blobs", who, "Storage Blob Data Contributor", storage.workspace.id
        )
        yield Grant(f"person-{name}-files", who, files, storage.workspace.id)
        # A datastore without credentials is read under the person's name there
        # (how-to-identity-based-service-authentication, "Accessing storage services").
        yield Grant(f"person-{name}-lake", who, "Storage Blob Data Reader", storage.lake.id)
    for workstation in settings.workstations:
        if machines and workstation.name in machines.machines:
            vm = machines.machines[workstation.name].id
            yield Grant(
                f"person-{workstation.name}-sign-in",
                workstation.person,
                "Virtual Machine User Login",
                vm,
            )
