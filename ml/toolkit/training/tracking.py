"""Logs parameters and metrics to MLflow in batches; environment variables name the server.

Nothing here knows where it runs: MLflow reads MLFLOW_TRACKING_URI, MLFLOW_RUN_ID and
MLFLOW_EXPERIMENT_NAME, which Azure ML and the local backend set alike.
"""

from __future__ import annotations

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

    def tags(self, values: Mapping[str, str]) -> None:
        """Set all tags in one request."""
        self._mlflow.set_tags(dict(values))

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log all metrics of a step in one request; NotFinite when one is NaN or infinite."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise NotFinite(f"metric {name} at step {step} is {value}")
        self._mlflow.log_metrics({name: float(value) for name, value in values.items()}, step=step)


@contextmanager
def tracking() -> Iterator[Tracker]:
    """Yield a tracker of the environment's run, or of a new run; an error marks it as failed."""
    import mlflow  # 1 s: only a job that logs pays for it

    with mlflow.start_run():
        yield Tracker(mlflow)
