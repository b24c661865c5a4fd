"""ml.release.canary.traffic: a step's latencies by interval."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ml.release.canary.traffic import LatencyIntervals


def tallies(green: int, baseline: int) -> Mapping[str, Mapping[str, list[int]]]:
    """So many answers so far, all in one bucket."""
    return {"green": {"latency": [0, green]}, "baseline": {"latency": [0, baseline]}}


def test_an_interval_ends_every_two_seconds() -> None:
    """At the first look after them; what came before the step is in none, and nothing is lost."""
    moment = 100.0
    made = LatencyIntervals("green", "baseline", tallies(5, 7), lambda: moment)
    found = []
    for at, seen in ((101.0, (6, 7)), (102.0, (8, 9)), (103.9, (9, 9)), (104.1, (12, 10))):
        moment = at
        found = made.look(tallies(*seen))
        total = np.sum([[one[side] for one in found] for side in (0, 1)], axis=1)[:, 1]
        assert total.tolist() == [seen[0] - 5, seen[1] - 7]
    assert found == [([0, 3], [0, 2]), ([0, 4], [0, 1])]
    moment = 104.2
    assert made.look(tallies(13, 10))[-1] == ([0, 1], [0, 0])
