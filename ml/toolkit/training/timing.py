"""Measures the latency of one prediction on the node that trained the model.

It approximates the latency of serving while trials are compared; the gates' latency is measured
on the server itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Input = TypeVar("Input")
# Warm-up predictions, which fill caches and start threads: they are not counted.
WARM = 5


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one prediction.

    On a node that runs several trials the clock also counts the wait for the others; the
    processor's time (of this process, all its threads) does not.
    """

    p50_ms: float  # by the clock
    p95_ms: float  # by the clock
    cpu_ms: float  # median of the processor's time
    predictions: int  # how many were timed

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics that a trial logs; `ml select` knows these names."""
        return {
            "predict_p50_ms": self.p50_ms,
            "predict_p95_ms": self.p95_ms,
            "predict_cpu_ms": self.cpu_ms,
        }


def latency(predict: Callable[[Input], object], inputs: Sequence[Input]) -> Latency:
    """Time `predict` on each of `inputs`, one after another, after WARM warm-up predictions.

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
