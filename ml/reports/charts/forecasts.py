"""Chart forecasts: the error by step, and the series with the largest errors."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from markupsafe import Markup

from ml.measures.forecasting import Forecasts
from ml.reports.charts import svg
from ml.reports.charts.scales import axis
from ml.reports.formatting import number

# Number of series with a chart of their own.
WORST = 4
_WIDTH, _HEIGHT = 450, 260


def forecast_charts(names: Sequence[str], data: Forecasts) -> list[Markup]:
    """Return the chart of the error by step, and one for each of the WORST series.

    A series' chart shows its worst forecast. `names` has the series of each forecast.
    """
    series, numbers = np.unique(names, return_inverse=True)
    errors = np.nanmean(data.scaled_errors, axis=1)
    by_series = np.bincount(numbers, errors) / np.bincount(numbers)
    charts = [_by_step(data)]
    for place, series_number in enumerate(
        np.argsort(-by_series, kind="stable")[:WORST].tolist(), 1
    ):
        rows = np.flatnonzero(numbers == series_number)
        unit = int(rows[np.argmax(errors[rows])])
        caption = f"MASE of the series {number(float(by_series[series_number]))}, rank {place} of "
        caption += f"{len(series)}, worst first. Shown: its worst forecast, MASE "
        charts.append(
            _forecast(
                series[series_number], data, unit, caption + f"{number(float(errors[unit]))}."
            )
        )
    return charts


def _by_step(data: Forecasts) -> Markup:
    lines = {
        kind: np.nanmean(values, axis=0)
        for kind, values in (("ours", data.scaled_errors), ("baseline", data.naive_errors))
        if not np.isnan(values).all(axis=0).any()
    }
    most = max((float(line.max()) for line in lines.values()), default=1.0)
    y = alt.Y("y:Q", title="mean absolute scaled error", **axis(0, most))
    layers = [
        _line(np.arange(1, len(line) + 1), line, kind).encode(_steps(len(line)), y)
        for kind, line in lines.items()
    ]
    meanings = {"ours": ("ours", "this model"), "baseline": ("baseline", "seasonal naive")}
    caption = f"Over {len(data.scale)} forecasts."
    chart = alt.layer(*layers)
    return svg.figure("Error by step", chart, _WIDTH, _HEIGHT, caption, meanings)


def _forecast(name: str, data: Forecasts, unit: int, caption: str) -> Markup:
    """Plot the forecast in row `unit` of `data`, with its interval and the actual values."""
    present = ~np.isnan(data.value[unit])
    value, low, high, actual = (
        row[unit][present] for row in (data.value, data.low, data.high, data.actual)
    )
    steps = np.arange(1, len(value) + 1)
    ends = (float(np.nanmin([*low, *actual])), float(np.nanmax([*high, *actual])))
    y = alt.Y("y:Q", title="value", **axis(min(0.0, ends[0]), ends[1]))
    band = svg.rows(
        {"x": x, "y": below, "y2": above}
        for x, below, above in zip(steps.tolist(), low.tolist(), high.tolist(), strict=True)
    )
    seen = ~np.isnan(actual)
    dots = svg.rows(
        {"x": x, "y": of_step, "words": f"step {x}: {number(of_step)}"}
        for x, of_step in zip(steps[seen].tolist(), actual[seen].tolist(), strict=True)
    )
    layers = [
        band.mark_area(color="var(--ours)", opacity=0.2).encode(_steps(len(value)), y, y2="y2:Q"),
        _line(steps, value, "ours").encode(_steps(len(value)), y),
        svg.pointed(dots.mark_point(size=40, color="var(--ink)", filled=True)).encode(
            _steps(len(value)), y
        ),
    ]
    meanings = {"ours": ("ours", "forecast with interval"), "ink": ("ink", "actual value")}
    return svg.figure(f"Series {name}", alt.layer(*layers), _WIDTH, _HEIGHT, caption, meanings)


def _steps(count: int) -> alt.X:
    return alt.X("x:Q", title="step", **axis(1, max(2, count), is_integer=True))


def _line(steps: Sequence[int] | np.ndarray, values: np.ndarray, colour: str) -> alt.Chart:
    points = zip(np.asarray(steps).tolist(), values.tolist(), strict=True)
    return svg.rows({"x": x, "y": y} for x, y in points).mark_line(color=f"var(--{colour})")
