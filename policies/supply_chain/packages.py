"""The packages of a lock as they are installed, and their bill of materials in CycloneDX JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from policies.supply_chain.licences import UNKNOWN, expression

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.M)
SPEC_VERSION = "1.6"


@dataclass(frozen=True)
class Package:
    """A package of the lock; `installed` is "" when it is not there, `licence` is SPDX."""

    name: str
    locked: str
    installed: str
    licence: str


def normalised(name: str) -> str:
    """The name as package indexes compare it (https://peps.python.org/pep-0503/)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lock: Path) -> tuple[Package, ...]:
    """Every pinned package of a requirements file, by name; raises OSError when there is none."""
    pins = {normalised(name): of for name, of in _PIN.findall(lock.read_text(encoding="utf-8"))}
    return tuple(_package(name, pins[name]) for name in sorted(pins))


def sbom(found: tuple[Package, ...]) -> str:
    """CycloneDX JSON of the packages (https://cyclonedx.org/docs/1.6/json/): the same packages
    give the same bytes, so it has neither a time nor a random serial number.
    """
    components = [
        {
            "type": "library",
            "bom-ref": _purl(one),
            "name": one.name,
            "version": one.installed or one.locked,
            "purl": _purl(one),
            **({} if one.licence == UNKNOWN else {"licenses": [{"expression": one.licence}]}),
        }
        for one in found
    ]
    document: Mapping[str, object] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "components": components,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def digest(text: str) -> str:
    """The sha256 of a bill of materials, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _purl(one: Package) -> str:
    return f"pkg:pypi/{one.name}@{one.installed or one.locked}"


def _package(name: str, locked: str) -> Package:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Package(name, locked, "", UNKNOWN)
    about = found.metadata
    stated, text = (about.get_all(name) or [""] for name in ("License-Expression", "License"))
    licence = expression(stated[0], about.get_all("Classifier") or [], text[0])
    return Package(name, locked, found.version, licence)
