"""Measure forecasts of time series: the seasonal naive baseline, errors, and their CSV format.

A unit is the forecast of one series from one cutoff, the last time with a known value. It has one
value and one interval per step. In predictions.csv, its `expected` text has the actual values, the
seasonal naive forecast and the scale; its `predicted` text has `[value, low, high]` per step. Steps
without an actual value (a gap, a day without stock) are left out of every error.

Sources: Hyndman and Koehler 2006, "Another look at measures of forecast accuracy" (MASE);
Gneiting and Raftery 2007, section 6.2 (interval score); Makridakis et al. 2020, "The M4
Competition", which scales that score as MASE (MSIS).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
# The nominal coverage of every interval.
LEVEL = 0.8
# Significant digits in predictions.csv.
_DIGITS = 9
_ACTUALS = ("actual", "naive", "scale")
# The normal quantile of LEVEL.
_DEVIATIONS = 1.2815515655446004


@dataclass(frozen=True)
class Actuals:
    """The label of a unit: the actual values and the reference of a forecast."""

    actual: Values  # (horizon,); NaN where no value was observed
    naive: Values  # (horizon,): the seasonal naive forecast from the same cutoff
    scale: float  # the mean absolute error of seasonal naive within the history


@dataclass(frozen=True)
class Forecasts:
    """The forecasts and the actual values of some units, padded with NaN to one horizon."""

    actual: Values  # (units, horizon)
    naive: Values  # (units, horizon)
    scale: Values  # (units,)
    value: Values  # (units, horizon)
    low: Values  # (units, horizon)
    high: Values  # (units, horizon)

    @property
    def scaled_errors(self) -> Values:
        """|actual − forecast| / scale (units, horizon)."""
        return np.abs(self.actual - self.value) / self.scale[:, None]

    @property
    def naive_errors(self) -> Values:
        """|actual − seasonal naive| / scale (units, horizon)."""
        return np.abs(self.actual - self.naive) / self.scale[:, None]

    @property
    def covered(self) -> Values:
        """1 if the interval contains the actual value, else 0; NaN without one (units, horizon)."""
        inside = (self.low <= self.actual) & (self.actual <= self.high)
        return np.where(np.isnan(self.actual), np.nan, inside.astype(np.float64))

    @property
    def interval_scores(self) -> Values:
        """The scaled interval scores (units, horizon): width plus penalty for misses."""
        missed = np.maximum(self.low - self.actual, 0) + np.maximum(self.actual - self.high, 0)
        score = self.high - self.low + 2 / (1 - LEVEL) * missed
        return np.asarray(score / self.scale[:, None])


def seasonal_naive(history: ArrayLike, season: int, horizon: int) -> Values:
    """Return the seasonal naive forecast (horizon, 3): value, low and high.

    The value is the last observed one at the same position in the season, or else the last observed
    one. `history` is (times,), NaN if not observed. The interval assumes normal errors with the
    standard deviation of the seasonal differences, which grows with the number of seasons ahead
    (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 3rd ed., 5.5). Raises
    ValueError without an observed value.
    """
    values = np.asarray(history, dtype=np.float64)
    observed = values[~np.isnan(values)]
    if not len(observed):
        raise ValueError("a history without an observed value")
    steps = np.arange(horizon)
    padded = np.concatenate([np.full(-len(values) % season, np.nan), values])
    by_place = padded.reshape(-1, season)
    offset = (~np.isnan(by_place))[::-1].argmax(axis=0)
    latest = by_place[len(by_place) - 1 - offset, np.arange(season)]
    latest = np.where(np.isnan(latest), observed[-1], latest)[steps % season]
    differences = _differences(values, season)
    deviation = math.sqrt(float(np.mean(differences**2))) if len(differences) else 0.0
    width = _DEVIATIONS * deviation * np.sqrt(steps // season + 1)
    return np.stack([latest, latest - width, latest + width], axis=1)


def scale(history: ArrayLike, season: int) -> float:
    """Return the divisor of scaled errors: the mean absolute seasonal difference of the history.

    If that is undefined or 0, the fallbacks are the mean absolute difference of successive values,
    the mean absolute value, and 1.
    """
    values = np.asarray(history, dtype=np.float64)
    for errors in (_differences(values, season), _differences(values, 1), values):
        errors = np.abs(errors[~np.isnan(errors)])
        if len(errors) and errors.mean() > 0:
            return float(errors.mean())
    return 1.0


def actuals(history: ArrayLike, actual: ArrayLike, season: int) -> Actuals:
    """Return the label of a forecast, from the `history` up to the cutoff and the `actual` values.

    Raises ValueError if one of the two has no observed value.
    """
    values = np.asarray(actual, dtype=np.float64)
    if np.isnan(values).all():
        raise ValueError("a forecast without an observed value after its cutoff")
    naive = seasonal_naive(history, season, len(values))[:, 0]
    return Actuals(values, naive, scale(history, season))


def written_actuals(label: Actuals) -> str:
    """Encode a label for predictions.csv."""
    columns = (_digits(label.actual), _digits(label.naive), _digits(label.scale))
    return json.dumps(dict(zip(_ACTUALS, columns, strict=True)))


def written(forecast: ArrayLike) -> str:
    """Encode a forecast (horizon, 3), of value, low and high, for predictions.csv."""
    return json.dumps(_digits(np.asarray(forecast, dtype=np.float64)))


def read_actuals(text: str) -> Actuals:
    """Parse a label; raise ValueError if the text is not one."""
    try:
        actual, naive, size = (json.loads(text)[name] for name in _ACTUALS)
        label = Actuals(
            np.array([math.nan if value is None else value for value in actual], dtype=np.float64),
            np.array(naive, dtype=np.float64),
            float(size),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{text[:40]!r} has no {', '.join(_ACTUALS)}") from None
    is_whole = label.actual.ndim == 1 and label.actual.shape == label.naive.shape
    if not is_whole or np.isnan(label.actual).all() or np.isinf(label.actual).any():
        raise ValueError(f"{text[:40]!r} does not have an actual and a naive value a step")
    if not np.isfinite(label.naive).all() or not 0 < label.scale < math.inf:
        raise ValueError(f"{text[:40]!r} has a naive value or a scale that is not finite")
    return label


def read(text: str) -> Values:
    """Parse a forecast (horizon, 3); raise ValueError if the text is not one."""
    try:
        rows = np.array(json.loads(text), dtype=np.float64).reshape(-1, 3)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{text[:40]!r} is not a list of [value, low, high]") from None
    if not len(rows) or not np.isfinite(rows).all():
        raise ValueError(f"{text[:40]!r} has a step that is not three finite numbers")
    if (rows[:, 1] > rows[:, 2]).any():
        raise ValueError(f"{text[:40]!r} has an interval whose low end is above its high end")
    return rows


def forecasts(expected: Sequence[str], predicted: Sequence[str]) -> Forecasts:
    """Parse the labels and forecasts of some units from the texts of predictions.csv."""
    labels, answers = list(map(read_actuals, expected)), list(map(read, predicted))
    horizon = max([1, *(len(label.actual) for label in labels)])

    def padded(rows: Sequence[Values]) -> Values:
        table = np.full((len(rows), horizon), np.nan)
        for number, row in enumerate(rows):
            table[number, : len(row)] = row
        return table

    value, low, high = (padded([answer[:, place] for answer in answers]) for place in range(3))
    return Forecasts(
        actual=padded([label.actual for label in labels]),
        naive=padded([label.naive for label in labels]),
        scale=np.array([label.scale for label in labels]),
        value=value,
        low=low,
        high=high,
    )


def fault(expected: str, predicted: str, score: float) -> str:
    """Return why the texts and the score of a row cannot be a forecast, or ""."""
    try:
        label, answer = read_actuals(expected), read(predicted)
    except ValueError as error:
        return str(error)
    if len(label.actual) != len(answer):
        return f"{len(answer)} steps were predicted, expected {len(label.actual)}"
    total = float(answer[:, 0].sum())
    is_same = math.isclose(total, score, rel_tol=1e-6, abs_tol=1e-6 * label.scale)
    return "" if is_same else f"score {score:.6g}, expected the sum of the values, {total:.6g}"


def _differences(values: Values, season: int) -> Values:
    """Return the observed seasonal differences of a history."""
    differences = values[season:] - values[:-season] if len(values) > season else values[:0]
    return differences[~np.isnan(differences)]


def _digits(values: Any) -> Any:
    """Round numbers to `_DIGITS` significant digits; replace NaN, which JSON lacks, by None."""
    if np.ndim(values):
        return [_digits(value) for value in values]
    return None if math.isnan(values) else float(f"{float(values):.{_DIGITS}g}")
