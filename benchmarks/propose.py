"""Measure `ml release propose` on a generated table of 30,000 rows and two classes.

The peer is a plain bootstrap in NumPy: the same metrics on the same draws of the same predictions,
one draw at a time. A proposal evaluates both splits, each slice and a baseline, which the gate
`verified-metrics` repeats. It also refits the model twice and serves it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from ml.measures.bootstrap import Values, bounds, drawn_times
from ml.measures.evaluation import PREDICTIONS
from ml.measures.metrics import BINARY, Draws, Metric, ScoredRows, estimates
from ml.measures.schema import Evaluation
from ml.release.evidence.recomputation import read_predictions

ROWS, QUICK_ROWS = 30_000, 6_000


def main(quick: bool) -> float:
    from tests.repository.forks import forks
    from tests.repository.scaffold import tables

    with tempfile.TemporaryDirectory() as folder:
        root, home = forks.fork(Path(folder) / "fork"), Path(folder) / "home"
        rows = QUICK_ROWS if quick else ROWS
        tables.churn(root / "churn.csv", rows)
        _typed(root, home, "new churn --table churn.csv --target Churn")
        _typed(root, home, "run ml/projects/churn/jobs/train.yml")
        proposing = _typed(root, home, "release propose churn --run latest")
        (file,) = home.glob(f"evidence/**/{PREDICTIONS}")
        predictions = read_predictions(file, Evaluation(task="binary"))
        splits = [predictions.answers(split) for split in ("validation", "test")]
        began = time.perf_counter()
        intervals = [_plain(scored) for scored in splits]
        plain = time.perf_counter() - began
    for scored, drawn in zip(splits, intervals, strict=True):
        ours = [(estimate.low, estimate.high) for estimate in estimates(BINARY, scored).values()]
        assert np.allclose(ours, [bounds(values) for values in drawn.T], atol=1e-9)
    print(f"{rows} rows: propose {proposing:.1f} s, plain bootstrap {plain:.1f} s")
    return proposing / plain


def _typed(root: Path, home: Path, words: str) -> float:
    """Run an `ml` command, which must succeed; return its seconds."""
    environment = {**os.environ, "MLOPS_HOME": str(home)}
    command = [str(root / ".venv/bin/ml"), *words.split()]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began


def _plain(scored: ScoredRows) -> Values:
    """Return all metrics of a binary model for each bootstrap draw, (draws, metrics)."""
    drawn = []
    for times in drawn_times(len(scored)):
        for counts in times:
            rows = scored[np.repeat(np.arange(len(scored)), counts.astype(np.int64))]
            once = Draws(rows, np.ones((1, len(rows))))
            drawn.append([_value(metric, rows, once) for metric in BINARY.values()])
    return np.array(drawn)


def _value(metric: Metric, rows: ScoredRows, once: Draws) -> float:
    """Return a metric of rows with equal weights."""
    if metric.of_all is not None:
        return float(metric.of_all(once)[0])
    assert metric.of_units is not None
    return float(metric.of_units(rows).mean())
