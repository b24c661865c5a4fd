"""How fast green and its baseline answered, by stretches of a step's time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Longer than a scheduler lets one process wait for another that has its core.
STRETCH_S = 2.0
Latencies = tuple[Sequence[int], Sequence[int]]


class Stretches:
    """The router's histograms of a step, cut every STRETCH_S of that clock."""

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
        """Green's latencies and its baseline's in every stretch; the last one goes on."""
        green, baseline = (
            np.subtract(tallies[name]["latency"], self._cut[name]["latency"])
            for name in self._names
        )
        latencies = [*self._ended, (green.tolist(), baseline.tolist())]
        moment = self._clock()
        if moment - self._cut_at >= STRETCH_S:
            self._ended, self._cut, self._cut_at = latencies, tallies, moment
        return latencies
