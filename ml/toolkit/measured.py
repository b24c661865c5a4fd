"""Computes an evaluation's metrics by split, slices and fairness from its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ml.toolkit.evaluation import Metrics, Prediction
from ml.toolkit.fairness import differences
from ml.toolkit.metrics import enough_groups
from ml.toolkit.tasks import Answers, Task, estimates


@dataclass(frozen=True)
class Measured:
    """`metrics` by split; `slices` and `fairness` by dimension, of one split, as Evaluation has
    them.
    """

    metrics: Metrics
    slices: dict[str, Metrics]
    fairness: dict[str, dict[str, dict[str, Any]]]


def measured(task: Task, predictions: Sequence[Prediction], sliced: str) -> Measured:
    """Every metric of the task; `sliced` is the split whose slices are measured.

    Intervals draw groups where predictions have them, and slices of fewer than ten groups are left
    out. Raises ValueError when a whole split has no more.
    """
    splits = dict.fromkeys(row.split for row in predictions)
    of_split = [row for row in predictions if row.split == sliced]
    slices: dict[str, Metrics] = {}
    fairness: dict[str, dict[str, dict[str, Any]]] = {}
    for dimension in of_split[0].slices if of_split else ():
        by_name: dict[str, list[Prediction]] = {}
        for row in of_split:
            if row.slices[dimension]:
                by_name.setdefault(row.slices[dimension], []).append(row)
        enough = {
            name: rows
            for name, rows in sorted(by_name.items())
            if enough_groups([row.group for row in rows])
        }
        slices[dimension] = {name: _estimates(task, rows) for name, rows in enough.items()}
        labels = [name for name, rows in enough.items() for _ in rows]
        rows = [row for rows in enough.values() for row in rows]
        fairness[dimension] = differences(task, Answers.of(rows), labels, sliced)
    return Measured(
        {
            name: _estimates(task, [row for row in predictions if row.split == name])
            for name in splits
        },
        slices,
        fairness,
    )


def _estimates(task: Task, rows: Sequence[Prediction]) -> Any:
    grouped = [row.group for row in rows] if any(row.group for row in rows) else None
    return estimates(task, Answers.of(rows), groups=grouped)
