"""Forecast with a model folder of forecasters: parameters as JSON, trees as LightGBM text.

`forecaster.json` has the series, their recent values and the members of the ensemble. The forecast
is the weighted mean of the members' forecasts. The kinds of members:

- `naive`, `seasonal_naive`: the last value, or the value one season before
- `ets`: state-space exponential smoothing (Hyndman, Koehler, Ord and Snyder 2008, "Forecasting
  with Exponential Smoothing", table 2.2)
- `theta`: the standard, optimized and dynamic Theta models (Fiorucci et al. 2016, "Models for
  optimising the theta method and their relationship to state space models")
- `arima`: the state-space form of seasonal ARIMA (Durbin and Koopman 2012, "Time Series Analysis by
  State Space Methods", section 3.4), as in R's `arima`
- `trees`: LightGBM or XGBoost on lags, rolling means, calendar features, holidays and columns known
  in advance; forecasts are recursive

A series whose fit failed has no parameters and gets the seasonal naive forecast.
An interval is the forecast ± width · scale. The widths are conformal (Stankevičiūtė, Alaa and van
der Schaar 2021): for each step of the horizon, a quantile of the scaled errors at earlier origins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.members import open_member

FILE = "forecaster.json"
LEVEL = 0.8
Values = NDArray[np.float64]
Parameters = Mapping[str, Any]
_CALENDAR = ("month", "day", "dayofweek", "dayofyear", "hour", "minute")


class Ensemble:
    """The model of a folder with `forecaster.json`.

    Raises the exceptions of `json` and of the libraries for malformed files.
    """

    def __init__(self, folder: Path) -> None:
        self.document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        self.series = [tuple(map(str, names)) for names in self.document["series"]]
        self.horizon = int(self.document["horizon"])
        self._trees = {
            str(member["file"]): open_member(folder, str(member["file"]))
            for member in self.document["members"]
            if "file" in member
        }

    def forecast(
        self,
        chosen: Sequence[int],
        observed: Sequence[Values] | None = None,
        known: Values | None = None,
    ) -> tuple[NDArray[np.datetime64], Values]:
        """Forecast the series with the indices `chosen`, from the end of `observed`.

        `observed` are the values after the training data, one array per series, all of one length.
        `known` (series, horizon, columns) are the future values of the columns known in advance.
        Returns times (series, horizon), and value, low and high (series, horizon, 3).
        """
        import pandas as pd

        document, numbers = self.document, [*chosen]
        nothing = [np.empty(0)] * len(numbers)
        new = np.array(nothing if observed is None else observed, np.float64)
        history = np.array([document["history"][n] for n in numbers], np.float64)
        history = filled(np.column_stack([history, new]))
        offset = pd.tseries.frequencies.to_offset(document["frequency"])
        lasts = [pd.Timestamp(document["last"][n]) + offset * new.shape[1] for n in numbers]
        times = np.array(
            [pd.date_range(last, periods=self.horizon + 1, freq=offset)[1:] for last in lasts],
            "datetime64[ns]",
        )
        values, columns = np.zeros(times.shape), None
        for member in document["members"]:
            if member["kind"] == "trees":
                if columns is None:  # all tree members share them
                    columns = exogenous(times, document["holidays"], known, member["features"])
                of_trees = self._trees[member["file"]]
                local = [member["series"][n] for n in numbers]
                path = recursive(of_trees, member["features"], local, history, columns)
            else:
                path = np.array(
                    [
                        statistical(member, n, row, added, self.horizon)
                        for n, row, added in zip(numbers, history, new, strict=True)
                    ]
                )
            values += float(member["weight"]) * path
        scale, floor = (
            np.array([document[name][n] for n in numbers], np.float64)[:, None]
            for name in ("scale", "floor")
        )
        low, high = interval(values, np.array(document["widths"]), scale, floor)
        return times, np.stack([values, low, high], axis=2)

    def later(self, number: int, time: str, most: int) -> int:
        """Return the number of steps from the last training time of series `number` to `time`.

        Return -1 if it is before that, more than `most` steps later, between steps, or not a time.
        """
        import pandas as pd

        document = self.document
        offset = pd.tseries.frequencies.to_offset(document["frequency"])
        times = pd.date_range(document["last"][number], periods=most + 1, freq=offset)
        try:
            index = pd.DatetimeIndex([pd.Timestamp(time).tz_localize(None)])
            return int(times.get_indexer(index)[0])
        except ValueError:  # not a time
            return -1


def interval(values: Values, widths: Values, scale: Values, floor: Values) -> tuple[Values, Values]:
    """Return (low, high) of the intervals; low is at least `floor` (NaN: no limit) and <= value."""
    low = np.fmax(values - widths * scale, floor)
    return np.minimum(low, values), values + widths * scale


def filled(values: Values) -> Values:
    """Return `values` (series, times) with missing values filled forward."""
    index = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    return np.asarray(np.take_along_axis(values, np.maximum.accumulate(index, axis=1), axis=1))


def seasonal_naive(history: Values, season: int, horizon: int) -> Values:
    """Repeat the last season of `history` (series, times); return (series, horizon).

    If the value one season before is missing, repeat the last value.
    """
    season = max(1, min(season, history.shape[1]))
    values = history[:, history.shape[1] - season + np.arange(horizon) % season]
    return np.asarray(np.where(np.isnan(values), history[:, -1:], values))


def statistical(
    member: Parameters, number: int, history: Values, new: Values, horizon: int
) -> Values:
    """Return the forecast (horizon,) of a statistical member for series `number`.

    `history` ends with the values `new`, which were observed after training.
    """
    kind, season = str(member["kind"]), int(member["season"])
    model = None if kind in ("naive", "seasonal_naive") else member["series"][number]
    if model is None:
        path = seasonal_naive(history[None], 1 if kind == "naive" else season, horizon)
        return np.asarray(path[0])
    values = history[len(history) - len(new) :]
    return FORECASTERS[kind](model, values, horizon)


def ets(model: Parameters, new: Values, horizon: int) -> Values:
    """Return the forecast (horizon,) of exponential smoothing, after updating it with `new` values.

    `states` are the level, the trend if any, and the seasonal states, latest first.
    """
    trend, season = str(model["trend"]), str(model["season"])
    alpha, beta, gamma, phi = (float(model[name]) for name in ("alpha", "beta", "gamma", "phi"))
    states = np.array(model["states"], np.float64)
    level, slope = states[0], states[1] if trend != "N" else 0.0
    seasonal = states[1 + (trend != "N") :]
    for y in new:
        damped = phi * slope if trend != "M" else slope**phi
        ahead = level * damped if trend == "M" else level + (damped if trend == "A" else 0.0)
        oldest = seasonal[-1] if season != "N" else 0.0
        adjusted = y / oldest if season == "M" else y - oldest
        before, level = level, ahead + alpha * (adjusted - ahead)
        if trend != "N":
            change = level - before if trend == "A" else level / before
            slope = damped + beta / alpha * (change - damped)
        if season != "N":
            part = y / ahead if season == "M" else y - ahead
            seasonal = np.concatenate([[oldest + gamma * (part - oldest)], seasonal[:-1]])
    # Sum a damped trend as R's forecast and statsforecast do: phi, 2 phi, 2 phi + phi², ….
    steps = np.cumsum(phi ** np.maximum(1, np.arange(horizon)))
    values = np.full(horizon, level)
    if trend != "N":
        values = level + steps * slope if trend == "A" else level * slope**steps
    if season == "N":
        return values
    repeated = seasonal[::-1][np.arange(horizon) % len(seasonal)]
    return values * repeated if season == "M" else values + repeated


def theta(model: Parameters, new: Values, horizon: int) -> Values:
    """Return the forecast (horizon,) of a Theta model, after updating it with `new` values.

    `states` are the level, the mean, and the line's intercept and slope, after `count` values.
    `seasonal` begins with the component of the next step.
    """
    alpha, weight, count = float(model["alpha"]), float(model["theta"]), int(model["count"])
    level, mean, intercept, slope = map(float, model["states"])
    seasonal = np.array(model["seasonal"] or [0.0], np.float64)
    is_ratio, values = bool(model["multiplicative"]), np.empty(horizon)
    for step in range(len(new) + horizon):
        part = seasonal[step % len(seasonal)]
        curve = (1 - (1 - alpha) ** (count + 1)) / alpha
        line = intercept * (1 - alpha) ** count + slope * curve
        ahead = level + (1 - 1 / weight) * line
        y = ahead
        if step < len(new):
            y = new[step] / part if is_ratio else new[step] - part
        else:
            values[step - len(new)] = ahead * part if is_ratio else ahead + part
        level, before = alpha * y + (1 - alpha) * level, mean
        mean = (count * mean + y) / (count + 1)
        if model["dynamic"]:
            slope = ((count - 1) * slope + 6 * (y - before) / (count + 1)) / (count + 2)
            intercept = mean - slope * (count + 2) / 2
        count += 1
    return values


def arima(model: Parameters, new: Values, horizon: int) -> Values:
    """Return the forecast (horizon,) of ARIMA with mean and drift, after updating it with `new`.

    `states` are the states after `count` values: first of the autoregression `ar`, then of the
    differences `delta`. `gain` is the Kalman gain at the last value.
    """
    ar, delta, gain, states = (np.array(model[name]) for name in ("ar", "delta", "gain", "states"))
    order, size = len(ar), len(states)
    transition = np.eye(size, k=1)
    transition[:order, 0], observed = ar, np.concatenate([np.eye(order)[0], delta])
    transition[order - 1, order:] = 0
    if len(delta):
        transition[order:] = np.vstack([observed, np.eye(size)[order:-1]])
    values = np.empty(horizon)
    for step in range(len(new) + horizon):
        states = transition @ states
        ahead = observed @ states + model["mean"] + model["drift"] * (model["count"] + step + 1)
        if step < len(new):
            states = states + gain * (new[step] - ahead)
        else:
            values[step - len(new)] = ahead
    return values


FORECASTERS = {"ets": ets, "theta": theta, "arima": arima}


def exogenous(
    times: NDArray[np.datetime64], holidays: Sequence[str], known: Values | None, spec: Parameters
) -> Values:
    """Return calendar features, holiday flags and `known` columns: (series, times, columns).

    `times` is (series, times). Three flags are 1 if the day before, the day itself or the day after
    is a holiday; without `holidays` there are no flags.
    """
    import pandas as pd

    index = pd.DatetimeIndex(times.ravel())
    columns = [getattr(index, name).to_numpy(np.float64) for name in spec["calendar"]]
    if holidays:
        days = np.array(holidays, "datetime64[D]")
        dates = index.to_numpy().astype("datetime64[D]")
        columns += [np.isin(dates + offset, days).astype(np.float64) for offset in (-1, 0, 1)]
    table = np.stack(columns, axis=1) if columns else np.empty((times.size, 0))
    table = table.reshape(*times.shape, -1)
    if spec["known"]:
        values = np.full((*times.shape, len(spec["known"])), np.nan) if known is None else known
        table = np.concatenate([table, values], axis=2)
    return table


def calendar(frequency: str | None, length: int) -> list[str]:
    """Return the calendar features that vary within a series of this frequency and length."""
    import pandas as pd

    # Start in the first full year of pandas' timestamps, which span 584 years.
    index = pd.date_range("1678-01-01", periods=min(length, 2000), freq=frequency)
    return [name for name in _CALENDAR if len(set(getattr(index, name))) > 1]


def lagged(values: Values, spec: Parameters) -> tuple[Values, Values]:
    """Return the lag features of each sliding window, and the offset to subtract from its target.

    `values` (series, times) are scaled. A window has `spec["length"]` times; its target is the
    next value. Returns (series, windows, columns) and (series, windows).
    """
    windows = values[:, None]
    if values.shape[1] > spec["length"]:
        windows = np.lib.stride_tricks.sliding_window_view(values, spec["length"], axis=1)
    base = np.zeros(windows.shape[:2])
    if spec["relative"]:
        base = windows[..., -spec["base"] :].mean(axis=2)
        base = np.where(np.isnan(base), windows[..., -1], base)
    lags = windows[..., [-lag for lag in spec["lags"]]]
    means = [windows[..., -size:].mean(axis=2, keepdims=True) for size in spec["windows"]]
    return np.concatenate([lags, *means], axis=2) - base[..., None], base


def recursive(
    model: Any, spec: Parameters, local: Sequence[Parameters], history: Values, columns: Values
) -> Values:
    """Return recursive forecasts (series, horizon) of trees: each forecast is a lag of the next.

    `history` is (series, times). `columns` (series, horizon, columns) is from `exogenous`.
    """
    length, horizon = int(spec["length"]), columns.shape[1]
    code = np.array([parameters["code"] for parameters in local], np.float64)[:, None]
    scale = np.array([parameters["scale"] for parameters in local])[:, None]
    location = np.array([parameters["location"] for parameters in local])[:, None]
    size = min(length, history.shape[1])
    values = np.full((len(history), length + horizon), np.nan)
    values[:, length - size : length] = (history[:, history.shape[1] - size :] - location) / scale
    for step in range(horizon):
        lags, base = lagged(values[:, step : step + length], spec)
        parts = [lags[:, 0], columns[:, step], *([code] if spec["code"] else [])]
        table = np.concatenate(parts, axis=1).astype(np.float32)
        values[:, length + step] = model.predict(table) + base[:, 0]
    return np.asarray(values[:, length:] * scale + location)
