"""Rolling origins know no value after their cutoff."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml.automl.forecasting import boosted, origins, trial
from ml.automl.forecasting.statistical import fit, naive
from tests.automl.forecasting.conftest import SMALL_TREES, problem, sales

NEW_YEAR = ["2024-01-01", "2024-02-14"]


def _forecasts(of: trial.ForecastProblem, family: str, relative: bool) -> np.ndarray:
    if family in ("naive", "seasonal_naive"):
        fits = naive(of.panel, family, of.origins.cutoffs, 3)
    else:
        sampled = {**SMALL_TREES, "relative": relative}
        fits = boosted.fit(
            of.panel, family, sampled, of.settings, of.origins.cutoffs, of.holidays, 0
        )
    return fits.forecasts


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(["light_gbm", "light_gbm", "seasonal_naive"]),
    relative=st.booleans(),
    lags=st.sampled_from([None, 1, [1, 7], [3]]),
    window=st.sampled_from([None, 2, 9]),
    has_holidays=st.booleans(),
    changed=st.integers(1, 12),
    value=st.floats(-1e6, 1e6),
)
def test_values_after_a_cutoff_change_no_forecast_from_it(
    family: str,
    relative: bool,
    lags: object,
    window: int | None,
    has_holidays: bool,
    changed: int,
    value: float,
) -> None:
    """Nor its intervals: bit by bit, over lags, windows, holidays, scales and transforms."""
    frame = sales(days=50)
    fields = {"target_lags": lags, "target_rolling_window_size": window}
    before = problem(frame, NEW_YEAR if has_holidays else (), **fields)
    times = sorted({*frame["day"]})
    frame.loc[frame["day"] >= times[-changed], "sold"] = value
    after = problem(frame, NEW_YEAR if has_holidays else (), **fields)
    paths = [_forecasts(of, family, relative) for of in (before, after)]
    tables = [
        trial.forecast_table(of, path) for of, path in zip((before, after), paths, strict=True)
    ]
    for number, cutoff in enumerate(before.origins.cutoffs):
        if cutoff < len(times) - changed:
            assert np.array_equal(paths[0][number], paths[1][number])
            parts = [of[of["cutoff"] == before.panel.grid[cutoff]] for of in tables]
            columns = ["yhat", "lo_80", "hi_80"]
            assert parts[0][columns].equals(parts[1][columns])


@pytest.mark.parametrize("series", [2, 10])
def test_values_after_a_cutoff_change_no_vote_from_it(series: int) -> None:
    """Its weights are those of errors at earlier origins, bit by bit."""
    frame = sales(series=series, days=50)
    before, times = problem(frame), sorted({*frame["day"]})
    families = ["naive", "seasonal_naive", "light_gbm"]
    frame.loc[frame["day"] >= times[-5], "sold"] = 1e6
    after = problem(frame)
    votes = [
        trial.combine(of, families, [_forecasts(of, family, True) for family in families])
        for of in (before, after)
    ]
    same = [cutoff < len(times) - 5 for cutoff in before.origins.cutoffs]
    assert np.array_equal(votes[0][1][same], votes[1][1][same]) and sum(same) > 3
    assert votes[0][0] != votes[1][0]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["exponential_smoothing", "theta"])
def test_statistical_forecasts_know_nothing_later(family: str) -> None:
    """The parameters are those of the first origin, the states those of each."""
    frame = sales(days=50)
    before = problem(frame)
    frame.loc[frame["day"] >= sorted({*frame["day"]})[-4], "sold"] = 1e6
    after = problem(frame)
    paths = [fit(of.panel, family, of.origins.cutoffs, 3, 60).forecasts for of in (before, after)]
    for number, cutoff in enumerate(before.origins.cutoffs):
        assert cutoff > 45 or np.array_equal(paths[0][number], paths[1][number])


def test_origins_are_a_step_apart() -> None:
    """The last one has a whole horizon after it; earlier ones calibrate."""
    of = problem(sales(series=10)).origins
    assert of.cutoffs == [44, 47, 50, 53, 56] and [*of.scored] == [2, 3, 4]
    assert problem(sales(series=10), cv_step_size=1).origins.cutoffs[-2:] == [55, 56]


@pytest.mark.parametrize(("days", "count"), [(200, 12), (60, 7), (40, 5)])
def test_few_series_have_more_origins(days: int, count: int) -> None:
    """Up to 12, which leave half of the times to fit; at least 5."""
    of = problem(sales(series=1, days=days)).origins
    assert len(of.scored) == count and (count == 5 or of.cutoffs[0] >= (days - 4) // 2)


def test_a_series_that_is_too_short_ends_the_search() -> None:
    """Two values and a horizon of three."""
    with pytest.raises(SystemExit, match=r"error\[few-times\].*longest series has 2"):
        problem(sales(days=2))


def test_intervals_cover_their_share() -> None:
    """Of 120 series whose errors are alike, the seasonal naive forecast."""
    of = problem(sales(series=20, days=80, seed=3), cv_step_size=3)
    fits = naive(of.panel, "seasonal_naive", of.origins.cutoffs, 3)
    measured, _ = trial.measured(trial.forecast_table(of, fits.forecasts))
    assert 0.7 < measured["coverage_80"] < 0.9


def test_a_quantile_takes_errors_of_near_steps() -> None:
    """Where a step alone has too few."""
    columns = [np.full(3, 1.0), np.full(60, 2.0), np.full(60, 9.0)]
    assert [origins._quantile(columns, step) for step in range(3)] == [2.0, 2.0, 9.0]
