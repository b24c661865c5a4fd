"""What the subscription has to have registered: resource providers and their features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.live.addresses import Addresses, Unplaced
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource

# The version by which azure-mgmt-resource asks for providers.
PROVIDERS = "2025-04-01"
# That of the features of a provider.
FEATURES = "2021-07-01"
# An endpoint stands on these too, and without them is refused with SubscriptionNotRegistered, which
# does not name them (learn.microsoft.com/answers/questions/2068819).
ENDPOINTS = ("Microsoft.Cdn", "Microsoft.PolicyInsights")
# A managed network makes its private endpoints with it (how-to-managed-network, Prerequisites).
NETWORK = "Microsoft.Network"


def registered(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Azure creates nothing of a provider that the subscription has not registered."""
    needed = _needed(resources, arm.subscription)
    missing = 0
    for name in sorted(needed):
        found = arm.get(f"/subscriptions/{arm.subscription}/providers/{name}", PROVIDERS) or {}
        state = found.get("registrationState") or "NotRegistered"
        if state == "Registered":
            continue
        missing += 1
        if state == "Registering":
            # A region whose registration is through already creates (resource-providers-and-types).
            yield Check(f"provider {name}", "warning", "is being registered in some regions yet")
        else:
            hint = f"az provider register --namespace {name}"
            yield Check(f"provider {name}", "error", _state(state), hint)
    if not missing:
        yield Check("resource providers", "ok", f"{len(needed)} are registered")


def _needed(resources: Sequence[Resource], subscription: str) -> set[str]:
    addresses = Addresses(resources, subscription)
    needed: set[str] = set()
    for one in resources:
        if one.kind == "machinelearningservices:OnlineEndpoint":
            needed.update(ENDPOINTS)
        managed = one.inputs.get("managedNetwork") or {}
        if managed.get("isolationMode", "Disabled") != "Disabled":
            needed.add(NETWORK)
        try:
            needed.add(addresses.place(one).id.rpartition("/providers/")[2].partition("/")[0])
        except Unplaced:
            continue
    return {name for name in needed if name.startswith("Microsoft.")}


def features(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Encryption at host is refused to a subscription that has not asked for it."""
    if not any(
        (one.inputs.get("securityProfile") or {}).get("encryptionAtHost") for one in resources
    ):
        return
    namespace, name = "Microsoft.Compute", "EncryptionAtHost"
    path = f"providers/Microsoft.Features/providers/{namespace}/features/{name}"
    found = arm.get(f"/subscriptions/{arm.subscription}/{path}", FEATURES) or {}
    state = (found.get("properties") or {}).get("state") or "NotRegistered"
    if state == "Registered":
        yield Check(f"feature {name}", "ok", "registered")
    else:
        hint = f"az feature register --namespace {namespace} --name {name}"
        yield Check(f"feature {name}", "error", _state(state), hint)


def _state(state: str) -> str:
    return "not registered" if state == "NotRegistered" else f"not registered: {state}"
