"""Azure's regions, VM sizes, retirements and DNS zones; cluster presets and resource names.

Regions are kept by hand; `az account list-locations` has them all. Sizes: learn.microsoft.com/
azure/virtual-machines/sizes. Retirements: retired-sizes-list there, and the migration guide of each
family (h-series-retirement, hc-series-retirement and so on). They cover families with GPUs or
InfiniBand and those of `SIZES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

_NAMES = """
australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral
brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral
denmarkeast eastasia eastus eastus2 eastus3 francecentral francesouth germanynorth
germanywestcentral indonesiacentral israelcentral italynorth japaneast japanwest
jioindiacentral jioindiawest koreacentral koreasouth malaysiawest mexicocentral newzealandnorth
northcentralus northeurope norwayeast norwaywest polandcentral qatarcentral southafricanorth
southafricawest southcentralus southeastasia southindia spaincentral swedencentral
swedensouth switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus
westeurope westindia westus westus2 westus3
"""
REGIONS = frozenset(_NAMES.split())
# reliability/regions-list: regions without availability zones, and without a paired region.
_WITHOUT_ZONES = """
australiacentral australiacentral2 australiasoutheast brazilsoutheast canadaeast francesouth
germanynorth koreasouth northcentralus norwaywest southafricawest southindia switzerlandwest
uaecentral ukwest westcentralus westindia westus
"""
_WITHOUT_PAIR = """
austriaeast belgiumcentral chilecentral indonesiacentral israelcentral italynorth malaysiawest
mexicocentral newzealandnorth polandcentral qatarcentral spaincentral
"""
NO_ZONES, NO_PAIR = frozenset(_WITHOUT_ZONES.split()), frozenset(_WITHOUT_PAIR.split())


Preset = Literal["cpu", "t4", "a100", "infiniband"]


@dataclass(frozen=True)
class Size:
    """One VM size."""

    family: str  # name of its core quota in Azure ML
    cores: int
    memory_gib: int
    gpus: int = 0
    gpu: str = ""  # the model, such as `A100 80GB`; "" without GPUs
    infiniband: bool = False
    low_priority: bool = True  # True if spot clusters can use it

    def __str__(self) -> str:
        """Return a description: `4 cores, 28 GiB, 1 T4`."""
        parts = [f"{self.cores} cores", f"{self.memory_gib} GiB"]
        parts += [f"{self.gpus} {self.gpu}"] if self.gpus else []
        return ", ".join([*parts, *(["InfiniBand"] if self.infiniband else [])])


SIZES: Mapping[str, Size] = {
    "Standard_DS3_v2": Size("standardDSv2Family", 4, 14),
    "Standard_DS4_v2": Size("standardDSv2Family", 8, 28),
    "Standard_D4ds_v4": Size("standardDDSv4Family", 4, 16),
    "Standard_D8ds_v4": Size("standardDDSv4Family", 8, 32),
    "Standard_E4ds_v4": Size("standardEDSv4Family", 4, 32),
    "Standard_E8ds_v4": Size("standardEDSv4Family", 8, 64),
    "Standard_NC4as_T4_v3": Size("Standard NCASv3_T4 Family", 4, 28, 1, "T4"),
    "Standard_NC8as_T4_v3": Size("Standard NCASv3_T4 Family", 8, 56, 1, "T4"),
    "Standard_NC16as_T4_v3": Size("Standard NCASv3_T4 Family", 16, 110, 1, "T4"),
    "Standard_NC64as_T4_v3": Size("Standard NCASv3_T4 Family", 64, 440, 4, "T4"),
    "Standard_NC24ads_A100_v4": Size("StandardNCADSA100v4Family", 24, 220, 1, "A100 80GB"),
    "Standard_NC48ads_A100_v4": Size("StandardNCADSA100v4Family", 48, 440, 2, "A100 80GB"),
    "Standard_NC96ads_A100_v4": Size("StandardNCADSA100v4Family", 96, 880, 4, "A100 80GB"),
    "Standard_ND96asr_v4": Size("Standard NDASv4_A100 Family", 96, 900, 8, "A100 40GB", True),
    "Standard_ND96amsr_A100_v4": Size(
        "Standard NDAMSv4_A100Family", 96, 1900, 8, "A100 80GB", True
    ),
    # A spot cluster of this size can be created but gets no node: UnsupportedVMSizeForLowPriority.
    "Standard_ND96isr_H100_v5": Size("standardNDv5H100Family", 96, 1900, 8, "H100", True, False),
    "Standard_HB120rs_v3": Size("standardHBv3Family", 120, 448, infiniband=True),
}

PRESETS: Mapping[Preset, str] = {
    "cpu": "Standard_E4ds_v4",
    "t4": "Standard_NC4as_T4_v3",
    "a100": "Standard_NC24ads_A100_v4",
    "infiniband": "Standard_ND96amsr_A100_v4",
}


@dataclass(frozen=True)
class Retirement:
    """A family of VM sizes that Azure retires."""

    pattern: str  # regular expression of its sizes, without `Standard_`
    family: str
    day: date  # the first day on which Azure no longer offers it
    instead: str  # a size to use instead


_HPC = "Standard_HB120rs_v3"
RETIREMENTS: tuple[Retirement, ...] = (
    Retirement(r"NC\d+r?(_Promo)?", "NC", date(2023, 9, 6), PRESETS["t4"]),
    Retirement(r"NC\d+r?s_v2", "NCv2", date(2023, 9, 6), PRESETS["t4"]),
    Retirement(r"NC\d+r?s_v3", "NCv3", date(2025, 9, 30), PRESETS["a100"]),
    Retirement(r"ND\d+r?s", "ND", date(2023, 9, 6), PRESETS["a100"]),
    Retirement(r"NV\d+(_Promo)?", "NV", date(2023, 9, 6), PRESETS["t4"]),
    Retirement(r"NV\d+[hm]?s_v3", "NVv3", date(2026, 9, 30), PRESETS["t4"]),
    Retirement(r"NV\d+as_v4", "NVv4", date(2026, 9, 30), PRESETS["t4"]),
    Retirement(r"H\d+m?r?(_Promo)?", "H", date(2022, 8, 31), _HPC),
    Retirement(r"HB60(-\d+)?rs", "HB", date(2024, 8, 31), _HPC),
    Retirement(r"HB120(-\d+)?rs_v2", "HBv2", date(2027, 5, 31), _HPC),
    Retirement(r"HC44(-\d+)?rs", "HC", date(2027, 5, 31), _HPC),
    Retirement(r"DS?\d+(-\d+)?(_v2)?(_Promo)?", "Dv2", date(2028, 5, 1), "Standard_D4ds_v4"),
)


def retirement(size: str) -> Retirement | None:
    """Return the past or announced retirement of the family of `size`; None without one."""
    tail = size.removeprefix("Standard_")
    return next((entry for entry in RETIREMENTS if re.fullmatch(entry.pattern, tail, re.I)), None)


def retired(size: str, day: date) -> Retirement | None:
    """Return the retirement of the family of `size`; None if Azure still offers it on `day`."""
    entry = retirement(size)
    return entry if entry and entry.day <= day else None


# Resource providers that must be registered for the program's resources and its state.
PROVIDERS = tuple(
    f"Microsoft.{name}"
    for name in (
        *("Authorization", "Cache", "Cdn", "Compute", "Consumption", "ContainerRegistry"),
        *("Insights", "KeyVault", "MachineLearningServices", "ManagedIdentity", "Network"),
        *("OperationalInsights", "PolicyInsights", "Security", "Storage"),
    )
)
# Sub-resource that a private endpoint leads to (`group_ids`) → its DNS zones:
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
    "redisEnterprise": ("privatelink.redis.azure.net",),
    "azuremonitor": (
        *("privatelink.monitor.azure.com", "privatelink.oms.opinsights.azure.com"),
        *("privatelink.ods.opinsights.azure.com", "privatelink.agentsvc.azure-automation.net"),
        "privatelink.blob.core.windows.net",
    ),
}
# Sub-resources of an asset registry and of its accounts for models and images.
ASSET_PARTS = ("amlregistry", "blob", "registry")
# Sub-resources of the lake that compute uses.
LAKE_PARTS = ("blob", "dfs")
# Sub-resources of the workspace's storage through which a parallel step distributes its work
# (how-to-managed-network, "Use batch endpoints or ParallelRunStep"; how-to-secure-workspace-vnet).
PARALLEL_PARTS = ("queue", "table")


@dataclass(frozen=True)
class Names:
    """Stable names of an environment's resources, each unique in the scope that Azure requires.

    Lengths and characters: azure-resource-manager/management/resource-name-rules. The longest name
    is a storage account's: kind 4 + platform 8 + environment 7 + suffix 5 = 24 of 24.
    """

    platform: str
    environment: str
    suffix: str  # hash that makes names differ between subscriptions
    given_group: str = ""  # name of the resource group; "" to derive it

    def local(self, kind: str, name: str = "") -> str:
        """Return a name unique in the resource group: `kind-platform-environment[-name]`."""
        return "-".join(word for word in (kind, self.platform, self.environment, name) if word)

    def worldwide(self, kind: str) -> str:
        """Return a globally unique name: letters and digits, at most 24 characters."""
        return f"{kind}{self.platform}{self.environment}{self.suffix}"

    def regional(self, name: str) -> str:
        """Return the name of an online endpoint: unique in the region, at most 32 characters."""
        return f"{name}-{self.environment}-{self.suffix}"

    def instance(self, name: str) -> str:
        """Return the name of a compute instance: unique in the region, at most 24 characters.

        Azure wants a letter after each hyphen. `suffix` may begin with a digit: `ci` precedes it.
        """
        return f"{name}-ci{self.suffix}"

    @property
    def group(self) -> str:
        """The resource group: `resource_group` if set, else one that the program creates."""
        return self.given_group or self.local("rg")
