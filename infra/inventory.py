"""What an environment has by the piece, from its settings alone: what an estimate counts.

A test compares each number with what the program declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.settings import Settings

# What a private endpoint reaches → the zones in which its names are:
# learn.microsoft.com/azure/private-link/private-endpoint-dns
ZONES: Mapping[str, Sequence[str]] = {
    "amlworkspace": ("privatelink.api.azureml.ms", "privatelink.notebooks.azure.net"),
    "amlregistry": ("privatelink.api.azureml.ms",),
    "blob": ("privatelink.blob.core.windows.net",),
    "dfs": ("privatelink.dfs.core.windows.net",),
    "file": ("privatelink.file.core.windows.net",),
    "queue": ("privatelink.queue.core.windows.net",),
    "table": ("privatelink.table.core.windows.net",),
    "vault": ("privatelink.vaultcore.azure.net",),
    "registry": ("privatelink.azurecr.io",),
}
# Endpoints that a managed network makes by itself (how-to-managed-network, "List of required
# rules"): the workspace, its storage (blobs and files), its vault, its registry.
REQUIRED = 5
# The lake is reached from the managed network by these of ours.
LAKE_PARTS = ("blob", "dfs")
# The parts of the workspace's storage by which a parallel step shares out its work: nodes need them
# (how-to-managed-network, "Use batch endpoints or ParallelRunStep"; how-to-secure-workspace-vnet).
PARALLEL_PARTS = ("queue", "table")
# On the workspace and the vault; each endpoint has one more.
ALERTS = 3


@dataclass(frozen=True)
class Inventory:
    """Numbers of what is paid by the piece.

    `outbound` are the private endpoints of the managed network, those of Azure's own making among
    them; `registries` counts the one that the shared asset registry brings.
    """

    endpoints: int
    outbound: int
    zones: int
    accounts: int
    alerts: int
    registries: int
    gateways: int


def inventory(settings: Settings) -> Inventory:
    """The numbers of an environment."""
    makes_assets = settings.asset_registry.mode == "create"
    assets = ["amlregistry"] * (settings.asset_registry.mode != "none")
    assets += ["blob", "registry"] * bool(settings.asset_registry.storage)
    share = bool(settings.storage.nfs_share_gib)
    managed = settings.network.isolation == "managed"
    reached: list[str] = []
    if settings.private:
        reached = ["amlworkspace", "vault", "registry", "blob", "file", *LAKE_PARTS]
        reached += ["file"] * share + assets
        reached += [] if managed else PARALLEL_PARTS
    outbound = 0
    if managed:
        ours = len(LAKE_PARTS) + len(PARALLEL_PARTS) + share
        outbound = len(assets) + settings.private * (REQUIRED + ours)
    return Inventory(
        endpoints=len(reached),
        outbound=outbound,
        zones=len({zone for what in reached for zone in ZONES[what]}),
        accounts=2 + share,
        alerts=ALERTS + len(settings.endpoints),
        registries=1 + makes_assets,
        gateways=int(settings.way_out),
    )
