"""Latency histograms of green and its baseline, by intervals of a step's time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Longer than a scheduler keeps a process waiting for a busy core.
INTERVAL_S = 2.0
Latencies = tuple[Sequence[int], Sequence[int]]


class LatencyIntervals:
    """The router's histograms of a step, split every INTERVAL_S seconds of the clock."""

    def __init__(
        self,
        green: str,
        baseline: str,
        begun: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = (green, baseline)
        self._clock = clock
        self._ended: list[Latencies] = []
        self._cut, self._cut_at = begun, clock()

    def look(self, tallies: Mapping[str, Any]) -> list[Latencies]:
        """The histograms of green and its baseline by interval; the last one is still open."""
        green, baseline = (
            np.subtract(tallies[name]["latency"], self._cut[name]["latency"])
            for name in self._names
        )
        latencies = [*self._ended, (green.tolist(), baseline.tolist())]
        moment = self._clock()
        if moment - self._cut_at >= INTERVAL_S:
            self._ended, self._cut, self._cut_at = latencies, tallies, moment
        return latencies
