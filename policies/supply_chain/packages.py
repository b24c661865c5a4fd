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
    """A package of the lock; `installed` is "" when it is missing, `licence` is SPDX."""

    name: str
    locked: str
    installed: str
    licence: str


def normalised(name: str) -> str:
    """The name as package indexes compare it (https://peps.python.org/pep-0503/)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lock: Path) -> tuple[Package, ...]:
    """Every pinned package of a requirements file, by name; OSError when the file is missing."""
    lines = lock.read_text(encoding="utf-8")
    pins = {normalised(name): version for name, version in _PIN.findall(lines)}
    return tuple(_package(name, pins[name]) for name in sorted(pins))


def sbom(packages: tuple[Package, ...]) -> str:
    """CycloneDX JSON of the packages (https://cyclonedx.org/docs/1.6/json/).

    The same packages give the same bytes, so it has no time and no random serial number.
    """
    components = [
        {
            "type": "library",
            "bom-ref": _purl(package),
            "name": package.name,
            "version": package.installed or package.locked,
            "purl": _purl(package),
            **_licenses(package),
        }
        for package in packages
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


def _licenses(package: Package) -> Mapping[str, object]:
    return {} if package.licence == UNKNOWN else {"licenses": [{"expression": package.licence}]}


def _purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.installed or package.locked}"


def _package(name: str, locked: str) -> Package:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return Package(name, locked, "", UNKNOWN)
    metadata = installed.metadata
    stated, text = (metadata.get_all(key) or [""] for key in ("License-Expression", "License"))
    licence = expression(stated[0], metadata.get_all("Classifier") or [], text[0])
    return Package(name, locked, installed.version, licence)
