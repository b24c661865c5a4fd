"""Charts of forecasts: the error by step, and the worst series first."""

from __future__ import annotations

import numpy as np

from ml.measures.forecasting import Forecasts
from ml.reports.charts.forecasts import WORST, forecast_charts
from tests.reports.html_page import Page


def some(count: int = 12, horizon: int = 5) -> Forecasts:
    """Forecasts of two cutoffs a series; the errors grow with the number of the series."""
    actual = np.full((count, horizon), 10.0)
    actual[0, 2:3] = np.nan
    error = (np.arange(count) // 2 + 1.0)[:, None]
    value = actual + error
    value[0, 2:3] = 11.0
    return Forecasts(actual, actual + 3, np.full(count, 2.0), value, value - 1, value + 1)


def test_the_worst_series_come_first() -> None:
    """Behind the error by step; each with its forecast, its interval and what happened."""
    names = [f"s{number // 2}" for number in range(12)]
    charts = forecast_charts(names, some())
    texts = [str(chart) for chart in charts]
    assert "Error by step" in texts[0] and "seasonal naive" in texts[0]
    assert len(charts) == 1 + WORST
    for place, text in enumerate(texts[1:], 1):
        assert f"Series s{6 - place}" in text and f"rank {place} of 6" in text
        assert "step 5: 10" in text
    assert all(Page(text).problems == [] for text in texts)


def test_one_series_of_one_step() -> None:
    """Names are texts of the page, whatever they are."""
    name = "<b>a</b>"
    (_, chart) = forecast_charts([name], some(1, 1))
    assert "&lt;b&gt;a&lt;/b&gt;" in chart and "<b>" not in chart
