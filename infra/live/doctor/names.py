"""Names: of a form that Azure takes, and free where all of Azure shares them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.live.addresses import Addresses, version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource


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


def formed(resources: Sequence[Resource]) -> Iterator[Check]:
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


def free(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
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
