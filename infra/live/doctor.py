"""`infra doctor`: read-only checks whether Azure would reject the next update.

Each check passes, warns, or fails with the next command to run. The first functions check the
subscription: state, providers, permissions, quota. The others check declared resources: VM sizes,
names, deleted resources, the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from infra.live.addresses import Addresses, Unplaced, version
from infra.live.arm import Arm, Denied
from infra.live.check import Check, granted
from infra.live.existing import check_existing
from infra.preview.capture import Resource
from infra.settings.azure import SIZES, retirement
from infra.settings.model import Settings
from ml.core.azure import APPROVER

_HINTS = {
    "AuthorizationFailed": "request the role Reader on the subscription",
    "MissingSubscriptionRegistration": "register the provider, then try again",
}


def examine(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Yield the results of all checks, offline ones first; one that Azure denies is a warning."""
    provided = [resource for resource in declared if resource.custom]
    yield from retirements(settings)
    for label, checks in (
        ("subscription", state(settings, arm)),
        ("asset registry", reference(settings, arm)),
        ("given resources", check_existing(settings, provided, arm)),
        ("resource providers", providers(provided, arm)),
        ("features", features(provided, arm)),
        ("free names", free_names(provided, arm)),
        ("deleted vaults", deleted_vaults(provided, arm)),
        ("deleted logs", deleted_logs(settings, provided, arm)),
        ("deleted workspaces", deleted_workspaces(provided, arm)),
        ("failed clusters", failed_clusters(provided, arm)),
        ("quota", quota(settings, arm)),
        ("budget", budget(provided, arm, date.today())),
        ("permissions", permissions(provided, arm)),
        ("permissions on the registry", registry_permissions(settings, arm)),
    ):
        try:
            yield from checks
        except Denied as error:
            hint = _HINTS.get(str(error), "")
            yield Check(label, "warning", f"no response from Azure: {error}", hint)


# API versions of subscriptions (rest/api/resources/subscriptions/get), of providers (the one of
# azure-mgmt-resource), and of a provider's features.
SUBSCRIPTIONS, PROVIDERS, FEATURES = "2022-12-01", "2025-04-01", "2021-07-01"
# States that allow all operations, at least for some time:
# cost-management-billing/manage/subscription-states
_OPEN = ("enabled", "warned", "pastdue")
# Providers that an endpoint also needs; the error SubscriptionNotRegistered does not name them
# (learn.microsoft.com/answers/questions/2068819).
ENDPOINTS = ("Microsoft.Cdn", "Microsoft.PolicyInsights")
# Provider for a managed network's private endpoints (how-to-managed-network, Prerequisites).
NETWORK = "Microsoft.Network"
# Declared kind → the action that its deployment needs, and a role that allows it.
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
# The same for a private endpoint to the asset registry.
CONNECTION = (
    "Microsoft.MachineLearningServices/registries/privateEndpointConnectionsApproval/action",
    APPROVER,
)
DEDICATED, SPOT = "TotalDedicatedCores", "TotalLowPriorityCores"


