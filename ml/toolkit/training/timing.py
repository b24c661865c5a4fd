"""Measure the latency of one prediction on the node that trained the model.

It approximates the serving latency, to compare trials. The gates use the latency of the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Input = TypeVar("Input")
# Number of warm-up predictions, which are not timed.
WARM = 5


@dataclass(frozen=True)
class Latency:
    """The duration of one prediction in milliseconds.

    Wall-clock time includes waiting for other trials on the node; CPU time (of all threads of this
    process) does not.
    """

    p50_ms: float  # wall-clock time
    p95_ms: float  # wall-clock time
    cpu_ms: float  # median CPU time
    predictions: int  # number of timed predictions

    def as_metrics(self) -> dict[str, float]:
        """Return the durations by metric name, as trials log them and `ml select` reads them."""
        return {
            "predict_p50_ms": self.p50_ms,
            "predict_p95_ms": self.p95_ms,
            "predict_cpu_ms": self.cpu_ms,
        }


def latency(predict: Callable[[Input], object], inputs: Sequence[Input]) -> Latency:
    """Time `predict` on each of `inputs` sequentially, after WARM warm-up predictions.

    Raises ValueError without inputs.
    """
    if not inputs:
        raise ValueError("nothing to predict")
    for value in inputs[:WARM]:
        predict(value)
    clock, processor = [], []
    for value in inputs:
        began, worked = time.perf_counter(), time.process_time()
        predict(value)
        clock.append(1000 * (time.perf_counter() - began))
        processor.append(1000 * (time.process_time() - worked))
    p50, p95 = np.percentile(clock, [50, 95])
    return Latency(float(p50), float(p95), float(np.median(processor)), len(inputs))
