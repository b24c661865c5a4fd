"""Metrics of ranks, against plain slow references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.measures import ranking


def test_a_rank_counts_what_scores_as_high():
    """A constant score earns the last rank, not the first."""
    scores = np.array([[0.1, 0.9, 0.5], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0]])
    assert ranking.ranks(scores, np.array([1, 0, 2])).tolist() == [1, 3, 3]


def test_nan_is_the_last_of_all():
    """A NaN score for the right answer never ranks first."""
    scores = np.array([[np.nan, 0.0], [np.nan, np.nan]])
    assert ranking.ranks(scores, np.array([0, 0])).tolist() == [2, 2]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_metrics_are_what_they_say(positions: list[int]):
    """gain@k and the mean rank, counted by hand."""
    array = np.array(positions)
    for k in (1, 3):
        assert ranking.gain_at(array, k) == pytest.approx(
            sum(r <= k for r in positions) / len(positions)
        )
    assert ranking.mean_rank(array) == pytest.approx(sum(positions) / len(positions))
