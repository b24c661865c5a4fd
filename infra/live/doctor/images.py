"""The images that machines start from: in their region, and with Trusted Launch where it is asked.

Which images have it is in no document; Azure says it of each (rest/api/compute/virtual-machine-
images/get, `features`). It refuses a machine with Trusted Launch of an image without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.live.addresses import version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource

KIND = "compute:VirtualMachine"
# The security types of an image that Azure's own command line takes for it.
TRUSTED = {"TrustedLaunchSupported", "TrustedLaunch", "TrustedLaunchAndConfidentialVmSupported"}


def bootable(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Whether the newest version of each image is there, and takes what its machines ask for."""
    images: dict[tuple[str, str, str, str], bool] = {}
    for one in resources:
        image = (one.inputs.get("storageProfile") or {}).get("imageReference")
        if one.kind != KIND or not image:
            continue
        key = one.inputs["location"], image["publisher"], image["offer"], image["sku"]
        trusted = (one.inputs.get("securityProfile") or {}).get("securityType") == "TrustedLaunch"
        images[key] = images.get(key, False) or trusted
    for (location, publisher, offer, sku), trusted in images.items():
        path = (
            f"/subscriptions/{arm.subscription}/providers/Microsoft.Compute/locations/{location}"
            f"/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
        )
        name = f"image {publisher}:{offer}:{sku}"
        offered: list[Mapping[str, Any]] = [one or {} for one in arm.array(path, version(KIND))]
        newest = max(offered, key=_numbers).get("name") if offered else None
        found = arm.get(f"{path}/{newest}", version(KIND)) if newest else None
        if found is None:
            hint = "another region, or another image in infra/components/workstations.py"
            yield Check(name, "error", f"not in {location}", hint)
        elif trusted and not _trusted(found):
            hint = "leave out TrustedLaunch in infra/components/workstations.py"
            said = f"{newest} in {location} has no Trusted Launch"
            yield Check(name, "error", said, hint)
        else:
            yield Check(name, "ok", f"{newest} in {location}")


def _numbers(image: Mapping[str, Any]) -> tuple[int, ...]:
    """A version is three numbers, such as 24.10.2; nothing else counts as one."""
    parts = str(image.get("name")).split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def _trusted(image: Mapping[str, Any]) -> bool:
    features = (image.get("properties") or {}).get("features") or []
    return any((one or {}).get("value") in TRUSTED for one in features)
