"""A whole stack: an environment with the roles between its components, or the shared registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pulumi

from infra.program.access import (
    Grant,
    Grants,
    Identity,
    roles_after_workspace,
    roles_before_workspace,
)
from infra.program.compute import Compute, ComputeArgs, Workstations
from infra.program.monitoring import STORAGE_METRICS, Guardrails, Monitoring
from infra.program.network import Network
from infra.program.registries import Assets, Registry, SharedRegistry
from infra.program.site import Site, site
from infra.program.storage import EncryptionKey, OnlineStore, Storage, Vault
from infra.program.workspace import Endpoints, FeatureStore, Workspace, WorkspaceArgs
from infra.settings.model import Settings


def provision(
    settings: Settings, sas: pulumi.Output[str] | None
) -> Mapping[str, pulumi.Input[str]]:
    """Declare all resources of the stack; return its outputs. `sas` is None if it is not used."""
    stack_site = site(settings)
    if settings.makes_registry:
        return _shared(stack_site)
    monitoring = Monitoring("monitoring", stack_site)
    identity = Identity("identity", stack_site)
    network = Network("network", stack_site) if settings.private else None
    if network and settings.makes_scope:
        monitoring.connect(network)
    vault = Vault("vault", stack_site, network)
    registry = Registry("registry", stack_site, network)
    assets = (
        Assets("assets", stack_site, network) if settings.asset_registry.mode != "none" else None
    )
    storage = Storage("storage", stack_site, network, _key(stack_site, vault, identity, network))
    redis = _online_store(stack_site, network, identity) if settings.has_redis else None
    before = roles_before_workspace(
        settings, identity, storage, vault, registry, monitoring, assets, redis
    )
    granted = Grants("rights", stack_site, before)
    args = WorkspaceArgs(
        site=stack_site,
        identity=identity.workspace,
        granted=granted.assignments,
        network=network,
        storage=storage,
        vault=vault,
        registry=registry,
        assets=assets,
        insights=monitoring.insights.id,
        sas=sas,
        redis=redis.cluster.id if redis else None,
    )
    workspace, features = Workspace("workspace", args), None
    if identity.features:
        features = FeatureStore("features", replace(args, identity=identity.features))
    vms = None
    if network and settings.machines("data-science-vm"):
        vms = Workstations("workstations", stack_site, network)
    after = roles_after_workspace(settings, identity, storage, workspace, assets, features, vms)
    roles = Grants("workspace-rights", stack_site, after)
    compute = Compute(
        "compute",
        ComputeArgs(
            site=stack_site,
            workspace=workspace.workspace.name,
            identities=identity.clusters,
            network=network,
            granted=roles.assignments,
        ),
    )
    endpoints = Endpoints(
        "endpoints",
        stack_site,
        workspace=workspace.workspace.name,
        identity=identity.endpoints,
        granted=[*granted.assignments, *roles.assignments],
        monitoring=monitoring,
    )
    _observe(monitoring, network, vault, storage, registry, workspace, features, redis)
    locked = {
        "workspace-storage": storage.workspace.id,
        "lake": storage.lake.id,
        **({"vault": vault.id} if vault.created else {}),
        **({"images": registry.id} if registry.created else {}),
        **({"share": storage.share.id} if storage.share else {}),
    }
    Guardrails("guardrails", stack_site, monitoring.alerts.id, locked)
    return {
        "resourceGroup": stack_site.group,
        "workspace": workspace.workspace.name,
        "lake": storage.lake.name,
        "vault": vault.name,
        "registryServer": registry.server,
        "trainClientId": identity.train.client_id,
        "releaseClientId": identity.release.client_id,
        "watchClientId": identity.watch.client_id,
        **{f"cluster:{name}": cluster.name for name, cluster in compute.clusters.items()},
        **{f"endpoint:{name}": endpoint.name for name, endpoint in endpoints.endpoints.items()},
        **({"assetRegistry": settings.asset_registry.name} if assets else {}),
        **({"featureStore": features.workspace.name} if features else {}),
    }


def _shared(stack_site: Site) -> Mapping[str, pulumi.Input[str]]:
    """Declare the shared registry, its monitoring and guardrails; return the outputs by name."""
    monitoring = Monitoring("monitoring", stack_site)
    shared = SharedRegistry("assets", stack_site)
    monitoring.diagnose("assets", shared.registry.id, metrics=())
    Guardrails("guardrails", stack_site, monitoring.alerts.id, {"assets": shared.registry.id})
    return {
        "resourceGroup": stack_site.group,
        "assetRegistry": shared.registry.name,
        "assetRegistryId": shared.registry.id,
    }


def _online_store(stack_site: Site, network: Network | None, identity: Identity) -> OnlineStore:
    """Declare Redis, accessible to the endpoints and to clusters that may write to the lake."""
    writers = [cluster.name for cluster in stack_site.settings.clusters if cluster.lake == "write"]
    users = {f"cluster-{name}": identity.clusters[name] for name in writers}
    return OnlineStore(
        "online-store", stack_site, network, {"endpoints": identity.endpoints, **users}
    )


def _key(
    stack_site: Site, vault: Vault, identity: Identity, network: Network | None
) -> EncryptionKey | None:
    """Return the storage encryption key, and declare the role to use it; None without one.

    The role takes minutes to propagate to the vault, and an account created sooner fails
    ("KeyVaultAuthenticationFailure", Azure/bicep#16601). The account therefore also waits for the
    private endpoints of other resources, which are created one after another.
    """
    if identity.encryption is None:
        return None
    role = "Key Vault Crypto Service Encryption User"
    grant = Grant("encryption-vault", identity.encryption, role, vault.id)
    granted = Grants("encryption-rights", stack_site, [grant]).assignments
    awaited = [*granted, *(network.dns_records if network else ())]
    return EncryptionKey(vault.uri, vault.key_name, identity.encryption, awaited)


def _observe(
    monitoring: Monitoring,
    network: Network | None,
    vault: Vault,
    storage: Storage,
    registry: Registry,
    workspace: Workspace,
    features: FeatureStore | None,
    redis: OnlineStore | None,
) -> None:
    """Declare diagnostic settings of the resources that the stack creates, and metric alerts."""
    if vault.created:
        monitoring.diagnose("vault", vault.id)
    if registry.created:
        monitoring.diagnose("images", registry.id)
    monitoring.diagnose("workspace", workspace.workspace.id)
    for name, service in storage.services.items():
        monitoring.diagnose(name, service.id, STORAGE_METRICS)
    if network and network.created:
        monitoring.diagnose("virtual-network", network.created.id)
        for part, group in network.security_groups.items():
            monitoring.diagnose(f"security-{part}", group.id, metrics=())
    monitoring.alert("failed-runs", workspace.workspace.id, "Failed Runs", 5)
    monitoring.alert("unusable-nodes", workspace.workspace.id, "Unusable Nodes", 0)
    if vault.created:
        monitoring.alert(
            "vault-saturation", vault.id, "SaturationShoebox", 75, aggregation="Average"
        )
    if features:
        monitoring.diagnose("features", features.workspace.id)
        monitoring.alert("failed-feature-runs", features.workspace.id, "Failed Runs", 5)
    if redis:
        monitoring.diagnose("redis", redis.database.id, metrics=())
        full = "usedmemorypercentage"
        monitoring.alert("redis-full", redis.cluster.id, full, 80, aggregation="Maximum")
