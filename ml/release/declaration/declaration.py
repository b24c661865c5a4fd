"""What a release.yml may say, as types, which make the JSON Schema for editors too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema
from pydantic.config import JsonDict

from ml.release.declaration.strategy import CLOSED, Strategy

SCHEMA = Path(__file__).with_name("release.schema.json")
SCHEMA_VERSION = 1
# What a declaration consists of; `reason` may be left out.
DECLARED = ("model", "version", "digest", "evidence", "decision")

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _whole(value: object) -> object:
    """YAML's `true` equals 1 to Python."""
    return str(value).lower() if isinstance(value, bool) else value


SchemaVersion = Annotated[Literal[1], BeforeValidator(_whole)]

# Each asks for the next, round in a circle.
_ALL_OR_NONE: JsonDict = {
    "reason": [DECLARED[0]],
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
    reason: Annotated[
        str, Field(description="Why a version takes over that is not shown to be better.")
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


TRACKED_FILE: TypeAdapter[Any] = TypeAdapter(Tracked)
LOCAL_FILE: TypeAdapter[Any] = TypeAdapter(Local)


def schema(of: TypeAdapter[Any] = TRACKED_FILE) -> Mapping[str, Any]:
    """The JSON Schema (draft 2020-12) of a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_untitled(of.json_schema()),
    }


def _untitled(made: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(made, list):
        return [_untitled(one) for one in made]
    if not isinstance(made, dict):
        return made
    return {
        key: _untitled(value)
        for key, value in made.items()
        if key != "title" or not isinstance(value, str)
    }
