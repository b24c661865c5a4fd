"""Ranking metrics and their bootstrap, against plain slow references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.toolkit import metrics


def test_a_rank_counts_what_scores_as_high():
    """A constant score earns the last rank, not the first."""
    scores = np.array([[0.1, 0.9, 0.5], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0]])
    assert metrics.ranks(scores, np.array([1, 0, 2])).tolist() == [1, 3, 3]


def test_nan_is_the_last_of_all():
    """A NaN score for the right answer never ranks first."""
    scores = np.array([[np.nan, 0.0], [np.nan, np.nan]])
    assert metrics.ranks(scores, np.array([0, 0])).tolist() == [2, 2]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_metrics_are_what_they_say(found: list[int]):
    """gain@k and the mean rank, counted by hand."""
    array = np.array(found)
    for k in (1, 3):
        assert metrics.gain_at(array, k) == pytest.approx(sum(r <= k for r in found) / len(found))
    assert metrics.mean_rank(array) == pytest.approx(sum(found) / len(found))


def test_an_interval_holds_its_value_and_narrows():
    """Four times the questions: about half the width."""
    rng = np.random.default_rng(0)
    small, large = (metrics.mean_estimate((rng.random(n) < 0.7).astype(float)) for n in (200, 3200))
    assert small.low <= small.value <= small.high
    ratio = (small.high - small.low) / (large.high - large.low)
    assert 3 < ratio < 5.5


def test_the_bootstrap_agrees_with_the_normal_interval():
    """On a plain mean the percentile interval is the textbook one, within a tenth."""
    values = np.random.default_rng(1).normal(5, 2, 500)
    found = metrics.mean_estimate(values)
    error = 1.96 * values.std() / np.sqrt(500)
    assert found.high - found.low == pytest.approx(2 * error, rel=0.1)


def test_the_same_seed_gives_the_same_interval():
    """Intervals are reproducible, and another seed moves them."""
    values = np.random.default_rng(2).random(100)
    assert metrics.mean_estimate(values, 3) == metrics.mean_estimate(values, 3)
    assert metrics.mean_estimate(values, 3) != metrics.mean_estimate(values, 4)


def test_a_paired_difference_uses_the_pairs():
    """The same gain on every question has no spread, however much the questions differ."""
    theirs = np.random.default_rng(3).normal(0, 10, 80)
    found = metrics.paired_difference(theirs + 0.5, theirs)
    assert found.low == pytest.approx(0.5) and found.high == pytest.approx(0.5)


def test_a_paired_ratio_of_errors():
    """Half the errors on the same questions: a ratio of one half, bounded below one."""
    theirs = np.tile([1.0, 1.0, 0.0, 0.0, 1.0, 1.0], 60)
    ours = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 60)
    found = metrics.paired_ratio(ours, theirs)
    assert found.value == 0.5 and 0.4 < found.low < 0.5 < found.high < 0.6


def test_a_ratio_to_nothing():
    """No errors of theirs: one when ours has none either, else infinity, never NaN."""
    none, some = np.zeros(10), np.ones(10)
    assert metrics.paired_ratio(none, none).value == 1
    assert metrics.paired_ratio(some, none).high == np.inf


@pytest.mark.parametrize("make", [metrics.paired_difference, metrics.paired_ratio])
def test_unpaired_or_missing_questions_are_refused(make):
    """Two lengths cannot be paired; nothing cannot be measured."""
    with pytest.raises(ValueError, match="paired"):
        make(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="no question"):
        make(np.ones(0), np.ones(0))
