"""Stop weak trials early: on a large table each trial is first fitted to a sample.

It continues only if its score is not below the median of earlier trials on the sample (as in a
first rung of successive halving, Jamieson and Talwalkar 2016, with the median of Azure ML's
stopping policy). Earlier trials are those with lower numbers, so that a resumed search decides as
an uninterrupted one would.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ml.automl.validation import Rows

# The number of training rows from which sampling is used, the share and minimum size of the sample,
# and the number of earlier trials needed to stop one.
MANY_ROWS, SHARE, FEWEST_ROWS, TRIALS = 50_000, 0.1, 5_000, 4
FILE = "rung.json"


def size(train: Rows) -> int:
    """Return the size of the sample; 0 if all rows are fitted at once."""
    return 0 if len(train) < MANY_ROWS else max(FEWEST_ROWS, int(SHARE * len(train)))


def why_last(rows: int, value: float, predictions: Path) -> str:
    """Return why the trial with this output stops early, "" if it goes on.

    `value` is its score on the sample, higher is better; it is saved for later trials.
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
    """Return the path of the same output in trial `number` of this search."""
    index = _at(path)
    return Path(*path.parts[:index], str(number), *path.parts[index + 1 :])


def of_search(path: Path) -> Path:
    """Return the folder of the search that this trial output belongs to."""
    return Path(*path.parts[: _at(path) - 1])


def _at(path: Path) -> int:
    return len(path.parts) - path.parts[::-1].index("trials")


def _value(predictions: Path) -> float | None:
    try:
        return float(json.loads((predictions / FILE).read_text(encoding="utf-8"))["value"])
    except (OSError, ValueError, LookupError):
        return None
