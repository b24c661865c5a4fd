"""Whether there is such a region, and whether it has what the settings ask of it."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from infra.network_agreement import Found
from infra.regions import NO_PAIR, NO_ZONES, REGIONS
from infra.settings import Settings

KEYS = ("azure-native:location",)


def _known(settings: Settings) -> Found:
    given = settings.location
    if given not in REGIONS:
        near = difflib.get_close_matches(given, sorted(REGIONS), 1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        hint = f"{meant}a region that is newer than the list goes into infra/regions.py"
        expected = "a region, as `az account list-locations` names it"
        yield (
            "unknown-region",
            f"`{given}` is no region of Azure's public cloud",
            expected,
            hint,
            KEYS,
        )


def _copies(settings: Settings) -> Found:
    """Azure refuses copies over zones, or in a paired region, where there are none.

    Sources: storage/common/storage-redundancy, container-registry/zone-redundancy.
    """
    region, copies = settings.location, settings.storage.redundancy
    within = copies.replace("Z", "") if "G" in copies else "LRS"
    zonal = (
        ("storage.redundancy", copies, copies.endswith("ZRS"), within),
        ("images.zone_redundant", "true", settings.images.zone_redundant, "false"),
        ("storage.nfs_share_gib", "more than 0", bool(settings.storage.nfs_share_gib), "0"),
    )
    for setting, value, over_zones, instead in zonal:
        if region in NO_ZONES and over_zones:
            found = f"`{region}` has no availability zones: `platform:{setting}` is {value}"
            hint = f"set `platform:{setting}: {instead}`, or take another region"
            yield "no-zones", found, "a region with zones", hint, KEYS
    if region in NO_PAIR and "G" in copies:
        found = f"`{region}` has no paired region: `platform:storage.redundancy` is {copies}"
        hint = "set `platform:storage.redundancy: ZRS`, or take another region"
        yield "no-pair", found, "a region with a pair", hint, KEYS


CHECKS: tuple[Callable[[Settings], Found], ...] = (_known, _copies)
