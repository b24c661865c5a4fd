"""Checks of declared resources: names, VM sizes and images, deleted resources, the budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from infra.live.addresses import Addresses, version
from infra.live.arm import Arm
from infra.preview.capture import Resource
from infra.settings.azure import retirement
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


DELETED_VAULTS = "Microsoft.KeyVault/deletedVaults"
DELETED_LOGS = "Microsoft.OperationalInsights/deletedWorkspaces"
VM = "compute:VirtualMachine"
# Security types of an image that Azure's command line accepts for Trusted Launch.
TRUSTED = {"TrustedLaunchSupported", "TrustedLaunch", "TrustedLaunchAndConfidentialVmSupported"}


def free_names(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A global name is free, or used by the declared resource itself."""
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        rule = GLOBAL.get(resource.kind)
        if rule is None or not re.fullmatch(rule.form, str(resource.inputs[rule.input])):
            continue
        name = str(resource.inputs[rule.input])
        path = f"/subscriptions/{arm.subscription}/providers/{rule.question}"
        answer = arm.query(path, version(resource.kind), {"name": name, "type": rule.type})
        place = addresses.place(resource)
        if answer.get("nameAvailable") is True:
            yield Check(f"name {name}", "ok", "free")
        elif arm.get(place.id, place.version) is not None:
            yield Check(f"name {name}", "ok", "already ours")
        else:
            message = str(answer.get("message") or answer.get("reason") or "taken")
            hint = "platform:name is a part of every name"
            yield Check(f"name {name}", "error", message, hint)


def deleted_vaults(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A deleted vault reserves its name until it is purged, which purge protection forbids."""
    declared = {
        str(resource.inputs["vaultName"]).lower()
        for resource in resources
        if resource.kind == "keyvault:Vault"
    }
    path = f"/subscriptions/{arm.subscription}/providers/{DELETED_VAULTS}"
    reserved = 0
    for vault in arm.all(path, version("keyvault:Vault")):
        name, properties = str(vault.get("name")), vault.get("properties") or {}
        if name.lower() in declared:
            reserved += 1
            region = properties.get("location") or "its region"
            until = str(properties.get("scheduledPurgeDate") or "it is purged")
            message = f"deleted; its name is reserved until {until}"
            hint = f"az keyvault recover --name {name} --location {region}"
            yield Check(f"vault {name}", "error", message, hint)
    if not reserved:
        yield Check("deleted vaults", "ok", "none has a declared name")


def deleted_logs(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A Log Analytics workspace that is created again in its region returns with its data.

    In another region its name is reserved for fourteen days (azure-monitor/logs/delete-workspace).
    """
    kind = "operationalinsights:Workspace"
    addresses = Addresses(resources, arm.subscription)
    declared = {
        addresses.place(resource).id.lower() for resource in resources if resource.kind == kind
    }
    path = f"/subscriptions/{arm.subscription}/providers/{DELETED_LOGS}"
    reserved = 0
    for workspace in arm.all(path, version(kind)) if declared else ():
        if str(workspace.get("id")).lower() in declared:
            reserved += 1
            region = str(workspace.get("location") or "").lower().replace(" ", "")
            name = f"logs {workspace.get('name')}"
            if region == settings.location:
                yield Check(name, "warning", "deleted; will return with all its data")
            else:
                where = region or "another region"
                message = f"deleted in {where}; its name is reserved for 14 days"
                yield Check(name, "error", message, "platform:name")
    if declared and not reserved:
        yield Check("deleted logs", "ok", "none has a declared name")


def deleted_workspaces(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A warning before a workspace is created: only the portal lists deleted ones.

    A deleted workspace reserves its name for fourteen days (machine-learning/concept-soft-delete).
    """
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        if resource.kind == "machinelearningservices:Workspace":
            place = addresses.place(resource)
            if arm.get(place.id, place.version) is None:
                name = str(resource.inputs["workspaceName"])
                message = "only the portal shows whether a deleted one reserves this name"
                hint = 'Azure Machine Learning, "Recently deleted": recover it or purge it there'
                yield Check(f"workspace {name}", "warning", message, hint)


def images(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """The newest version of each VM image exists in its region, with Trusted Launch if needed.

    No document lists the images with Trusted Launch; Azure reports it for each (rest/api/compute/
    virtual-machine-images/get, `features`) and refuses a VM that requires it from another image.
    """
    needed: dict[tuple[str, str, str, str], bool] = {}
    for resource in resources:
        image = (resource.inputs.get("storageProfile") or {}).get("imageReference")
        if resource.kind != VM or not image:
            continue
        key = resource.inputs["location"], image["publisher"], image["offer"], image["sku"]
        profile = resource.inputs.get("securityProfile") or {}
        needed[key] = needed.get(key, False) or profile.get("securityType") == "TrustedLaunch"
    for (location, publisher, offer, sku), trusted in needed.items():
        path = (
            f"/subscriptions/{arm.subscription}/providers/Microsoft.Compute/locations/{location}"
            f"/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
        )
        name = f"image {publisher}:{offer}:{sku}"
        offered: list[Mapping[str, Any]] = [image or {} for image in arm.array(path, version(VM))]
        newest = max(offered, key=_numbers).get("name") if offered else None
        answer = arm.get(f"{path}/{newest}", version(VM)) if newest else None
        if answer is None:
            hint = "choose another region, or another image in infra/program/compute.py"
            yield Check(name, "error", f"not in {location}", hint)
        elif trusted and not _trusted(answer):
            hint = "remove TrustedLaunch in infra/program/compute.py"
            yield Check(name, "error", f"{newest} in {location} has no Trusted Launch", hint)
        else:
            yield Check(name, "ok", f"{newest} in {location}")


def _numbers(image: Mapping[str, Any]) -> tuple[int, ...]:
    """A version such as 24.10.2 as numbers; empty for anything else."""
    parts = str(image.get("name")).split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def _trusted(image: Mapping[str, Any]) -> bool:
    features = (image.get("properties") or {}).get("features") or []
    return any((feature or {}).get("value") in TRUSTED for feature in features)


def budget(resources: Sequence[Resource], arm: Arm, today: date) -> Iterator[Check]:
    """A new budget begins in this month, or in one of the twelve after it.

    Source: rest/api/consumption/budgets/create-or-update, `timePeriod`.
    """
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        if resource.kind != "consumption:Budget":
            continue
        month = str(resource.inputs["timePeriod"]["startDate"])[:7]
        place = addresses.place(resource)
        if arm.get(place.id, place.version) is not None:
            yield Check(resource.name, "ok", f"exists since {month}")
        elif f"{today:%Y-%m}" <= month <= f"{today.year + 1}-{today:%m}":
            yield Check(resource.name, "ok", f"will begin in {month}")
        else:
            message = f"begins in {month}; Azure accepts this month, or one of the next twelve"
            hint = f"platform:guardrails.budget_from: {today:%Y-%m}"
            yield Check(resource.name, "error", message, hint)
