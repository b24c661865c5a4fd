"""Evidence of every task against its hashed predictions: recomputation.yml holds the cases."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.measures.evaluation import COLUMNS, PREDICTIONS, Prediction
from ml.measures.fairness import FEWEST
from ml.measures.measurement import measure
from ml.measures.schema import Evaluation, read, stated
from ml.measures.tasks import TASKS
from ml.release.evidence.recomputation import mismatches, read_predictions
from policies.promotion.provenance import FEWEST_COMPARED

CASES = yaml.safe_load(Path(__file__).with_name("recomputation.yml").read_text())
TIMES = 60


def cases(kind: str) -> Iterator[Any]:
    """The task, and what the case says over the task's own."""
    for task, of in CASES.items():
        for name, case in of.get(kind, {}).items():
            yield pytest.param(task, {**of, **case}, id=f"{task}: {name}")


def found(task: str, case: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """What differs between the evidence and the predictions of a case."""
    rows, lines = [], []
    for number in range(TIMES):
        for row in case["rows"]:
            line = row.format(n=number, g=f"{number % 24:02}")
            cells = next(csv.reader([line]))  # boxes have commas
            unit, group, expected, predicted, rank, score = cells
            side = ("left", "right")[number % 2]
            own = "" if case.get("ungrouped") else group
            said = (expected, predicted, int(rank), float(score))
            rows.append(Prediction(unit, "test", {"side": side}, *said, own))
            lines.append([unit, "test", group, *cells[2:], side])
    path = folder / PREDICTIONS
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([[*COLUMNS, "slice:side"], *lines])
    kept = read_predictions(path, Evaluation(task=task))
    document: dict[str, Any] = {
        **{"task": task, "unit": "unit", "slice_split": "test"},
        "resampled": "entity" if any(row.group for row in rows) else "unit",
        "primary_metric": case["primary"][0],
        "goal": case["primary"][1],
        "predictions": {"file": PREDICTIONS, "sha256": kept.sha256, "rows": len(rows)},
    }
    if task in TASKS and not kept.faults:
        made = measure(kept.metrics, rows, "test")
        document |= stated(vars(made))
    for at, value in case.get("change", {}).items():
        place, *keys = at.split(".")
        dimension, _, name = place.partition(" ")
        of = document["slices"][dimension][name] if name else document["metrics"][place]
        for key in keys[:-1]:
            of = of[key]
        of[keys[-1]] = value
    return mismatches(read(Evaluation, document), kept)


@pytest.mark.parametrize(("task", "case"), cases("allowed"))
def test_what_follows_is_allowed(task: str, case: dict[str, Any], tmp_path: Path) -> None:
    """Value, interval by unit or group, count, slices and how far they lie apart."""
    assert found(task, case, tmp_path) == ()


@pytest.mark.parametrize(("task", "case"), cases("refused"))
def test_what_does_not_follow_is_refused(task: str, case: dict[str, Any], tmp_path: Path) -> None:
    """And it says what differs."""
    assert case["told"] in "; ".join(found(task, case, tmp_path))


def test_every_task_has_both() -> None:
    """No task is recomputed without a case that is refused."""
    assert all(CASES[task]["allowed"] and CASES[task]["refused"] for task in TASKS)


def test_what_the_rows_of_a_slice_lack_is_counted(tmp_path: Path) -> None:
    """A metric that needs both classes, on a slice of one; every other metric is defined there."""
    path = tmp_path / PREDICTIONS
    rows = enumerate(["0a", "0a", "0b", "1b"])
    lines = [f"u{at},test,,{of},0,0,0.2,{side}" for at, (of, side) in rows]
    path.write_text("\n".join([",".join([*COLUMNS, "slice:side"]), *lines]) + "\n")
    lacking = read_predictions(path, Evaluation(task="binary")).undefined("test")
    assert lacking.keys() == {"side a"} and "accuracy" not in lacking["side a"]
    assert lacking["side a"]["auc"] == "of its 2 rows 2 of 0, 0 of 1, at least 1 of each is needed"


def test_both_know_when_a_slice_is_compared() -> None:
    """The gate and the evaluation have the same count."""
    assert FEWEST_COMPARED == FEWEST
