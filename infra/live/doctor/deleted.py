"""Names that a deleted resource keeps: they cannot be given again, or bring back what it held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.live.addresses import Addresses, version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource
from infra.settings import Settings

VAULTS = "Microsoft.KeyVault/deletedVaults"
LOGS = "Microsoft.OperationalInsights/deletedWorkspaces"


def vaults(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A deleted vault keeps its name until it is purged, which purge protection forbids."""
    wanted = {
        str(one.inputs["vaultName"]).lower() for one in resources if one.kind == "keyvault:Vault"
    }
    path = f"/subscriptions/{arm.subscription}/providers/{VAULTS}"
    kept = 0
    for one in arm.all(path, version("keyvault:Vault")):
        name, told = str(one.get("name")), one.get("properties") or {}
        if name.lower() in wanted:
            kept += 1
            region = told.get("location") or "its region"
            until = str(told.get("scheduledPurgeDate") or "it is purged")
            hint = f"az keyvault recover --name {name} --location {region}"
            yield Check(f"vault {name}", "error", f"deleted, its name is kept until {until}", hint)
    if not kept:
        yield Check("deleted vaults", "ok", "none has a name that is declared")


def logs(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A deleted Log Analytics workspace comes back, with its data, when it is made again where it
    was; in another region its name cannot be given for fourteen days (azure-monitor/logs/
    delete-workspace).
    """
    kind = "operationalinsights:Workspace"
    addresses = Addresses(resources, arm.subscription)
    wanted = {addresses.place(one).id.lower() for one in resources if one.kind == kind}
    path = f"/subscriptions/{arm.subscription}/providers/{LOGS}"
    kept = 0
    for one in arm.all(path, version(kind)) if wanted else ():
        if str(one.get("id")).lower() in wanted:
            kept += 1
            region = str(one.get("location") or "").lower().replace(" ", "")
            name = f"logs {one.get('name')}"
            if region == settings.location:
                yield Check(name, "warning", "deleted; comes back with everything that it held")
            else:
                said = f"deleted in {region or 'another region'}, its name is kept for 14 days"
                yield Check(name, "error", said, "platform:name")
    if wanted and not kept:
        yield Check("deleted logs", "ok", "none has a name that is declared")


def workspaces(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """A deleted Azure ML workspace keeps its name for fourteen days, and only the portal lists it
    (machine-learning/concept-soft-delete): said where one is to be made.
    """
    addresses = Addresses(resources, arm.subscription)
    for one in resources:
        if one.kind == "machinelearningservices:Workspace":
            place = addresses.place(one)
            if arm.get(place.id, place.version) is None:
                name = str(one.inputs["workspaceName"])
                said = "whether a deleted one keeps this name is told in the portal alone"
                hint = 'Azure Machine Learning, "Recently deleted": recover it or purge it there'
                yield Check(f"workspace {name}", "warning", said, hint)
