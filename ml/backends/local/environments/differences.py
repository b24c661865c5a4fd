"""What a job's environment asks for, and what this interpreter has instead of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from ml.specs.plan.plan import Dependency, Environment

# Differences that a line names; the others are counted (--dry-run has all).
NAMED = 4


@dataclass(frozen=True)
class Difference:
    """A dependency that this interpreter does not have as asked for.

    `here` is the version that it has, "" when it has none, None when nobody can compare: an
    address, an option of pip, a package that only conda has.
    """

    dependency: Dependency
    here: str | None

    def __str__(self) -> str:
        text = f"`{self.dependency.text}`"
        if self.here is None:
            return f"cannot be compared: {text}"
        return f"{text} → {self.here} here" if self.here else f"missing here: {text}"


@cache
def differences(environment: Environment) -> tuple[Difference, ...]:
    """In the order of the conda file; none of an environment without one."""
    return tuple(_differences(environment))


def compared(environment: Environment) -> str:
    """What came of the comparison, in a few words."""
    if environment.dependencies is None:
        return _why_not(environment)
    found = differences(environment)
    total = len(environment.dependencies)
    if not found:
        return f"all {total} packages that it asks for are here" if total else "it asks for nothing"
    # What the job may miss first.
    ranked = sorted(found, key=lambda one: (one.here is None, bool(one.here)))
    named = ", ".join(map(str, ranked[:NAMED]))
    more = f", and {len(found) - NAMED} more (--dry-run names them)" if len(found) > NAMED else ""
    return f"{len(found)} of {total} packages differ: {named}{more}"


def as_json(environment: Environment) -> dict[str, Any]:
    """The comparison for a program; `compared` is false where there was nothing to compare."""
    return {
        "reference": environment.reference,
        "conda_file": str(environment.conda_file) if environment.conda_file else None,
        "python": platform.python_version(),
        "compared": environment.dependencies is not None,
        "differences": [
            {
                "asked": one.dependency.text,
                "manager": one.dependency.manager,
                "place": str(one.dependency.place),
                "here": one.here,
            }
            for one in differences(environment)
        ],
    }


def _differences(environment: Environment) -> Iterator[Difference]:
    from ml.backends.local.environments.specs import understood

    for asked in understood(environment.dependencies or ()):
        if asked.is_python:
            here: str | None = platform.python_version()
        elif not asked.name or asked.requirement is None:
            here = None
        else:
            here = _installed(asked.name)
        if not here or not asked.takes(here):
            yield Difference(asked.dependency, here)
        elif lacking := _lacking(asked.name, asked.extras):
            yield Difference(asked.dependency, f"{here} without {', '.join(lacking)}")


def _lacking(name: str, extras: frozenset[str]) -> list[str]:
    """What the extras of an installed package need and this interpreter does not have."""
    from packaging.requirements import Requirement

    found = [Requirement(text) for text in requires(name) or ()] if extras else []
    wanted = [
        one.name
        for one in found
        if one.marker is not None
        and not one.marker.evaluate({"extra": ""})
        and any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]
    return sorted({one for one in wanted if not _installed(one)})


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _why_not(environment: Environment) -> str:
    if environment.conda_file is not None:
        return f"its conda file {environment.conda_file.name} is not there: nothing to compare"
    if environment.dockerfile:
        return "what its Dockerfile installs is not compared"
    if environment.image:
        return "an image alone, which cannot be compared"
    if environment.reference.startswith("azureml://registries/"):
        return "of a registry, which cannot be compared"
    return "no spec of this repository defines it: it cannot be compared"
