"""The dependencies of a conda file as requirements that `packaging` and `uv` understand.

Conda's match specifications are read as its documentation says ("Package match specifications",
docs.conda.io/projects/conda-build): `numpy=1.26` means 1.26 and all below it, `numpy==1.26` that
version alone, `|` means or; a third part is the build, which only conda has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ml.backends.local.environments.names import is_of_python, on_pypi
from ml.specs.plan.plan import Dependency

_MATCH = re.compile(
    r"(?:[^\s=<>!~\[]+::)?(?P<name>[\w.\-]+)\s*"
    r"(?:\[(?:.*?version\s*=\s*['\"]?(?P<inside>[^'\"\],]+)['\"]?.*)?\]|(?P<rest>.*))$"
)
_OPTION = re.compile(r"\s--?[A-Za-z].*$")
# What a Python that Azure ML's images have is called in a conda file.
_PYTHON = "python"


@dataclass(frozen=True)
class Asked:
    """A dependency understood: a package by its name on PyPI, and the versions that will do.

    `versions` are alternatives, () for any version. `requirement` is what `uv` is given, "" for
    Python itself and its parts; None where PyPI has no such thing.
    """

    dependency: Dependency
    name: str
    versions: tuple[SpecifierSet, ...]
    requirement: str | None
    extras: frozenset[str] = frozenset()

    @property
    def is_python(self) -> bool:
        """Whether it is Python itself."""
        return self.dependency.manager == "conda" and self.name == _PYTHON

    def takes(self, version: str) -> bool:
        """Whether the version will do; a local part (`2.13.0+cpu`) counts only where asked for."""
        if not self.versions:
            return True
        try:
            found = Version(version)
        except InvalidVersion:
            return False
        return any(one.contains(found, prereleases=True) for one in self.versions)


def understood(dependencies: Sequence[Dependency]) -> Iterator[Asked]:
    """The dependencies that apply on this machine, without the parts of Python itself.

    What `packaging` cannot read (an address, a folder, an option of pip) has the name "".
    """
    for one in dependencies:
        found = _conda(one) if one.manager == "conda" else _pip(one)
        if found is not None:
            yield found


def _conda(one: Dependency) -> Asked | None:
    match = _MATCH.match(one.text)
    if match is None:
        return Asked(one, "", (), None)
    name = match["name"].lower()
    if is_of_python(name):
        return None
    said = (match["inside"] or match["rest"] or "").strip()
    try:
        versions = () if "*" in said.split("|") else tuple(_versions(said))
    except InvalidSpecifier:
        return Asked(one, "", (), None)
    if name == _PYTHON:
        return Asked(one, name, versions, "")
    pypi = on_pypi(name)
    if pypi is None:
        return Asked(one, name, versions, None)
    # uv knows no "or": it gets the first alternative; a build's name is conda's alone.
    requirement = pypi + (str(versions[0]) if versions else "")
    return Asked(one, pypi.partition("[")[0], versions, requirement)


def _versions(said: str) -> Iterator[SpecifierSet]:
    """`1.26`, `=1.26.*`, `==1.26.4=py311_0`, `>=1.2,<2|3.*` → what packaging makes of them.

    Nothing when any version will do.
    """
    if said in {"", "*"}:
        return
    for alternative in said.split("|"):
        parts = []
        for part in alternative.split(","):
            found = re.match(r"\s*(?P<sign>==|!=|>=|<=|~=|=|<|>)?\s*(?P<number>[^\s=]+)", part)
            if found is None:
                raise InvalidSpecifier(part)
            sign, number = found["sign"] or "", found["number"]
            has_build = re.search(r"[^\s=<>!~][\s=]+[^\s=<>!~]", part.strip()[len(sign) :])
            if number == "*":
                continue
            if sign == "=" and not has_build and not number.endswith("*"):
                number += ".*"
            number = re.sub(r"(?<=\d)\*$", ".*", number)
            parts.append(f"{'==' if sign in {'', '='} else sign}{number}")
        if not parts:
            return
        yield SpecifierSet(",".join(parts))


def _pip(one: Dependency) -> Asked | None:
    text = _OPTION.sub("", one.text).strip()
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return Asked(one, "", (), one.text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    versions = (requirement.specifier,) if requirement.specifier else ()
    return Asked(one, requirement.name, versions, one.text, frozenset(requirement.extras))
