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


def registered(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
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


def features(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
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
