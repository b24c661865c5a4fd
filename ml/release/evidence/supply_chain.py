"""The supply chain of a model as evidence: packages, licences, advisories, bill of materials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ml.core import repository
from ml.core.errors import Place, Problem, Refused
from policies.promotion.evidence import SupplyChain
from policies.supply_chain.advisories import Advisories, AdvisoriesError, read
from policies.supply_chain.packages import Package, digest, packages, sbom

LOCK = Path("requirements/main.lock")
# The local copy of OSV records: a folder, a zip or a file. The variable moves it.
ADVISORIES = Path("policies/supply_chain/advisories")
VARIABLE = "MLOPS_ADVISORIES"
SBOM = "sbom.json"


def look() -> tuple[Mapping[str, object], str]:
    """The field `supply_chain` of evidence.json, and the text of the bill of materials.

    Without a lock both are empty, which the gate refuses. Raises Refused for a source of advisories
    that cannot be read.
    """
    try:
        found = packages(repository.root() / LOCK)
    except OSError:
        return {}, ""
    bill = sbom(found)
    stated: dict[str, object] = {
        "lock": LOCK.as_posix(),
        "packages": {
            one.name: {"locked": one.locked, "installed": one.installed, "licence": one.licence}
            for one in found
        },
        "sbom": digest(bill),
    }
    known = _known()
    if known is not None:
        shown, advisories = known
        stated |= {
            "source": shown,
            "as_of": advisories.as_of.isoformat(),
            "records": len(advisories.records),
            "advisories": list(advisories.affecting(found)),
        }
    return stated, bill


def today(of: SupplyChain) -> SupplyChain:
    """The supply chain with today's advisories on its packages.

    An older source than that of the evidence only adds advisories. Raises Refused as `look` does.
    """
    known = _known()
    if known is None:
        return of
    shown, advisories = known
    packages = [
        Package(name, one.locked or "", one.installed or "", one.licence or "")
        for name, one in of.packages.items()
    ]
    found = advisories.affecting(packages)
    if of.as_of is not None and of.as_of > advisories.as_of:
        return replace(of, advisories=tuple(sorted({*found, *(of.advisories or ())})))
    return replace(of, source=shown, as_of=advisories.as_of, advisories=found)


def _known() -> tuple[str, Advisories] | None:
    """The source's name for messages and its advisories; None without a source."""
    source = Path(os.environ.get(VARIABLE) or repository.root() / ADVISORIES)
    if not os.environ.get(VARIABLE) and not source.exists():
        return None
    shown = repository.shown(source)
    try:
        return shown, read(source)
    except AdvisoriesError as error:
        hint = f"osv.dev hands out one zip an ecosystem; {VARIABLE} names another copy"
        problem = Problem("no-advisories", str(error), "records in OSV JSON", hint, Place(shown, 0))
        raise Refused(problem) from None
