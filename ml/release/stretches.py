"""How fast green and its baseline answered, by stretches of a step's time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

# Longer than a scheduler lets one process wait for another that has its core.
STRETCH_S = 2.0
Latencies = tuple[Sequence[int], Sequence[int]]


class Stretches:
    """The router's histograms of a step, cut every STRETCH_S."""

    def __init__(self, green: str, baseline: str, begun: Mapping[str, Any]) -> None:
        self._names = (green, baseline)
        self._cuts = [begun]
        self._cut_at = time.monotonic()

    def look(self, tallies: Mapping[str, Any]) -> list[Latencies]:
        """Green's latencies and its baseline's in every stretch; the last one goes on."""
        moment = time.monotonic()
        found = [self._between(*two) for two in pairwise([*self._cuts, tallies])]
        if moment - self._cut_at >= STRETCH_S:
            self._cuts.append(tallies)
            self._cut_at = moment
        return found

    def _between(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> Latencies:
        green, baseline = (
            np.subtract(until[name]["latency"], since[name]["latency"]).tolist()
            for name in self._names
        )
        return green, baseline
