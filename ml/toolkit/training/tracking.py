"""Log parameters and metrics to MLflow in batches.

The code is independent of the backend: MLflow reads the environment variables MLFLOW_TRACKING_URI,
MLFLOW_RUN_ID and MLFLOW_EXPERIMENT_NAME, which Azure ML and the local backend set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class NotFinite(ValueError):
    """Raised instead of logging a metric that is NaN or infinite."""


class Tracker:
    """Logs to the active MLflow run."""

    def __init__(self, mlflow: Any) -> None:
        self._mlflow = mlflow

    def parameters(self, values: Mapping[str, object]) -> None:
        """Log all parameters in one request."""
        self._mlflow.log_params(dict(values))

    def tags(self, values: Mapping[str, str]) -> None:
        """Set all tags in one request."""
        self._mlflow.set_tags(dict(values))

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log all metrics of a step in one request; raise NotFinite if one is NaN or infinite."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise NotFinite(f"metric {name} at step {step} is {value}")
        self._mlflow.log_metrics({name: float(value) for name, value in values.items()}, step=step)


@contextmanager
def tracking() -> Iterator[Tracker]:
    """Yield a tracker of the run in MLFLOW_RUN_ID, or of a new run; an error marks it as failed."""
    import mlflow  # takes 1 s, so it is not imported at the top

    with mlflow.start_run():
        yield Tracker(mlflow)
