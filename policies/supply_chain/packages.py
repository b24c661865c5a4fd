"""The packages of a lock as they are installed, their licences, and a bill of materials.

Which licences are allowed is in `policies/promotion/gates.yml` (`supply-chain`).
Licences are SPDX expressions. Since core metadata 2.4 `License-Expression` is one. Older packages
have classifiers or free text, of which the unambiguous ones are read
(https://peps.python.org/pep-0639/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

# The licence of a package that states none.
UNKNOWN = "NOASSERTION"
# The last part of a trove classifier, or a License text, in lower case → SPDX id.
_SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    # The package does not say which BSD licence.
    "bsd": "LicenseRef-BSD",
    "bsd license": "LicenseRef-BSD",
    "isc license (iscl)": "ISC",
    "isc": "ISC",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}


def licence_expression(stated: str, classifiers: Sequence[str], text: str) -> str:
    """Return the SPDX expression that the metadata states; `NOASSERTION` when they state none.

    `stated` is License-Expression, `classifiers` every Classifier, `text` the License field.
    Several classifiers may mean OR or AND; they are read as AND, so each must be allowed.
    """
    if stated.strip():
        return stated.strip()
    exact = _SPDX.get(text.strip().lower()) or _canonical(text)
    classified = {
        _SPDX.get(name.lower(), "LicenseRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-"))
        for classifier in classifiers
        # "OSI Approved" and "DFSG approved" say who approved the licence, not which it is.
        if classifier.startswith("License :: ") and not classifier.lower().endswith("approved")
        for name in [classifier.split(" :: ")[-1]]
    }
    # The text says which BSD licence it is. It does not override another licence's classifier.
    if exact and classified <= {"LicenseRef-BSD", exact}:
        return exact
    return " AND ".join(sorted(classified)) or UNKNOWN


def licence_allowed(expression: str, licences: Collection[str]) -> bool:
    """Return whether the list allows the expression: one side of OR, both sides of AND.

    A text that is not an SPDX expression is not allowed. A licence with an exception (WITH) is
    allowed if the list names the pair.
    """
    text = _canonical(expression)
    holds = {*licences, "+"}  # "+" stands for a bracket that is allowed

    def is_allowed(part: str) -> bool:
        choices = (choice.split(" AND ") for choice in part.split(" OR "))
        return any(all(name.strip() in holds for name in choice) for choice in choices)

    while "(" in text:
        text = re.sub(r"\(([^()]*)\)", lambda part: "+" if is_allowed(part[1]) else "-", text)
    return is_allowed(text)


def _canonical(text: str) -> str:
    """Return the SPDX expression in its canonical form, or "" when it is not valid."""
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return ""


# A line of a lock, its continuations joined: a package in one version, and its hashes.
_PIN = re.compile(
    r"([A-Za-z0-9][\w.-]*)(?:\[[\w, .-]*\])?==([\w.!+-]+)\s*(?:;[^#]*?)?(?:\s*--hash=\S+)*",
    re.ASCII,
)
SPEC_VERSION = "1.6"


@dataclass(frozen=True)
class Package:
    """A package of the lock."""

    name: str
    locked: str  # version in the lock
    installed: str  # version that is installed, "" if none is
    licence: str  # SPDX expression


def packages(lock: Path) -> tuple[Package, ...]:
    """Return the pinned packages of a requirements file, by name; raise OSError without the file.

    Raise ValueError with the line for anything but `package==version`: pip would also install a
    URL, another file or another notation, which no bill of materials would list.
    """
    pins: dict[str, str] = {}
    text = re.sub(r"(?m)^\s*#.*$|\s#.*$", "", lock.read_text(encoding="utf-8"))
    for line in filter(None, map(str.strip, text.replace("\\\n", "").splitlines())):
        if (pin := _PIN.fullmatch(line)) is None:
            raise ValueError(f"{lock.name} has `{line[:100]}`, which is no package==version")
        pins[canonicalize_name(pin[1])] = pin[2]
    return tuple(_package(name, pins[name]) for name in sorted(pins))


def sbom(packages: tuple[Package, ...]) -> str:
    """Return the packages as CycloneDX JSON (https://cyclonedx.org/docs/1.6/json/).

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
    licence = licence_expression(stated[0], metadata.get_all("Classifier") or [], text[0])
    return Package(name, locked, installed.version, licence)
