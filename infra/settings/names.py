"""Names of resources: stable over time, and unique where Azure shares a name space.

Lengths and characters: learn.microsoft.com/azure/azure-resource-manager/management/
resource-name-rules. The longest name is a storage account's: 4 + 8 + 7 + 5 = 24 of 24.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.settings.model import Settings

# Part of a resource that a private endpoint leads to → its DNS zones:
# learn.microsoft.com/azure/private-link/private-endpoint-dns
DNS_ZONES: Mapping[str, Sequence[str]] = {
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
# Parts of the lake that compute reaches.
LAKE_PARTS = ("blob", "dfs")
# Parts of the workspace's storage through which a parallel step distributes its work
# (how-to-managed-network, "Use batch endpoints or ParallelRunStep"; how-to-secure-workspace-vnet).
PARALLEL_PARTS = ("queue", "table")


@dataclass(frozen=True)
class Names:
    """The names of one environment; `suffix` separates equal names of two subscriptions."""

    platform: str
    environment: str
    suffix: str

    def local(self, kind: str, name: str = "") -> str:
        """A name that is unique in its resource group: `kind-platform-environment[-name]`."""
        return "-".join(word for word in (kind, self.platform, self.environment, name) if word)

    def worldwide(self, kind: str) -> str:
        """A name in a space shared by all of Azure: letters and digits, at most 24."""
        return f"{kind}{self.platform}{self.environment}{self.suffix}"

    def regional(self, name: str) -> str:
        """The name of an online endpoint, in a space shared by a region; at most 32."""
        return f"{name}-{self.environment}-{self.suffix}"

    def instance(self, name: str) -> str:
        """The name of a compute instance, in a space shared by a region; at most 24.

        Each hyphen must be followed by a letter, which `suffix` may lack.
        """
        return f"{name}-ci{self.suffix}"

    @property
    def group(self) -> str:
        """The resource group."""
        return self.local("rg")


def names(settings: Settings) -> Names:
    """The names of an environment."""
    identity = f"{settings.subscription}/{settings.name}/{settings.environment}"
    suffix = hashlib.sha256(identity.lower().encode()).hexdigest()[:5]
    return Names(settings.name, settings.environment, suffix)
