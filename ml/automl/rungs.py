"""Stop weak trials early: on a large table, each trial is first fitted to a sample.

A trial continues unless its score on the sample is below the median of earlier trials. This is a
first rung of successive halving (Jamieson and Talwalkar 2016) with Azure ML's median stopping.
Earlier trials are those with lower numbers, so that a resumed search makes the same decisions.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ml.automl.validation import Rows

# Minimum training rows for sampling, share and minimum size of the sample, and minimum number of
# earlier trials to stop one.
MANY_ROWS, SHARE, FEWEST_ROWS, TRIALS = 50_000, 0.1, 5_000, 4
FILE = "rung.json"


def size(train: Rows) -> int:
    """Return the size of the sample for these training rows; 0 if the table is too small."""
    return 0 if len(train) < MANY_ROWS else max(FEWEST_ROWS, int(SHARE * len(train)))


def early_stop_reason(rows: int, value: float, predictions: Path) -> str:
    """Return why a trial must stop early; "" if it continues.

    `rows` is the size of the sample, `value` the trial's score on it (higher is better), which is
    saved for later trials. `predictions` is the trial's output folder.
    """
    current = int(predictions.parts[_at(predictions)])
    before = [_value(of_trial(predictions, number)) for number in range(current)]
    values = [score for score in before if score is not None]
    predictions.mkdir(parents=True, exist_ok=True)
    (predictions / FILE).write_text(json.dumps({"rows": rows, "value": value}), encoding="utf-8")
    if len(values) < TRIALS or value >= np.median(values):
        return ""
    return f"below the median of {len(values)} trials on {rows} rows"


def of_trial(path: Path, number: int) -> Path:
    """Return the path in trial `number` of the output that `path` is in another trial."""
    index = _at(path)
    return Path(*path.parts[:index], str(number), *path.parts[index + 1 :])


def of_search(path: Path) -> Path:
    """Return the search's folder, from the path of a trial's output."""
    return Path(*path.parts[: _at(path) - 1])


def _at(path: Path) -> int:
    return len(path.parts) - path.parts[::-1].index("trials")


def _value(predictions: Path) -> float | None:
    try:
        return float(json.loads((predictions / FILE).read_text(encoding="utf-8"))["value"])
    except (OSError, ValueError, LookupError):
        return None
