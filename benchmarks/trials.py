"""Write and run a sweep for the benchmarks of trials.

The script imports the packages of a training script (mlflow, lightgbm, pandas) and runs given
code. Times are of whole processes, from start to end, each in a home of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

AT_ONCE = 2
IMPORTS = "import mlflow, lightgbm, pandas\n"
# Compute for a number of CPU seconds, so that other programs slow both sides equally.
COMPUTE = """
import time
def compute(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        sum(range(1000))
"""
SPEC = """\
type: sweep
trial:
  code: code
  command: python trial.py ${{{{search_space.x}}}}
  environment: azureml:ml-cpu:1
sampling_algorithm: {{type: random, seed: 1}}
search_space: {{x: {{type: uniform, min_value: 0, max_value: 1}}}}
objective: {{goal: maximize, primary_metric: score}}
limits: {{max_total_trials: {trials}, max_concurrent_trials: {at_once}}}
experiment_name: benchmark
"""
# Run a plan as `ml run` does, without reading the spec: the SDK's import is not part of a sweep.
EXECUTOR = """
import pickle, sys
plan = pickle.load(sys.stdin.buffer)
from ml.backends.local.runs import records
from ml.backends.local.backend import LocalBackend
run = LocalBackend().run(plan)
ways = sorted({str(records.lineage(trial.folder)["process"]) for trial in run.trials})
print([[trial.status for trial in run.trials].count("Completed"), ways])
"""


@dataclass(frozen=True)
class Timed:
    """Seconds of a sweep from the start of its executor to its end, and how its trials started."""

    seconds: float
    ways: list[str]


@contextmanager
def sweep(script: str, trials: int) -> Iterator[Path]:
    """Write the spec to a new repository with an existing tracking store; yield its path."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "pyproject.toml").touch()
        (folder / "code").mkdir()
        (folder / "code" / "trial.py").write_text(script)
        (folder / "sweep.yml").write_text(SPEC.format(trials=trials, at_once=AT_ONCE))
        before = os.environ.get("MLOPS_HOME")
        os.environ["MLOPS_HOME"] = str(folder / "home")
        try:
            from ml.backends.local.tracking.tracking import Tracking

            Tracking().close()
            yield folder / "sweep.yml"
        finally:
            del os.environ["MLOPS_HOME"]
            if before is not None:
                os.environ["MLOPS_HOME"] = before


def run(script: str, trials: int) -> Timed:
    """Run a sweep and time it; raise an error if a trial fails."""
    import pickle

    from ml.specs.plan import planning
    from ml.specs.sdk import load

    with sweep(script, trials) as spec:
        plan = pickle.dumps(planning.plan(load.load(spec)))
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", EXECUTOR], input=plan, stdout=subprocess.PIPE, check=True
        )
        seconds = time.perf_counter() - began
    completed, ways = json.loads(done.stdout.decode().replace("'", '"'))
    if completed != trials:
        raise SystemExit(f"only {completed} of {trials} trials completed")
    return Timed(seconds, ways)
