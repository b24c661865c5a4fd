"""Before the first update: would it be refused, and for what that can be known before?

Each check says ok, warns, or fails with the next thing to type. Nothing is changed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from infra.live.addresses import Addresses, Unplaced, version
from infra.live.arm import Arm, Denied
from infra.preview.captured import Resource
from infra.settings import Settings

Verdict = Literal["ok", "warning", "error"]
# The version by which azure-mgmt-resource asks for providers.
PROVIDERS = "2025-04-01"
# That of the features of a provider.
FEATURES = "2021-07-01"
# What a deployment has to be allowed for a kind that it declares, and the role that allows it.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "authorization:RoleAssignment": (
        "Microsoft.Authorization/roleAssignments/write",
        "Role Based Access Control Administrator",
    ),
    "authorization:ManagementLockByScope": (
        "Microsoft.Authorization/locks/write",
        "Locks Contributor",
    ),
    "managedidentity:FederatedIdentityCredential": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials/write",
        "Contributor",
    ),
    "machinelearningservices:Workspace": (
        "Microsoft.MachineLearningServices/workspaces/write",
        "Contributor",
    ),
}


@dataclass(frozen=True)
class Global:
    """A kind whose names all of Azure shares: its form, and who says whether one is free."""

    input: str
    form: str
    expected: str
    question: str
    type: str


# Forms: azure-resource-manager/management/resource-name-rules. Each question is an action of the
# service's own REST reference (checkNameAvailability).
GLOBAL: Mapping[str, Global] = {
    "storage:StorageAccount": Global(
        "accountName",
        r"[a-z0-9]{3,24}",
        "3 to 24 lower-case letters and digits",
        "Microsoft.Storage/checkNameAvailability",
        "Microsoft.Storage/storageAccounts",
    ),
    "keyvault:Vault": Global(
        "vaultName",
        r"(?=.{3,24}$)[A-Za-z](-?[A-Za-z0-9])+",
        "3 to 24 letters, digits and single hyphens, a letter first",
        "Microsoft.KeyVault/checkNameAvailability",
        "Microsoft.KeyVault/vaults",
    ),
    "containerregistry:Registry": Global(
        "registryName",
        r"[A-Za-z0-9]{5,50}",
        "5 to 50 letters and digits",
        "Microsoft.ContainerRegistry/checkNameAvailability",
        "Microsoft.ContainerRegistry/registries",
    ),
}
LENGTHS: Mapping[str, tuple[str, int]] = {
    "machinelearningservices:Workspace": ("workspaceName", 33),
    "machinelearningservices:Registry": ("registryName", 33),
    "machinelearningservices:OnlineEndpoint": ("endpointName", 32),
    "machinelearningservices:Compute": ("computeName", 32),
    "resources:ResourceGroup": ("resourceGroupName", 90),
    "network:VirtualNetwork": ("virtualNetworkName", 64),
    "network:PrivateEndpoint": ("privateEndpointName", 64),
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    said: str
    hint: str = ""

    def __str__(self) -> str:
        return (
            f"{self.verdict:<7}  {self.name}: {self.said}{f' ({self.hint})' if self.hint else ''}"
        )


def examine(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Every check, those first that need nothing of Azure; what may not be read is a warning."""
    provided = [one for one in resources if one.custom]
    yield from _names(provided)
    for label, checks in (
        ("resource providers", _providers(provided, arm)),
        ("features", _features(provided, arm)),
        ("free names", _free(provided, arm)),
        ("deleted vaults", _deleted(settings, provided, arm)),
        ("quota", _quota(settings, arm)),
        ("permissions", _permissions(provided, arm)),
    ):
        try:
            yield from checks
        except Denied as error:
            hint = "ask for the role Reader on the subscription"
            yield Check(label, "warning", f"may not be read: {error}", hint)


def _names(resources: Sequence[Resource]) -> Iterator[Check]:
    """Form and length; names that refer to another resource are that one's."""
    wrong = 0
    for one in resources:
        if rule := GLOBAL.get(one.kind):
            name = str(one.inputs[rule.input])
            if not re.fullmatch(rule.form, name):
                wrong += 1
                yield Check(f"name {name}", "error", f"not {rule.expected}", "platform:name")
        elif limit := LENGTHS.get(one.kind):
            name = str(one.inputs.get(limit[0], ""))
            if not 0 < len(name) <= limit[1]:
                wrong += 1
                said = f"{len(name)} characters; 1 to {limit[1]} are allowed"
                yield Check(f"name {name}", "error", said, "platform:name")
    if not wrong:
        yield Check("names", "ok", "of a form that Azure takes")


