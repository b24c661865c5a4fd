"""The floor of every project's watch.yml: how little a watch may notice at most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

FLOOR = Path(__file__).with_name("watch.yml")
SCHEMA_VERSION = 1


class WatchFloorError(Exception):
    """The floor itself cannot be used."""


@dataclass(frozen=True)
class Floor:
    """`alpha` is the least that a project may set, the others are the most; `ignore` counts
    columns.
    """

    alpha: float
    min_rows: float
    distance: float
    psi: float
    missing: float
    loss: float
    ignore: float

    def weaker(self, limits: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """The settings that are looser than the floor, each with what is allowed."""
        for name, value in limits.items():
            bound = getattr(self, name)
            if name == "alpha":
                if not value >= bound:
                    yield name, f"at least the floor's {bound:g}"
            elif not value <= bound:
                columns = " columns" if name == "ignore" else ""
                yield name, f"at most the floor's {bound:g}{columns}"


def load(path: Path = FLOOR) -> Floor:
    """The floor; raises WatchFloorError when a setting is missing, unknown or no number."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WatchFloorError(str(error).splitlines()[0]) from None
    names = {field.name for field in fields(Floor)}
    if not isinstance(document, dict) or document.pop("schema_version", None) != SCHEMA_VERSION:
        raise WatchFloorError(f"schema_version is not {SCHEMA_VERSION}")
    if odd := names ^ document.keys():
        raise WatchFloorError(f"missing or unknown: {', '.join(sorted(map(str, odd)))}")
    for name, value in document.items():
        sound = isinstance(value, int | float) and not isinstance(value, bool)
        if not sound or not math.isfinite(value) or value < 0:
            raise WatchFloorError(f"{name} {value}: a finite number, zero or more")
    return Floor(**document)
