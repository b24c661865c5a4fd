"""The hashed predictions, from which the metrics are recomputed: no logged number is trusted."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml.toolkit.evaluation import COLUMNS, PREDICTIONS, SLICE
from ml.toolkit.tasks import METRICS, TASKS, Answers, Task, fault

# Evidence that names no task is of a ranking.
_KNOWN = (None, *TASKS)


@dataclass(frozen=True)
class Row:
    """What was answered to one unit, what is drawn with it, and its slices."""

    expected: str
    predicted: str
    rank: int
    score: float
    group: str
    slices: Mapping[str, str]


@dataclass(frozen=True)
class Predictions:
    """The rows by split and unit, of a `task`; `faults` says what makes the file unfit."""

    rows: Mapping[str, Mapping[str, Row]]
    sha256: str
    faults: tuple[str, ...]
    task: Task = "ranking"

    def answers(self, split: str) -> Answers:
        """The answers of a split, in the order of the file."""
        return Answers.of(list(self.rows.get(split, {}).values()))

    def drawn(self, split: str) -> list[str] | None:
        """What each unit of the split is drawn with; None when units are drawn one by one."""
        labels = [row.group for row in self.rows.get(split, {}).values()]
        return labels if any(labels) else None

    def outcomes(self, metric: str) -> Mapping[str, Mapping[str, float]]:
        """The metric of every unit, by split; empty when it is none that a unit has."""
        definition = METRICS[self.task].get(metric)
        if definition is None or definition.of_units is None:
            return {}
        return {
            split: dict(zip(rows, definition.of_units(self.answers(split)).tolist(), strict=True))
            for split, rows in self.rows.items()
        }

    def every_outcome(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Metric → split → unit → value, of the metrics that a unit has."""
        return {name: of for name in METRICS[self.task] if (of := self.outcomes(name))}

    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """split → unit → group, of the splits that have groups."""
        return {
            split: {unit: row.group for unit, row in rows.items()}
            for split, rows in self.rows.items()
            if self.drawn(split)
        }

    def members(self) -> Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]]:
        """split → dimension → slice → its units; a unit without a slice is in none."""
        members: dict[str, dict[str, dict[str, list[str]]]] = {}
        for split, rows in self.rows.items():
            for unit, row in rows.items():
                for dimension, name in row.slices.items():
                    if name:
                        of = members.setdefault(split, {}).setdefault(dimension, {})
                        of.setdefault(name, []).append(unit)
        return {
            split: {
                dimension: {name: tuple(units) for name, units in slices.items()}
                for dimension, slices in dimensions.items()
            }
            for split, dimensions in members.items()
        }


def sha256(path: Path) -> str:
    """The file's sha256, in hex; raises OSError when there is none."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read(path: Path, task: object = None) -> Predictions:
    """The predictions of an evaluation of that task, by default a ranking; raises OSError when the
    file cannot be opened.
    """
    known_task: Task = next((name for name in TASKS if name == task), "ranking")
    splits: dict[str, dict[str, Row]] = {}
    faults = [f"the task {task!r} is not one of {', '.join(TASKS)}"] if task not in _KNOWN else []
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = csv.DictReader(stream)
        names = tuple(rows.fieldnames or ())
        dimensions = [name.removeprefix(SLICE) for name in names[len(COLUMNS) :]]
        if names != (*COLUMNS, *(SLICE + name for name in dimensions)) or (
            len(set(names)) != len(names)
        ):
            problem = f"{PREDICTIONS} has not the columns {COLUMNS} and those of slices"
            return Predictions({}, sha256(path), (problem,), known_task)
        for line, row in enumerate(rows, start=2):
            of_split = splits.setdefault(row["split"], {})
            if None in row or None in row.values():
                wrong = f"not {len(names)} columns"
            else:
                wrong = _wrong(row, known_task)
                if not wrong and row["unit"] in of_split:
                    wrong = f"{row['unit']} twice in {row['split']}"
            if wrong:
                faults.append(f"{PREDICTIONS}:{line}: {wrong}")
                continue
            of_split[row["unit"]] = Row(
                expected=row["expected"],
                predicted=row["predicted"],
                rank=int(row["rank"]),
                score=float(row["score"]),
                group=row["group"],
                slices={name: row[SLICE + name] for name in dimensions},
            )
    return Predictions(splits, sha256(path), tuple(faults), known_task)


def _wrong(row: Mapping[str, str], task: Task) -> str:
    if not row["rank"].isdecimal():
        return f"rank {row['rank']!r}"
    try:
        score = float(row["score"])
    except ValueError:
        return f"score {row['score']!r}"
    return fault(task, row["expected"], row["predicted"], int(row["rank"]), score)
