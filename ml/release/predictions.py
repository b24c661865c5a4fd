"""The hashed predictions, from which the metrics are recomputed: no logged number is trusted."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.toolkit.evaluation import COLUMNS, PREDICTIONS, SLICE
from ml.toolkit.metrics import METRICS


@dataclass(frozen=True)
class Row:
    """One unit: the rank of its right answer, what is drawn with it, and its slices."""

    rank: int
    group: str
    slices: Mapping[str, str]


@dataclass(frozen=True)
class Predictions:
    """The rows by split and unit; `faults` says what makes the file unfit."""

    rows: Mapping[str, Mapping[str, Row]]
    sha256: str
    faults: tuple[str, ...]

    def ranks(self, split: str) -> NDArray[np.int64]:
        """The ranks of a split, in the order of the file."""
        return np.array([row.rank for row in self.rows.get(split, {}).values()], dtype=np.int64)

    def drawn(self, split: str) -> list[str] | None:
        """What each unit of the split is drawn with; None when units are drawn one by one."""
        labels = [row.group for row in self.rows.get(split, {}).values()]
        return labels if any(labels) else None

    def outcomes(self, metric: str) -> Mapping[str, Mapping[str, float]]:
        """The metric of every unit, by split; empty when it does not follow from ranks."""
        if metric not in METRICS:
            return {}
        return {
            split: dict(zip(rows, METRICS[metric](self.ranks(split)).tolist(), strict=True))
            for split, rows in self.rows.items()
        }

    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """split → unit → group, of the splits that have groups."""
        return {
            split: {unit: row.group for unit, row in rows.items()}
            for split, rows in self.rows.items()
            if self.drawn(split)
        }

    def members(self) -> Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]]:
        """split → dimension → slice → its units; a unit without a slice is in none."""
        found: dict[str, dict[str, dict[str, list[str]]]] = {}
        for split, rows in self.rows.items():
            for unit, row in rows.items():
                for dimension, name in row.slices.items():
                    if name:
                        of = found.setdefault(split, {}).setdefault(dimension, {})
                        of.setdefault(name, []).append(unit)
        return {
            split: {
                dimension: {name: tuple(units) for name, units in slices.items()}
                for dimension, slices in dimensions.items()
            }
            for split, dimensions in found.items()
        }


def sha256(path: Path) -> str:
    """The file's sha256, in hex; raises OSError when there is none."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read(path: Path) -> Predictions:
    """The predictions of an evaluation; raises OSError when the file cannot be opened."""
    found: dict[str, dict[str, Row]] = {}
    faults: list[str] = []
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = csv.DictReader(stream)
        names = tuple(rows.fieldnames or ())
        dimensions = [name.removeprefix(SLICE) for name in names[len(COLUMNS) :]]
        if names != (*COLUMNS, *(SLICE + name for name in dimensions)) or (
            len(set(names)) != len(names)
        ):
            told = f"{PREDICTIONS} has not the columns {COLUMNS} and those of slices"
            return Predictions({}, sha256(path), (told,))
        for line, row in enumerate(rows, start=2):
            split, unit, text = row["split"], row["unit"], row["rank"] or ""
            of_split = found.setdefault(split, {})
            if None in row or None in row.values():
                faults.append(f"{PREDICTIONS}:{line}: not {len(names)} columns")
            elif not (text.isdecimal() and int(text) >= 1):
                faults.append(f"{PREDICTIONS}:{line}: rank {text!r}")
            elif int(text) == 1 and row["expected"] != row["predicted"]:
                faults.append(f"{PREDICTIONS}:{line}: rank 1, but another entry was predicted")
            elif unit in of_split:
                faults.append(f"{PREDICTIONS}:{line}: {unit} twice in {split}")
            else:
                slices = {name: row[SLICE + name] for name in dimensions}
                of_split[unit] = Row(int(text), row["group"], slices)
    return Predictions(found, sha256(path), tuple(faults))
