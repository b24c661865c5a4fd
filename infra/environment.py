"""One environment: which component stands on which, and what each identity may do."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.components.assets import Assets, AssetsArgs
from infra.components.compute import Compute, ComputeArgs
from infra.components.encryption import EncryptionKey
from infra.components.endpoints import Endpoints, EndpointsArgs
from infra.components.grants import Grant, Grants, GrantsArgs
from infra.components.guardrails import Guardrails, GuardrailsArgs
from infra.components.identity import Identity, IdentityArgs
from infra.components.monitoring import STORAGE_METRICS, Monitoring, MonitoringArgs
from infra.components.network import Network, NetworkArgs
from infra.components.registry import Registry, RegistryArgs
from infra.components.site import Site, site
from infra.components.storage import Storage, StorageArgs
from infra.components.vault import Vault, VaultArgs
from infra.components.workspace import Workspace, WorkspaceArgs
from infra.components.workstations import Workstations, WorkstationsArgs
from infra.rights import after, before
from infra.settings import Settings


def provision(
    settings: Settings, sas: pulumi.Output[str] | None
) -> Mapping[str, pulumi.Input[str]]:
    """Declare every resource of the environment; its outputs by name."""
    here = site(settings)
    encrypted = settings.storage.customer_managed_key
    monitoring = Monitoring("monitoring", MonitoringArgs(here, settings.monitoring, settings.owner))
    identity = Identity(
        "identity",
        IdentityArgs(here, settings.repository, [one.name for one in settings.computes], encrypted),
    )
    network, nodes = None, settings.network.isolation == "own"
    if settings.private:
        network = Network("network", NetworkArgs(here, settings.network, settings.way_out))
    vault = Vault("vault", VaultArgs(here, settings.vault, network, encrypted))
    registry = Registry("registry", RegistryArgs(here, settings.images, network))
    assets = None
    if settings.asset_registry.mode != "none":
        redundancy = settings.storage.redundancy
        assets = Assets("assets", AssetsArgs(here, settings.asset_registry, redundancy, network))
    key = _key(here, vault, identity, network)
    storage = Storage("storage", StorageArgs(here, settings.storage, network, nodes, key))
    granted = Grants(
        "rights",
        GrantsArgs(here, before(settings, identity, storage, vault, registry, monitoring, assets)),
    )
    workspace = Workspace(
        "workspace",
        WorkspaceArgs(
            site=here,
            identity=identity.workspace,
            granted=granted.made,
            network=network,
            network_settings=settings.network,
            storage=storage,
            vault=vault,
            registry=registry,
            assets=assets,
            insights=monitoring.insights.id,
            image_build_compute=settings.builder.name if settings.builder else None,
            sas=sas,
        ),
    )
    machines = settings.machines("data-science-vm")
    vms = None
    if network and machines:
        vms = Workstations("workstations", WorkstationsArgs(here, network, machines))
    rights = Grants(
        "workspace-rights",
        GrantsArgs(here, [*after(settings, identity, storage, workspace, assets, vms)]),
    )
    compute = Compute(
        "compute",
        ComputeArgs(
            site=here,
            workspace=workspace.workspace.name,
            clusters=settings.computes,
            instances=settings.machines("compute-instance"),
            identities=identity.clusters,
            network=network,
            nodes=network if nodes else None,
            granted=rights.made,
        ),
    )
    Endpoints(
        "endpoints",
        EndpointsArgs(
            site=here,
            workspace=workspace.workspace.name,
            endpoints=settings.endpoints,
            identity=identity.endpoints,
            granted=[*granted.made, *rights.made],
            monitoring=monitoring,
        ),
    )
    _observe(monitoring, network, vault, storage, registry, workspace, assets)
    Guardrails(
        "guardrails",
        GuardrailsArgs(
            site=here,
            settings=settings.guardrails,
            owner=settings.owner,
            told=monitoring.told.id,
            locked={
                "workspace-storage": storage.workspace.id,
                "lake": storage.lake.id,
                "vault": vault.vault.id,
                "images": registry.registry.id,
                **({"share": storage.share.id} if storage.share else {}),
            },
        ),
    )
    return {
        "resourceGroup": here.group,
        "workspace": workspace.workspace.name,
        "lake": storage.lake.name,
        "pipelineClientId": identity.pipeline.client_id,
        **{f"cluster:{name}": made.name for name, made in compute.clusters.items()},
    }


def _key(
    here: Site, vault: Vault, identity: Identity, network: Network | None
) -> EncryptionKey | None:
    """The key of storage, and the right to use it, which comes first.

    Azure tells its vaults of a right minutes after it was given, and an account that comes sooner
    fails ("KeyVaultAuthenticationFailure", Azure/bicep#16601): the private endpoints of others,
    which are made one after another anyway, come in between.
    """
    if vault.key is None or identity.encryption is None:
        return None
    role = "Key Vault Crypto Service Encryption User"
    grant = Grant("encryption-vault", identity.encryption, role, vault.vault.id)
    granted = Grants("encryption-rights", GrantsArgs(here, [grant])).made
    uri = vault.vault.properties.vault_uri
    awaited = [*granted, *(network.names if network else ())]
    return EncryptionKey(uri, vault.key.name, identity.encryption, awaited)


def _observe(
    monitoring: Monitoring,
    network: Network | None,
    vault: Vault,
    storage: Storage,
    registry: Registry,
    workspace: Workspace,
    assets: Assets | None,
) -> None:
    """Diagnostics on whatever has any, and the alerts of the workspace and the vault."""
    monitoring.diagnose("vault", vault.vault.id)
    monitoring.diagnose("images", registry.registry.id)
    monitoring.diagnose("workspace", workspace.workspace.id)
    for name, service in storage.services.items():
        monitoring.diagnose(name, service.id, STORAGE_METRICS)
    if network:
        monitoring.diagnose("virtual-network", network.virtual.id)
        for part, group in network.security_groups.items():
            monitoring.diagnose(f"security-{part}", group.id, metrics=())
    if assets and assets.made:
        monitoring.diagnose("assets", assets.made.id, metrics=())
    monitoring.alert("failed-runs", workspace.workspace.id, "Failed Runs", 5)
    monitoring.alert("unusable-nodes", workspace.workspace.id, "Unusable Nodes", 0)
    monitoring.alert(
        "vault-saturation", vault.vault.id, "SaturationShoebox", 75, aggregation="Average"
    )
