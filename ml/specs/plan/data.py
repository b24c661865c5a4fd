"""What goes into a planned job and comes out of it: inputs, outputs, assets, its environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ml.core.errors import Place

Value = str | int | float | bool
Mode = Literal[
    "ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download", "upload"
]

LITERALS = frozenset({"string", "number", "integer", "boolean"})


@dataclass(frozen=True)
class Asset:
    """A named, versioned thing: `azureml:name:version`; the digest is sha256 of its content.

    `made_by` is the run that registered it on this machine, "" of one that a spec defines.
    """

    name: str
    version: str
    digest: str = ""
    made_by: str = ""

    def __str__(self) -> str:
        return f"azureml:{self.name}:{self.version}"


@dataclass(frozen=True)
class InputPlan:
    """An input: a literal `value`, or data at `path` (local, absolute) or `source` (as written).

    `type` is Azure ML's: string number integer boolean uri_file uri_folder mltable custom_model
    mlflow_model triton_model. A remote source that this machine does not hold has `path=None`.
    """

    name: str
    type: str
    place: Place
    value: Value | None = None
    source: str = ""
    path: Path | None = None
    asset: Asset | None = None
    mode: str = "ro_mount"

    @property
    def is_literal(self) -> bool:
        """Whether the command receives the value itself, not the path of data."""
        return self.type in LITERALS


@dataclass(frozen=True)
class OutputPlan:
    """A path that the job may write, kept when it ends; registered when `asset` is set.

    An `asset` without a version gets the next one that is free.
    """

    name: str
    type: str
    place: Place
    mode: str = "rw_mount"
    asset: Asset | None = None


@dataclass(frozen=True)
class Dependency:
    """A line of a conda file, as written; `manager` is who installs it on Azure ML."""

    text: str
    manager: Literal["conda", "pip"]
    place: Place


@dataclass(frozen=True)
class Environment:
    """The environment a job asks for: an asset, a name, or an inline definition.

    With `dockerfile` its image is built from one. `dependencies` are those of its conda file (or of
    the mapping in its place), with what the file includes by `-r`; None where it has none, or it is
    not on this machine.
    """

    reference: str
    image: str = ""
    dockerfile: bool = False
    conda_file: Path | None = None
    dependencies: tuple[Dependency, ...] | None = None
    place: Place | None = None
