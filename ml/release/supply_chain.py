"""What a model was made with, as the evidence states it: packages, licences, advisories, SBOM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ml.specs import repository
from ml.specs.problems import Place, Problem, Refused
from policies.supply_chain.advisories import AdvisoriesError, read
from policies.supply_chain.packages import digest, packages, sbom

LOCK = Path("requirements/main.lock")
# The local copy of OSV records: a folder, a zip or a file. The variable moves it.
ADVISORIES = Path("policies/supply_chain/advisories")
VARIABLE = "MLOPS_ADVISORIES"
SBOM = "sbom.json"


def look() -> tuple[Mapping[str, object], str]:
    """What evidence.json states under `supply_chain`, and the text of the SBOM.

    Without a lock both are empty, and the gate refuses that. Raises Refused for a source of
    advisories that is named or there, and cannot be read.
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
    source = Path(os.environ.get(VARIABLE) or repository.root() / ADVISORIES)
    if os.environ.get(VARIABLE) or source.exists():
        shown = repository.shown(source)
        try:
            known = read(source)
        except AdvisoriesError as error:
            hint = f"osv.dev hands out one zip an ecosystem; {VARIABLE} names another copy"
            place = Place(shown, 0)
            raise Refused(
                Problem("no-advisories", str(error), "records in OSV JSON", hint, place)
            ) from None
        stated |= {
            "source": shown,
            "as_of": known.as_of.isoformat(),
            "records": len(known.records),
            "advisories": list(known.found(found)),
        }
    return stated, bill
