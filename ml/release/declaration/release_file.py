"""release.yml: which version serves in which environment, as types that read it with line numbers.

The JSON Schema for editors (`release.schema.json`) is made of the same types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from ml.core import documents, repository, settings
from ml.core.documents import Document
from ml.core.errors import Place, Problem, Refused
from ml.core.settings import CLOSED, SchemaVersion
from ml.release.declaration import strategy
from ml.release.declaration.projects import Project
from ml.release.declaration.strategy import Strategy, StrategyError

SCHEMA = Path(__file__).with_name("release.schema.json")
SCHEMA_VERSION = 1
# The fields of a declaration; `serving` and `reason` may be left out.
DECLARED = ("model", "version", "digest", "evidence", "decision")

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

# Each field requires the next one, in a ring: all of them or none.
_ALL_OR_NONE: JsonDict = {
    "reason": [DECLARED[0]],
    "serving": [DECLARED[0]],
    **{name: [after] for name, after in pairwise([*DECLARED, DECLARED[0]])},
}


def _text(value: object) -> object:
    """Versions are numbers to a person and text to a registry."""
    return str(value) if type(value) is int else value


@dataclass(frozen=True)
class Entry:
    """What an environment is to serve; `ml release propose` writes all of it but `traffic`."""

    __pydantic_config__ = ConfigDict(
        **CLOSED, json_schema_extra={"dependentRequired": _ALL_OR_NONE}
    )

    model: Annotated[
        str,
        Field(
            pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
            description="The model, named as the endpoint that serves it.",
        ),
    ] = ""
    version: Annotated[
        str,
        BeforeValidator(_text),
        Field(pattern="^[1-9][0-9]*$"),
        WithJsonSchema(
            {
                "type": ["string", "integer"],
                "pattern": "^[1-9][0-9]*$",
                "minimum": 1,
                "description": "Its version in the registry.",
            }
        ),
    ] = ""
    digest: Annotated[
        str,
        Field(
            pattern="^sha256:[0-9a-f]{64}$",
            description="Of the whole model folder; verified before anything is touched.",
        ),
    ] = ""
    evidence: Annotated[Sha256, Field(description="The sha256 of the version's evidence.json.")] = (
        ""
    )
    decision: Annotated[
        Sha256, Field(description="The hash of the gates' decision in the audit log.")
    ] = ""
    serving: Annotated[
        Sha256,
        Field(description="Of the serving code and the deployment's settings."),
    ] = ""
    reason: Annotated[
        str, Field(description="Why to promote a version that was not shown to be better.")
    ] = ""
    traffic: Annotated[
        Strategy, Field(description="What differs here from the project's `traffic`.")
    ] = field(default_factory=Strategy)


@dataclass(frozen=True)
class Environments:
    """The environments that git declares."""

    __pydantic_config__ = CLOSED

    dev: Entry | None = None
    staging: Entry | None = None
    prod: Entry | None = None


@dataclass(frozen=True)
class Tracked:
    """Which model version serves where, and how a new one is tried beside it."""

    __pydantic_config__ = CLOSED

    schema_version: SchemaVersion
    environments: Environments
    traffic: Annotated[
        Strategy, Field(description="How a canary is led, unless an environment says otherwise.")
    ] = field(default_factory=Strategy)


@dataclass(frozen=True)
class LocalEnvironments:
    """The one environment that git does not declare."""

    __pydantic_config__ = CLOSED

    local: Entry | None = None


@dataclass(frozen=True)
class Local:
    """The file of the environment `local`, which lies in the local home."""

    __pydantic_config__ = CLOSED

    schema_version: SchemaVersion
    environments: LocalEnvironments


@dataclass(frozen=True)
class ReleaseFile:
    """A release.yml without problems: its entries and strategies by environment."""

    document: Document
    entries: Mapping[str, Entry]
    strategies: Mapping[str, Strategy]

    def strategy(self, environment: str) -> Strategy:
        """The canary strategy there; the project's own where the environment states none."""
        return self.strategies.get(environment, self.strategies[""])


