"""Measure the memory of an AutoML trial on a million rows, beyond the memory of its imports.

A process fits a generated table with 14 numbers and 5 categories (one of 10,000 values) by the
first LightGBM settings of the portfolio. Its peak is compared with the size of the table in single
precision and category codes: 4 bytes per number, 1 or 2 per category.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ml.backends.local.automl_sweep import MEMORY

ROWS, QUICK_ROWS, NUMBERS = 1_000_000, 200_000, 14
CATEGORIES = (3, 10, 40, 200, 10_000)
# Print the peak after the imports and a fit of a few rows, then the peak of the trial.
PROGRAM = """
import json, sys, os
from contextlib import contextmanager
from pathlib import Path
from ml.automl import trial

class Logged:
    def parameters(self, values): pass
    def metrics(self, values, step=0): pass

@contextmanager
def tracking():
    yield Logged()

def peak():
    (line,) = [of for of in Path('/proc/self/status').read_text().splitlines() if 'VmHWM' in of]
    return int(line.split()[1]) * 1024

trial.tracking = tracking
few, many, out = sys.argv[1:]
peaks = []
for name, table in (('few', few), ('many', many)):
    folder = f'{out}/{name}/trials/0'
    sys.argv = ['trial', '--training-data', table, '--model', f'{folder}/model',
                '--predictions', f'{folder}/predictions']
    trial.main()
    peaks.append(peak())
print(json.dumps(peaks))
"""
FIRST = {
    **{"family": "light_gbm", "n_estimators": 60, "learning_rate": 0.1, "num_leaves": 20},
    **{"min_data_in_leaf": 20, "colsample_bytree": 0.8, "subsample": 0.9, "reg_lambda": 1.0},
}


def main(quick: bool) -> float:
    rows = QUICK_ROWS if quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        few, many = _table(root / "few", 2_000), _table(root / "many", rows)
        job = {"task": "classification", "metric": "AUC_weighted", "target": "y", "seed": 0}
        environment = {
            **os.environ,
            **MEMORY,
            **{"AUTOML_JOB": json.dumps(job), "AZUREML_SWEEP_model": json.dumps(FIRST)},
        }
        command = [sys.executable, "-c", PROGRAM, str(few), str(many), str(root / "out")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        before, peak = json.loads(done.stdout.splitlines()[-1])
    table = rows * (4 * NUMBERS + sum(1 if size < 128 else 2 for size in CATEGORIES))
    million = 1e6
    print(
        f"{rows} rows: the table {table / million:.0f} MB, the peak {peak / million:.0f} MB, "
        f"{(peak - before) / million:.0f} MB over that of 2,000 rows"
    )
    return float(peak - before) / table / 3


def _table(folder: Path, rows: int) -> Path:
    """Write an MLTable of generated rows in parts; return its folder."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    names = [f"n{index}" for index in range(NUMBERS)] + [f"c{size}" for size in CATEGORIES]
    with (folder / "rows.csv").open("w") as file:
        file.write(",".join([*names, "y"]) + "\n")
        for start in range(0, rows, 20_000):
            count = min(20_000, rows - start)
            numbers = draw.normal(size=(count, NUMBERS))
            codes = [draw.integers(0, size, count) for size in CATEGORIES]
            score = numbers[:, 0] + numbers[:, 1] ** 2 + 0.1 * codes[1] + draw.normal(size=count)
            for row in range(count):
                cells = [f"{number:.5g}" for number in numbers[row]] + [
                    f"v{column[row]}" for column in codes
                ]
                file.write(",".join([*cells, "yes" if score[row] > 2 else "no"]) + "\n")
    (folder / "MLTable").write_text(
        "paths: [{file: ./rows.csv}]\ntransformations: [{read_delimited: {delimiter: ','}}]\n"
    )
    return folder
