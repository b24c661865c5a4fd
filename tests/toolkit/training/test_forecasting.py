"""ml.toolkit.training.forecasting: rolling origins without leakage, and calibrated intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import lightgbm as lgb
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.serving.scoring.series import with_interval
from ml.toolkit.data.series import Head, Panel
from ml.toolkit.training.forecasting import SETTINGS, Examples, Fitting

HEAD = Head("mase", "sales", "day", horizon=4, season=7, known=("offer",))
STEPS, SERIES = 80, 12


def panel(seed: int = 0) -> Panel:
    """Series of a weekly season with offers, missing values and one that starts late."""
    rng = np.random.default_rng(seed)
    offers = rng.integers(0, 2, (SERIES, STEPS)).astype(float)
    values = 10 + np.arange(STEPS) % 7 + 5 * offers + rng.normal(0, 1, (SERIES, STEPS))
    values[rng.random(values.shape) < 0.05] = np.nan
    values[0, :50] = np.nan
    times = [datetime(2025, 1, 1) + timedelta(days=of) for of in range(STEPS)]
    return Panel(HEAD, [str(of) for of in range(SERIES)], times, values, {"offer": offers}, {})


@given(st.sampled_from(["train", "validation", "test"]), st.integers(0, 5), st.data())
@settings(max_examples=10, deadline=None)
def test_no_example_uses_a_value_after_its_cutoff(split: str, at: int, data: st.DataObject) -> None:
    """With any other values from a cutoff on, the features of its forecasts are bit-identical."""
    before = panel()
    cutoff = before.cutoffs[split][at % len(before.cutoffs[split])]
    values = before.values.copy()
    series, step = data.draw(st.integers(0, SERIES - 1)), data.draw(st.integers(cutoff, STEPS - 1))
    values[series, step] = data.draw(st.floats(-1e9, 1e9))
    after = replace(before, values=values)
    spec = Fitting(before).spec
    ours, theirs = (Examples.from_panel(of, split, spec) for of in (before, after))
    for number, unit in enumerate(ours.units):
        if unit.cutoff == cutoff and unit in theirs.units:
            place = theirs.units.index(unit)
            rows, others = slice(4 * number, 4 * number + 4), slice(4 * place, 4 * place + 4)
            assert np.array_equal(ours.table[rows], theirs.table[others], equal_nan=True)
            assert ours.levels[number] == theirs.levels[place]


def test_the_trees_see_nothing_of_validation_and_the_test() -> None:
    """With other values after the first cutoff of validation the trees are the same text."""
    before = panel()
    values = before.values.copy()
    values[:, before.cutoffs["validation"][0] :] *= -3
    options = {**SETTINGS, "trees": 5, "min_child_samples": 5}
    first = Fitting(before).fit(options, seed=0)[0]
    assert Fitting(replace(before, values=values)).fit(options, seed=0)[0] == first
    values[:, before.cutoffs["validation"][0] - 1] += 1
    assert Fitting(replace(before, values=values)).fit(options, seed=0)[0] != first


def test_the_intervals_hold_on_later_forecasts() -> None:
    """Nearly 80 % of the values of the test lie in intervals that follow from validation."""
    made = panel()
    fitting = Fitting(made)
    text, spec, scores = fitting.fit({**SETTINGS, "trees": 60, "min_child_samples": 5}, seed=0)
    test = Examples.from_panel(made, "test", spec)
    scaled = lgb.Booster(model_str=text).predict(test.table).reshape(test.scaled.shape)
    later = [with_interval(*of, spec) for of in zip(scaled, test.levels, strict=True)]
    for split, rows in (("validation", scores), ("test", np.array(later))):
        actual = np.array([made.actual(of) for of in made.units(split)])
        inside = (rows[:, :, 1] <= actual) & (actual <= rows[:, :, 2])
        assert 0.7 < inside[~np.isnan(actual)].mean() < 0.92, split
    assert spec.smallest == 0.0 and len(spec.low) == len(spec.high) == 4
