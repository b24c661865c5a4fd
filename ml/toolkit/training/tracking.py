"""Parameters and metrics to MLflow, a batch at a time; the environment says to which server.

Nothing here knows where it runs: MLflow reads MLFLOW_TRACKING_URI, MLFLOW_RUN_ID and
MLFLOW_EXPERIMENT_NAME, which Azure ML and the local backend set alike.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class NotFinite(ValueError):
    """A metric is NaN or infinite. It cannot be compared, so it is not logged."""


class Tracker:
    """Logs to the run that is active."""

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow

    def parameters(self, values: Mapping[str, object]) -> None:
        """Log all parameters in one request."""
        self._mlflow.log_params(dict(values))

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log all metrics of a step in one request; NotFinite when one is NaN or infinite."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise NotFinite(f"metric {name} at step {step} is {value}")
        self._mlflow.log_metrics({name: float(value) for name, value in values.items()}, step=step)


@contextmanager
def tracking() -> Iterator[Tracker]:
    """A tracker of the run that the environment names, or of a new one; a failure marks it so."""
    with _without_collections():
        import mlflow  # 1 s: only a job that logs pays for it

        run = mlflow.start_run()
    with run:
        yield Tracker(mlflow)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python collects no garbage in the body: imports leave none, and to look for it takes a sixth
    of MLflow's.

    Not `gc.freeze`: the collection at the end of a process closes files that a script left open.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
