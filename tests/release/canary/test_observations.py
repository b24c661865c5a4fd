"""ml.release.canary.traffic: predictions of answers, and a step's latencies by interval."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from ml.release.canary.traffic import REFERENCE, Answers, LatencyIntervals


def tallies(green: int, baseline: int) -> Mapping[str, Mapping[str, list[int]]]:
    """So many answers so far, all in one bucket."""
    return {"green": {"latency": [0, green]}, "baseline": {"latency": [0, baseline]}}


@pytest.mark.attack("a `prediction` that no answer has")
@pytest.mark.parametrize(("pointer", "read"), [("answers/0/score", 30), ("answers/0/none", 0)])
def test_a_pointer_that_reads_nothing_counts_no_prediction(pointer: str, read: int) -> None:
    """The canary then refuses: "too few predictions were read". One that reads counts them, and
    what the new version answers without one.
    """
    answers = Answers(pointer, ("blue",), "green")
    state = dict.fromkeys(("requests", "errors", "refused"), 0) | {"latency": [0]}
    for number in range(REFERENCE):
        answers.add("blue", 200, json.dumps({"answers": [{"score": number / REFERENCE}]}))
    for body in ["{}"] * 10 + ['{"answers": [{"score": 0.5}]}'] * 20:
        answers.add("green", 200, body)
    assert sum(answers.side({"green": state}, {"green": state}, ["green"]).predictions) == read


def test_an_interval_ends_every_two_seconds() -> None:
    """At the first look after them; what came before the step is in none, and nothing is lost."""
    moment = 100.0
    made = LatencyIntervals("green", "baseline", tallies(5, 7), lambda: moment)
    found = []
    for at, seen in ((101.0, (6, 7)), (102.0, (8, 9)), (103.9, (9, 9)), (104.1, (12, 10))):
        moment = at
        found = made.observe(tallies(*seen))
        total = np.sum([[one[side] for one in found] for side in (0, 1)], axis=1)[:, 1]
        assert total.tolist() == [seen[0] - 5, seen[1] - 7]
    assert found == [([0, 3], [0, 2]), ([0, 4], [0, 1])]
    moment = 104.2
    assert made.observe(tallies(13, 10))[-1] == ([0, 1], [0, 0])
