"""Slices compared by Fairlearn, against the same by hand."""

from __future__ import annotations

import numpy as np

from ml.measures.fairness import FEWEST, differences
from ml.measures.metrics import RANKING, ScoredRows
from ml.measures.ranking import METRICS
from ml.measures.schema import Disparity


def disparities(positions: np.ndarray, slices: list[str], split: str) -> dict[str, Disparity]:
    """The differences of a ranking with the right answers at these positions."""
    nothing = np.zeros(len(positions))
    scored = ScoredRows(nothing.astype(np.str_), nothing.astype(np.str_), positions, nothing)
    return differences(RANKING, scored, slices, split)


def test_the_difference_is_that_of_the_extremes():
    """Three slices of known quality: highest less lowest, by every metric."""
    positions = np.array([1] * 30 + [1] * 20 + [2] * 20 + [4] * 10 + [1] * 20)
    slices = ["best"] * 30 + ["middle"] * 40 + ["worst"] * 30
    gaps = disparities(positions, slices, "test")
    assert gaps.keys() == METRICS.keys()
    gain = gaps["gain_at_1"]
    assert (gain.lowest, gain.highest, gain.slices) == ("middle", "best", 3)
    assert gain.difference == 0.5 and gain.split == "test"
    assert gaps["gain_at_3"].lowest == "worst"
    assert gaps["mean_rank"].highest == "worst" and gaps["mean_rank"].lowest == "best"
    for name, of in METRICS.items():
        values = [of(positions[np.array(slices) == label]).mean() for label in set(slices)]
        assert np.isclose(gaps[name].difference, max(values) - min(values))


def test_slices_of_too_few_units_are_left_out():
    """One unit less than enough, and the slice is not compared; a single one compares nothing."""
    positions = np.array([1] * 40 + [9] * (FEWEST - 1))
    slices = ["a"] * 20 + ["b"] * 20 + ["rare"] * (FEWEST - 1)
    assert disparities(positions, slices, "test")["gain_at_1"].difference == 0
    assert disparities(positions[20:], slices[20:], "test") == {}
    assert disparities(positions[:0], [], "test") == {}
