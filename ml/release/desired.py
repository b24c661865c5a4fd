"""The desired state: which model version is to serve in which environment, as a file declares it.

`local` is declared in `.local/release/<project>.yml`, so that trying things out leaves the
repository clean; the file has the shape of a project's tracked release.yml.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import yaml

from ml.backends.local import home
from ml.serving import files
from ml.specs.problems import Place, Problem, Refused

ENVIRONMENTS = ("local",)
SCHEMA_VERSION = 1
_HEADER = "# Written by `ml release propose`; `ml release apply` brings it about.\n"


@dataclass(frozen=True)
class Declared:
    """A version that is declared: `digest` is the model's, `evidence` and `decision` are sha256.

    `decision` is the hash of the audit line that holds the gates' results; `reason` is why a
    champion is replaced by a version that is not shown to be better, "" otherwise.
    """

    model: str
    version: str
    digest: str
    evidence: str
    decision: str
    reason: str = ""


def path(project: str) -> Path:
    """The project's file."""
    return home.home() / "release" / f"{project}.yml"


def locked(project: str) -> AbstractContextManager[None]:
    """Hold the project's release: proposing and applying happen one at a time."""
    return files.locked(path(project).with_suffix(".lock"))


def applying(project: str) -> AbstractContextManager[None]:
    """Hold the project's rollout, which may take long: one apply at a time, proposals go on."""
    return files.locked(path(project).with_suffix(".apply.lock"))


def read(project: str, environment: str) -> Declared | None:
    """What is declared; None when nothing is. Raises Refused when the file cannot be read."""
    file = path(project)
    if not file.is_file():
        return None
    names = {field.name for field in fields(Declared)}
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        entry = document["environments"].get(environment)
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {document['schema_version']}")
        if entry is None:
            return None
        return Declared(**{name: str(entry[name]) for name in names})
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            Problem(
                "release-file",
                f"it cannot be read: {str(error).splitlines()[0]}",
                ", ".join(sorted(names)),
                f"`ml release propose {project}` writes it again",
                Place(str(file), 1),
            )
        ) from None


def declare(project: str, environment: str, declared: Declared) -> Path:
    """Write the declaration over the old one, in one step; returns the file."""
    entry = {"environments": {environment: asdict(declared)}}
    text = yaml.safe_dump({"schema_version": SCHEMA_VERSION, **entry}, sort_keys=False)
    files.replace(path(project), _HEADER + text)
    return path(project)


def check_environment(environment: str) -> str:
    """The environment, if releases know it; raises Refused otherwise."""
    if environment not in ENVIRONMENTS:
        raise Refused(
            Problem(
                "no-such-environment",
                f"there is no environment `{environment}`",
                f"one of: {', '.join(ENVIRONMENTS)}",
                "cloud environments come with the Azure backend (the README's status table)",
            )
        )
    return environment


def projects() -> Sequence[str]:
    """The projects that something is declared for, by name."""
    return sorted(file.stem for file in (home.home() / "release").glob("*.yml"))
