"""The result of a check, and the checks that need no answer from Azure: names and VM sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from infra.catalog.sizes import retirement
from infra.preview.capture import Resource
from infra.settings.model import Settings


@dataclass(frozen=True)
class Check:
    """The verdict on one thing."""

    name: str
    verdict: Literal["ok", "warning", "error"]
    message: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.verdict:<7}  {self.name}: {self.message}{hint}"


@dataclass(frozen=True)
class GlobalName:
    """A kind whose names all of Azure shares: their form, and the question whether one is free."""

    input: str
    form: str
    expected: str
    question: str
    type: str


# Forms: azure-resource-manager/management/resource-name-rules. Each question is an action in the
# service's REST reference (checkNameAvailability).
GLOBAL: Mapping[str, GlobalName] = {
    "storage:StorageAccount": GlobalName(
        "accountName",
        r"[a-z0-9]{3,24}",
        "3 to 24 lower-case letters and digits",
        "Microsoft.Storage/checkNameAvailability",
        "Microsoft.Storage/storageAccounts",
    ),
    "keyvault:Vault": GlobalName(
        "vaultName",
        r"(?=.{3,24}$)[A-Za-z](-?[A-Za-z0-9])+",
        "3 to 24 letters, digits and single hyphens, a letter first",
        "Microsoft.KeyVault/checkNameAvailability",
        "Microsoft.KeyVault/vaults",
    ),
    "containerregistry:Registry": GlobalName(
        "registryName",
        r"[A-Za-z0-9]{5,50}",
        "5 to 50 letters and digits",
        "Microsoft.ContainerRegistry/checkNameAvailability",
        "Microsoft.ContainerRegistry/registries",
    ),
}
MAX_LENGTHS: Mapping[str, tuple[str, int]] = {
    "machinelearningservices:Workspace": ("workspaceName", 33),
    "machinelearningservices:Registry": ("registryName", 33),
    "machinelearningservices:OnlineEndpoint": ("endpointName", 32),
    "machinelearningservices:Compute": ("computeName", 32),
    "resources:ResourceGroup": ("resourceGroupName", 90),
    "network:VirtualNetwork": ("virtualNetworkName", 64),
    "network:PrivateEndpoint": ("privateEndpointName", 64),
}


def name_forms(resources: Sequence[Resource]) -> Iterator[Check]:
    """Form and length of names."""
    wrong = 0
    for resource in resources:
        if rule := GLOBAL.get(resource.kind):
            name = str(resource.inputs[rule.input])
            if not re.fullmatch(rule.form, name):
                wrong += 1
                yield Check(f"name {name}", "error", f"not {rule.expected}", "platform:name")
        elif limit := MAX_LENGTHS.get(resource.kind):
            name = str(resource.inputs.get(limit[0], ""))
            if not 0 < len(name) <= limit[1]:
                wrong += 1
                message = f"{len(name)} characters; 1 to {limit[1]} are allowed"
                yield Check(f"name {name}", "error", message, "platform:name")
    if not wrong:
        yield Check("names", "ok", "in a form that Azure accepts")


def retirements(settings: Settings) -> Iterator[Check]:
    """A warning for each size with an announced retirement; settings refuse a retired one."""
    retiring = {size: entry for size in settings.sizes if (entry := retirement(size))}
    for size, entry in sorted(retiring.items()):
        message = f"the {entry.family} series retires on {entry.day}"
        yield Check(f"size {size}", "warning", message, f"use {entry.instead}")
    if not retiring:
        yield Check("sizes", "ok", "no retirement is announced")
