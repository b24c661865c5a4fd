"""Confidence intervals, against plain slow references."""

from __future__ import annotations

import numpy as np
import pytest

from ml.measures import bootstrap


def test_an_interval_holds_its_value_and_narrows():
    """Four times the questions: about half the width."""
    rng = np.random.default_rng(0)
    small, large = (
        bootstrap.mean_estimate((rng.random(n) < 0.7).astype(float)) for n in (200, 3200)
    )
    assert small.low <= small.value <= small.high
    ratio = (small.high - small.low) / (large.high - large.low)
    assert 3 < ratio < 5.5


def test_the_bootstrap_agrees_with_the_normal_interval():
    """On a plain mean the percentile interval is the textbook one, within a tenth."""
    values = np.random.default_rng(1).normal(5, 2, 500)
    estimate = bootstrap.mean_estimate(values)
    error = 1.96 * values.std() / np.sqrt(500)
    assert estimate.high - estimate.low == pytest.approx(2 * error, rel=0.1)


def test_the_same_seed_gives_the_same_interval():
    """Intervals are reproducible, and another seed moves them."""
    values = np.random.default_rng(2).random(100)
    assert bootstrap.mean_estimate(values, 3) == bootstrap.mean_estimate(values, 3)
    assert bootstrap.mean_estimate(values, 3) != bootstrap.mean_estimate(values, 4)


def _hanging_together(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """40 entities of 10 rows that nearly agree, as rows of one entity do; and their names."""
    rng = np.random.default_rng(seed)
    names = np.repeat(np.arange(40), 10)
    return np.repeat(rng.normal(size=40), 10) + rng.normal(0, 0.1, 400), names


def test_rows_that_hang_together_are_drawn_together():
    """Row by row it pretends to 400 rows where 40 are independent: three times too narrow."""
    values, names = _hanging_together(0)
    alone, together = bootstrap.mean_estimate(values), bootstrap.mean_estimate(values, groups=names)
    assert alone.value == together.value and together.count == 400
    assert 2.5 < (together.high - together.low) / (alone.high - alone.low) < 3.8


def test_the_grouped_interval_holds_the_truth_as_often_as_it_says():
    """Of 200 samples with mean 0, about 95 % of the grouped intervals hold it; half of the rest."""
    coverage = {"grouped": 0, "row by row": 0}
    for seed in range(200):
        values, names = _hanging_together(seed)
        for kind, groups in (("grouped", names), ("row by row", None)):
            drawn = bootstrap.resampled_means(values[:, None], samples=200, groups=groups)[:, 0]
            low, high = np.percentile(drawn, [2.5, 97.5])
            coverage[kind] += bool(low <= 0 <= high)
    assert coverage["grouped"] > 178 and coverage["row by row"] < 120


def test_a_group_for_each_row_is_no_group():
    """The same numbers as without groups, whatever the groups are called."""
    values = np.random.default_rng(5).random(50)
    names = [f"g{number:02}" for number in range(50)]
    assert bootstrap.mean_estimate(values, groups=names) == bootstrap.mean_estimate(values)


def test_groups_of_unlike_sizes_count_by_their_rows():
    """A group of 90 rows weighs 90 times as much as one of a single row."""
    values = np.array([1.0] * 90 + [0.0] * 30)
    names = ["large"] * 90 + [f"small-{number}" for number in range(30)]
    estimate = bootstrap.mean_estimate(values, groups=names)
    assert estimate.value == 0.75 and estimate.low == 0 and estimate.high > 0.85


def test_too_few_groups_are_refused():
    """Over nine groups an interval is not to be relied on; over ten it is made."""
    values = np.arange(40.0)
    with pytest.raises(ValueError, match="9 groups"):
        bootstrap.mean_estimate(values, groups=np.arange(40) % 9)
    assert bootstrap.mean_estimate(values, groups=np.arange(40) % 10).count == 40