def read(path: Path, kind: type[Tracked | Local] = Tracked) -> ReleaseFile:
    """The file at `path`; raises Refused with every problem, each with its line."""
    document = documents.read(path, repository.shown(path))
    release = settings.read(kind, document)
    entries = {name: entry for name, entry in vars(release.environments).items() if entry}
    problems = [
        problem for name, entry in entries.items() for problem in _gaps(name, entry, document)
    ]
    strategies: dict[str, Strategy] = {}
    for name in ("", *entries):
        try:
            strategies[name] = strategy.complete(_traffic(document, name))
        except StrategyError as error:
            problems.append(_unfit(error, name, document))
            if not name:  # an environment's strategy builds on the project's
                break
    if problems:
        raise Refused(*problems)
    return ReleaseFile(document, entries, strategies)


def check(path: Path) -> Sequence[Problem]:
    """Every problem of a project's release.yml that shows without a registry."""
    try:
        release = read(path)
        model = Project(path.parent.name, path.parent).model()
    except Refused as refused:
        return refused.problems
    return [
        problem
        for environment, entry in release.entries.items()
        if entry.model
        for problem in _entry_problems(path, environment, entry, model, release.document)
    ]


def evidence_path(file: Path, environment: str) -> Path:
    """The copy of the evidence beside a tracked declaration, for the pull request."""
    return file.parent / "evidence" / f"{environment}.json"


def other_project(found: str, model: str, place: Place) -> Problem:
    """The problem of a model that another project makes."""
    expected = f"`{model}`, the model of this project's endpoint"
    hint = "`ml release propose` writes the right one"
    return Problem("model-of-another-project", f"the model `{found}`", expected, hint, place)


def evidence_edited(file: Path, found: str, sha256: str, place: Place) -> Problem:
    """The problem of evidence that differs from the declared hash."""
    return Problem(
        "evidence-edited",
        f"{repository.shown(file)} {found}",
        f"the file with the sha256 {sha256}, as the release declares",
        "restore it from git, or propose the version again",
        place,
    )


def evidence_problem(file: Path, sha256: str, place: Place) -> Problem | None:
    """The problem of the evidence copy; None when its hash is the declared one."""
    try:
        is_now = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return evidence_edited(file, f"cannot be read ({error.strerror})", sha256, place)
    return None if is_now == sha256 else evidence_edited(file, "was changed", sha256, place)


def schema() -> Mapping[str, Any]:
    """The JSON Schema of a tracked release.yml."""
    return settings.schema(Tracked)


def _traffic(document: Document, environment: str) -> dict[str, Any]:
    """The project's `traffic` with the environment's over it, field by field."""
    project = dict(document.get("traffic") or {})
    own = (document.get("environments", environment, "traffic") if environment else None) or {}
    tolerances = {**project.get("tolerances", {}), **own.get("tolerances", {})}
    return {**project, **own, **({"tolerances": tolerances} if tolerances else {})}


def _gaps(name: str, entry: Entry, document: Document) -> Iterator[Problem]:
    """A declaration has all of its fields or none."""
    missing = [part for part in DECLARED if not getattr(entry, part)]
    if missing and (len(missing) < len(DECLARED) or entry.reason):
        yield Problem(
            "half-declared",
            f"`{name}` has no {', no '.join(f'`{part}`' for part in missing)}",
            ", ".join(DECLARED),
            f"`ml release propose PROJECT --env {name}` writes them",
            document.place("environments", name),
        )


def _unfit(error: StrategyError, environment: str, document: Document) -> Problem:
    own = ("environments", environment, "traffic")
    keys = own if environment and document.get(*own, error.field) is not None else ("traffic",)
    where = f" in {environment}" if environment else ""
    place = document.place(*keys, error.field)
    return Problem("wrong-value", f"{error.found}{where}", error.expected, place=place)


def _entry_problems(
    path: Path, environment: str, entry: Entry, model: str | None, document: Document
) -> Iterator[Problem]:
    keys = ("environments", environment)
    if model and entry.model != model:
        yield other_project(entry.model, model, document.place(*keys, "model"))
    place = document.place(*keys, "evidence")
    if problem := evidence_problem(evidence_path(path, environment), entry.evidence, place):
        yield problem
