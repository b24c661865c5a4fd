"""Slices compared by Fairlearn, against the same by hand."""

from __future__ import annotations

import numpy as np

from ml.toolkit.fairness import FEWEST, disparities
from ml.toolkit.metrics import METRICS


def test_the_difference_is_that_of_the_extremes():
    """Three slices of known quality: highest less lowest, by every metric."""
    found = np.array([1] * 30 + [1] * 20 + [2] * 20 + [4] * 10 + [1] * 20)
    slices = ["best"] * 30 + ["middle"] * 40 + ["worst"] * 30
    apart = disparities(found, slices, "test")
    assert apart.keys() == METRICS.keys()
    gain = apart["gain_at_1"]
    assert (gain["lowest"], gain["highest"], gain["slices"]) == ("middle", "best", 3)
    assert gain["difference"] == 0.5 and gain["split"] == "test"
    assert apart["gain_at_3"]["lowest"] == "worst"
    assert apart["mean_rank"]["highest"] == "worst" and apart["mean_rank"]["lowest"] == "best"
    for name, of in METRICS.items():
        values = [of(found[np.array(slices) == one]).mean() for one in set(slices)]
        assert np.isclose(apart[name]["difference"], max(values) - min(values))


def test_slices_of_too_few_units_are_left_out():
    """One unit less than enough, and the slice is not compared; a single one compares nothing."""
    found = np.array([1] * 40 + [9] * (FEWEST - 1))
    slices = ["a"] * 20 + ["b"] * 20 + ["rare"] * (FEWEST - 1)
    assert disparities(found, slices, "test")["gain_at_1"]["difference"] == 0
    assert disparities(found[20:], slices[20:], "test") == {}
    assert disparities(found[:0], [], "test") == {}