def state(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Check the subscription's tenant and state: Azure rejects changes in a disabled one."""
    answer = arm.get(f"/subscriptions/{arm.subscription}", SUBSCRIPTIONS) or {}
    tenant, state = str(answer.get("tenantId") or ""), str(answer.get("state") or "unknown")
    if tenant and tenant.lower() != settings.tenant.lower():
        message = f"belongs to tenant {tenant}; declared is {settings.tenant}"
        yield Check("subscription", "error", message, "azure-native:tenantId")
    elif state.lower() not in _OPEN:
        hint = "reactivate it: nothing in it can be changed"
        yield Check("subscription", "error", f"its state is {state}", hint)
    elif state.lower() != "enabled":
        yield Check("subscription", "warning", f"its state is {state}: it will be disabled")
    else:
        yield Check("subscription", "ok", "enabled, in the declared tenant")


def reference(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Check that the asset registry, which another stack creates, exists in the stack's region.

    That stack may be in another subscription.
    """
    registry = settings.asset_registry
    if registry.mode != "use":
        return
    answer = arm.get(settings.registry_id, version("machinelearningservices:Registry"))
    if answer is not None:
        regions = {
            str(region.get("location")).replace(" ", "").lower()
            for region in (answer.get("properties") or {}).get("regionDetails") or ()
        }
        if settings.location in regions:
            yield Check("asset registry", "ok", f"{registry.name} exists in {settings.location}")
        else:
            hint = f"`regions: [{settings.location}]` in the stack that creates it"
            message = f"{registry.name} is not in {settings.location}"
            yield Check("asset registry", "error", message, hint)
    else:
        hint = f"make deploy ENV={registry.stack}" if registry.stack else "platform:asset_registry"
        message = f"{registry.name} does not exist in {settings.registry_group}"
        yield Check("asset registry", "error", message, hint)


def providers(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that the resource providers of all declared resources are registered."""
    needed = _needed_providers(resources, arm.subscription)
    missing = 0
    for name in sorted(needed):
        answer = arm.get(f"/subscriptions/{arm.subscription}/providers/{name}", PROVIDERS) or {}
        registration = answer.get("registrationState") or "NotRegistered"
        if registration == "Registered":
            continue
        missing += 1
        if registration == "Registering":
            # Regions that are already registered accept resources (resource-providers-and-types).
            yield Check(f"provider {name}", "warning", "registration is incomplete in some regions")
        else:
            hint = f"az provider register --namespace {name}"
            yield Check(f"provider {name}", "error", _not_registered(registration), hint)
    if not missing:
        yield Check("resource providers", "ok", f"{len(needed)} are registered")


def _needed_providers(resources: Sequence[Resource], subscription: str) -> set[str]:
    addresses = Addresses(resources, subscription)
    needed: set[str] = set()
    for resource in resources:
        if resource.kind == "machinelearningservices:OnlineEndpoint":
            needed.update(ENDPOINTS)
        managed = resource.inputs.get("managedNetwork") or {}
        if managed.get("isolationMode", "Disabled") != "Disabled":
            needed.add(NETWORK)
        try:
            id = addresses.place(resource).id
        except Unplaced:
            continue
        needed.add(id.rpartition("/providers/")[2].partition("/")[0])
    return {name for name in needed if name.startswith("Microsoft.")}


def features(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that the subscription has the feature EncryptionAtHost, if a resource uses it."""
    profiles = [resource.inputs.get("securityProfile") or {} for resource in resources]
    if not any(profile.get("encryptionAtHost") for profile in profiles):
        return
    namespace, name = "Microsoft.Compute", "EncryptionAtHost"
    path = f"providers/Microsoft.Features/providers/{namespace}/features/{name}"
    answer = arm.get(f"/subscriptions/{arm.subscription}/{path}", FEATURES) or {}
    registration = (answer.get("properties") or {}).get("state") or "NotRegistered"
    if registration == "Registered":
        yield Check(f"feature {name}", "ok", "registered")
    else:
        hint = f"az feature register --namespace {namespace} --name {name}"
        yield Check(f"feature {name}", "error", _not_registered(registration), hint)


def _not_registered(registration: str) -> str:
    return "not registered" + ("" if registration == "NotRegistered" else f": {registration}")


def permissions(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that the user's roles on the subscription allow creating the declared resources."""
    declared = {resource.kind for resource in resources}
    needed = [action for kind, action in ACTIONS.items() if kind in declared]
    yield from granted("permissions", needed, arm, f"/subscriptions/{arm.subscription}")


def registry_permissions(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Check the user's permissions on the asset registry's subscription, if it is another one."""
    registry_subscription = settings.registry_subscription
    if settings.asset_registry.mode == "use" and registry_subscription != settings.subscription:
        needed = [ACTIONS["authorization:RoleAssignment"]]
        if settings.private:
            needed.append(CONNECTION)
        yield from granted(
            "permissions on the registry", needed, arm, f"/subscriptions/{registry_subscription}"
        )


def quota(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Check Azure ML's core quota in the region: dedicated by family and in total, spot in total.

    Azure ML lists an entry of the same name for dedicated and for low-priority cores, and again
    for each workspace and cluster; the id and the type distinguish them. -1 means no limit
    (azure-rest-api-specs, Microsoft.MachineLearningServices, examples/Usage/list.json).
    """
    needed = _needed_cores(settings)
    if not needed:
        return
    path = (
        f"/subscriptions/{arm.subscription}/providers/Microsoft.MachineLearningServices"
        f"/locations/{settings.location}/usages"
    )
    usages = {
        str((usage.get("name") or {}).get("value")).lower(): usage
        for usage in arm.all(path, version("machinelearningservices:Workspace"))
        if "/workspaces/" not in str(usage.get("id")).lower() and _counts(usage)
    }
    for name, (most, least) in sorted(needed.items()):
        yield _enough(name, most, least, usages.get(name.lower()), settings.location)


def _needed_cores(settings: Settings) -> Mapping[str, tuple[int, int]]:
    """Map each quota to the cores of all nodes, and to the largest minimum of one machine."""
    machines = [
        # Azure rejects a cluster without quota for one node, even if `min_nodes` is 0.
        *(
            (cluster.hardware, cluster.spot, cluster.max_nodes, max(cluster.min_nodes, 1))
            for cluster in settings.computes
        ),
        *((SIZES[machine.size], False, 1, 1) for machine in settings.machines("compute-instance")),
    ]
    needed: dict[str, tuple[int, int]] = {}
    for size, is_spot, most, least in machines:
        for name in (SPOT,) if is_spot else (size.family, DEDICATED):
            so_far, largest = needed.get(name, (0, 0))
            needed[name] = so_far + size.cores * most, max(largest, size.cores * least)
    return needed


def _counts(usage: Mapping[str, Any]) -> bool:
    """Return whether a quota limits clusters: spot cores have no limit per family."""
    spot = "lowpriority" in str(usage.get("type")).lower()
    return not spot or (usage.get("name") or {}).get("value") == SPOT


def _enough(
    quota: str, most: int, least: int, usage: Mapping[str, Any] | None, region: str
) -> Check:
    name, needed = f"quota {quota}", f"up to {most} are needed"
    if usage is None:
        message = f"{region} reports no quota; {most} cores are needed"
        return Check(name, "warning", message)
    limit, used = usage.get("limit"), usage.get("currentValue")
    if limit is None:
        return Check(name, "warning", f"Azure reports no limit; {needed}")
    hint = f"request {most} on Azure ML's quota page, or lower max_nodes"
    if limit == -1:
        return Check(name, "ok", "no limit")
    if limit < least:
        message = f"{limit} cores, fewer than the {least} that a machine needs to be created"
        return Check(name, "error", message, hint)
    if limit < most:
        return Check(name, "warning", f"{limit} cores, {needed}", hint)
    if used is None:
        message = f"{limit} cores, Azure does not report how many are free; {needed}"
        return Check(name, "warning", message)
    free = f"{limit - used} of {limit} cores are free"
    return Check(name, "ok" if limit - used >= most else "warning", f"{free}, {needed}")


# Kind with globally unique names → the input with the name, and the `type` for the request
# checkNameAvailability. `infra.settings` already checks their format (resource-name-rules).
GLOBAL: Mapping[str, tuple[str, str]] = {
    "storage:StorageAccount": ("accountName", "Microsoft.Storage/storageAccounts"),
    "keyvault:Vault": ("vaultName", "Microsoft.KeyVault/vaults"),
    "containerregistry:Registry": ("registryName", "Microsoft.ContainerRegistry/registries"),
}


def retirements(settings: Settings) -> Iterator[Check]:
    """Warn of each VM size with an announced retirement; `infra settings` rejects retired ones."""
    retiring = {size: entry for size in settings.sizes if (entry := retirement(size))}
    for size, entry in sorted(retiring.items()):
        message = f"the {entry.family} series retires on {entry.day}"
        yield Check(f"size {size}", "warning", message, f"use {entry.instead}")
    if not retiring:
        yield Check("sizes", "ok", "no retirement is announced")


DELETED_VAULTS = "Microsoft.KeyVault/deletedVaults"
DELETED_LOGS = "Microsoft.OperationalInsights/deletedWorkspaces"


def free_names(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that each globally unique name is free, or in use by the declared resource itself."""
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        if resource.kind not in GLOBAL:
            continue
        field, type = GLOBAL[resource.kind]
        name, provider = str(resource.inputs[field]), type.partition("/")[0]
        path = f"/subscriptions/{arm.subscription}/providers/{provider}/checkNameAvailability"
        answer = arm.query(path, version(resource.kind), {"name": name, "type": type})
        if answer.get("nameAvailable") is True:
            yield Check(f"name {name}", "ok", "free")
        elif arm.get(*addresses.place(resource)) is not None:
            yield Check(f"name {name}", "ok", "used by the declared resource itself")
        else:
            message = str(answer.get("message") or answer.get("reason") or "taken")
            hint = "platform:name is a part of every name"
            yield Check(f"name {name}", "error", message, hint)


def deleted_vaults(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that no soft-deleted vault has a declared name, which it reserves until its purge."""
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
            # After `pulumi destroy`, the state lacks the vault: Pulumi would try to create the
            # recovered one (pulumi/pulumi-azure-native#4052).
            hint = (
                f"az keyvault recover --name {name} --location {region}; after `pulumi destroy`"
                " increase `generation` in platform:vault instead"
            )
            yield Check(f"vault {name}", "error", message, hint)
    if not reserved:
        yield Check("deleted vaults", "ok", "none has a declared name")


def deleted_logs(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check for deleted Log Analytics workspaces: a new one of that name restores the old data.

    In another region the name is reserved for fourteen days (azure-monitor/logs/delete-workspace).
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
                yield Check(name, "warning", "deleted; the new workspace restores all its data")
            else:
                where = region or "another region"
                message = f"deleted in {where}; its name is reserved for 14 days"
                yield Check(name, "error", message, "platform:name")
    if declared and not reserved:
        yield Check("deleted logs", "ok", "none has a declared name")


def deleted_workspaces(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Warn of each workspace that does not exist yet: a deleted one may reserve its name.

    It does so for fourteen days (machine-learning/concept-soft-delete); only the portal lists it.
    """
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        is_workspace = resource.kind == "machinelearningservices:Workspace"
        if is_workspace and arm.get(*addresses.place(resource)) is None:
            name = str(resource.inputs["workspaceName"])
            message = "only the portal shows whether a deleted one reserves this name"
            hint = (
                'purge it in the portal ("Recently deleted"), or change `generation` or `name` in'
                " platform:workspace"
            )
            yield Check(f"workspace {name}", "warning", message, hint)


def failed_clusters(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that no cluster is in the state Failed, which an update does not repair."""
    addresses = Addresses(resources, arm.subscription)
    failed = 0
    for resource in resources:
        if resource.kind != "machinelearningservices:Compute":
            continue
        place = addresses.place(resource)
        properties = (arm.get(*place) or {}).get("properties") or {}
        if properties.get("provisioningState") == "Failed":
            failed += 1
            _, _, _, _, group, *_, workspace, _, name = place.id.split("/")
            where = f"--resource-group {group} --workspace-name {workspace}"
            hint = f"az ml compute delete --name {name} {where}, then the deployment again"
            yield Check(f"cluster {name}", "error", "Azure failed to create it", hint)
    if not failed:
        yield Check("clusters", "ok", "none is in the state Failed")


def budget(resources: Sequence[Resource], arm: Arm, today: date) -> Iterator[Check]:
    """Check that a new budget begins in this month or one of the next twelve."""
    addresses = Addresses(resources, arm.subscription)
    for resource in resources:
        if resource.kind != "consumption:Budget":
            continue
        month = str(resource.inputs["timePeriod"]["startDate"])[:7]
        if arm.get(*addresses.place(resource)) is not None:
            yield Check(resource.name, "ok", f"exists since {month}")
        elif f"{today:%Y-%m}" <= month <= f"{today.year + 1}-{today:%m}":
            yield Check(resource.name, "ok", f"will begin in {month}")
        else:
            message = f"begins in {month}; Azure accepts this month, or one of the next twelve"
            hint = f"platform:guardrails.budget_from: {today:%Y-%m}"
            yield Check(resource.name, "error", message, hint)