def _providers(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Azure creates nothing of a provider that the subscription has not registered."""
    addresses = Addresses(resources, arm.subscription)
    needed = set()
    for one in resources:
        try:
            needed.add(addresses.place(one).id.rpartition("/providers/")[2].partition("/")[0])
        except Unplaced:
            continue
    needed = {name for name in needed if name.startswith("Microsoft.")}
    missing = []
    for name in sorted(needed):
        found = arm.get(f"/subscriptions/{arm.subscription}/providers/{name}", PROVIDERS) or {}
        if str(found.get("registrationState")) != "Registered":
            missing.append(name)
            hint = f"az provider register --namespace {name}"
            yield Check(f"provider {name}", "error", "not registered", hint)
    if not missing:
        yield Check("resource providers", "ok", f"{len(needed)} are registered")


def _features(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Encryption at host is refused to a subscription that has not asked for it."""
    if not any(
        (one.inputs.get("securityProfile") or {}).get("encryptionAtHost") for one in resources
    ):
        return
    namespace, name = "Microsoft.Compute", "EncryptionAtHost"
    path = f"providers/Microsoft.Features/providers/{namespace}/features/{name}"
    found = arm.get(f"/subscriptions/{arm.subscription}/{path}", FEATURES) or {}
    if (found.get("properties") or {}).get("state") == "Registered":
        yield Check(f"feature {name}", "ok", "registered")
    else:
        hint = f"az feature register --namespace {namespace} --name {name}"
        yield Check(f"feature {name}", "error", "not registered", hint)


def _free(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A global name is free, or taken by the very resource that is declared."""
    addresses = Addresses(resources, arm.subscription)
    for one in resources:
        rule = GLOBAL.get(one.kind)
        if rule is None or not re.fullmatch(rule.form, str(one.inputs[rule.input])):
            continue
        name = str(one.inputs[rule.input])
        path = f"/subscriptions/{arm.subscription}/providers/{rule.question}"
        answer = arm.asked(path, version(one.kind), {"name": name, "type": rule.type})
        place = addresses.place(one)
        if answer.get("nameAvailable") is True:
            yield Check(f"name {name}", "ok", "free")
        elif arm.get(place.id, place.version) is not None:
            yield Check(f"name {name}", "ok", "ours already")
        else:
            said = str(answer.get("message") or answer.get("reason") or "taken")
            yield Check(f"name {name}", "error", said, "platform:name makes every name")


def _deleted(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A deleted vault keeps its name until it is purged, which purge protection forbids."""
    wanted = {
        str(one.inputs["vaultName"]).lower() for one in resources if one.kind == "keyvault:Vault"
    }
    path = f"/subscriptions/{arm.subscription}/providers/Microsoft.KeyVault/deletedVaults"
    found = [
        one
        for one in arm.all(path, version("keyvault:Vault"))
        if str(one["name"]).lower() in wanted
    ]
    for one in found:
        name = one["name"]
        hint = f"az keyvault recover --name {name} --location {settings.location}"
        until = str((one.get("properties") or {}).get("scheduledPurgeDate", "it is purged"))
        yield Check(f"vault {name}", "error", f"deleted, its name is kept until {until}", hint)
    if not found:
        yield Check("deleted vaults", "ok", "none has a name that is declared")


def _quota(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Cores by family for dedicated nodes, one total for low-priority ones."""
    wanted: dict[str, int] = defaultdict(int)
    for cluster in settings.computes:
        cores = cluster.hardware.cores * cluster.max_nodes
        wanted["TotalLowPriorityCores" if cluster.spot else cluster.hardware.family] += cores
    if not wanted:
        return
    path = (
        f"/subscriptions/{arm.subscription}/providers/Microsoft.MachineLearningServices"
        f"/locations/{settings.location}/usages"
    )
    usages = {
        str(one["name"]["value"]).lower(): one
        for one in arm.all(path, version("machinelearningservices:Workspace"))
    }
    for family, cores in sorted(wanted.items()):
        yield _enough(family, cores, usages.get(family.lower()), settings.location)


def _enough(family: str, cores: int, usage: Mapping[str, Any] | None, region: str) -> Check:
    name = f"quota {family}"
    if usage is None:
        return Check(name, "warning", f"{region} reports none; {cores} cores are asked for")
    limit, used = int(usage["limit"]), int(usage["currentValue"])
    if limit < cores:
        hint = f"ask for {cores} in Azure ML's quota page, or fewer max_nodes"
        return Check(name, "error", f"{limit} cores, {cores} at most are asked for", hint)
    if limit - used < cores:
        said = f"{limit - used} of {limit} cores are free, {cores} at most are asked for"
        return Check(name, "warning", said)
    return Check(
        name, "ok", f"{limit - used} of {limit} cores are free, {cores} at most are needed"
    )


def _permissions(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """What who is signed in may do on the subscription, by the rules of role definitions."""
    path = f"/subscriptions/{arm.subscription}/providers/Microsoft.Authorization/permissions"
    granted = list(arm.all(path, version("authorization:RoleAssignment")))
    declared = {one.kind for one in resources}
    needed = [asked for kind, asked in ACTIONS.items() if kind in declared]
    missing = [
        (action, role)
        for action, role in needed
        if not any(_allows(one, action) for one in granted)
    ]
    for action, role in missing:
        hint = f"Owner, or {role}: `infra bootstrap` grants it to who deploys"
        yield Check(f"permission {action}", "error", "not granted", hint)
    if not missing:
        yield Check("permissions", "ok", f"{len(needed)} actions that the deployment needs")


def _allows(permission: Mapping[str, Any], action: str) -> bool:
    def named(key: str) -> bool:
        patterns = [str(one).lower() for one in permission.get(key, [])]
        return any(fnmatchcase(action.lower(), pattern) for pattern in patterns)

    return named("actions") and not named("notActions")
