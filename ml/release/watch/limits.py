"""What counts as a breach: the project's watch.yml, or what holds without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from ml.specs import repository
from ml.specs.problems import Place, Problem, Refused

FILE = "watch.yml"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Limits:
    """`alpha` is the chance of a false alarm of one report; fewer than `min_rows` rows are not
    judged. A breach is at least so large: `distance` between numbers (Kolmogorov and Smirnov's, 0
    to 1), `psi` between categories, `missing` more of the rows, `loss` more per answer whose right
    one is known. `ignore` names columns that are not compared.
    """

    alpha: float = 0.01
    min_rows: int = 50
    distance: float = 0.15
    psi: float = 0.25
    missing: float = 0.05
    loss: float = 0.05
    ignore: Sequence[str] = ()


def read(folder: Path) -> Limits:
    """The limits of a project's folder; raises Refused when its file is wrong."""
    path = folder / FILE
    if not path.is_file():
        return Limits()
    try:
        return made(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        names = ", ".join(field.name for field in fields(Limits))
        found = str(error).splitlines()[0]
        raise Refused(
            Problem(
                *("watch-file", found, f"schema_version {SCHEMA_VERSION}; {names}"),
                place=Place(repository.shown(path), 1),
            )
        ) from None


def made(document: Any) -> Limits:
    """The limits of a parsed document; raises ValueError with what is wrong."""
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version is not {SCHEMA_VERSION}")
    given = {name: value for name, value in document.items() if name != "schema_version"}
    known = {field.name for field in fields(Limits)}
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{unknown[0]} is not one of {', '.join(sorted(known))}")
    ignored = given.pop("ignore", [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise ValueError("ignore is no list of columns")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise ValueError(f"{name} {value}: a number above 0")
    limits = Limits(**given, ignore=tuple(ignored))
    if limits.alpha > 0.5:
        raise ValueError(f"alpha {limits.alpha}: at most 0.5")
    if limits.min_rows != int(limits.min_rows) or limits.min_rows < 20:
        raise ValueError(f"min_rows {limits.min_rows}: a whole number of at least 20")
    return limits
