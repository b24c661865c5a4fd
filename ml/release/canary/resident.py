"""Resident memory of green and of its baseline, from when green was warm."""

from __future__ import annotations

import psutil

from ml.release.canary.signals import Memory
from ml.serving.server import Server

# Memory is looked at from here on: what loads lazily has been loaded.
WARM_REQUESTS = 50


class Resident:
    """What both had when green had answered WARM_REQUESTS, and have now."""

    def __init__(self, green: Server, baseline: Server) -> None:
        self._green, self._baseline = green, baseline
        self._warm: tuple[float, float] | None = None

    def look(self, answered: int) -> Memory | None:
        """None until green has answered enough, and where one of them has ended."""
        if answered < WARM_REQUESTS:
            return None
        try:
            green, baseline = _bytes(self._green.pid), _bytes(self._baseline.pid)
        except psutil.Error:
            return None  # whether they run is asked next
        if self._warm is None:
            self._warm = green, baseline
        return Memory(self._warm[0], green, self._warm[1], baseline)


def _bytes(pid: int) -> float:
    """Of a server's processes, the workers included."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return float(sum(one.memory_info().rss for one in family))
