"""Fit one model of boosted trees to all series; features are lags, calendar and known columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml.automl.forecasting.panel import Panel
from ml.automl.forecasting.settings import Settings
from ml.automl.forecasting.statistical import Fits
from ml.automl.models import trees
from ml.automl.models.estimators import Numbers
from ml.serving.scoring.forecasters import (
    Values,
    calendar,
    exogenous,
    lagged,
    recursive,
)

FITS = {"light_gbm": trees.fit_lightgbm, "xg_boost_regressor": trees.fit_xgboost}
# Maximum training rows; of more, the latest ones are used.
MOST_ROWS = 200_000
# With fewer values than FEW_CELLS, one thread is faster than several: family → its parameter.
FEW_CELLS, THREADS = 100_000, {"light_gbm": "num_threads", "xg_boost_regressor": "nthread"}
# With more series, the series' number is not a feature.
MOST_CODES = 1_000


def fit(
    panel: Panel,
    family: str,
    sampled: Mapping[str, Any],
    settings: Settings,
    cutoffs: Sequence[int],
    holidays: Sequence[str],
    seed: int,
    seconds: float = math.inf,
) -> Fits:
    """Fit boosted trees twice: to the values until the first cutoff, and to all values.

    The first model makes the forecasts at all cutoffs, each with the lags known at its cutoff. Its
    fit stops after half of `seconds`. The second model, which is saved, has as many trees.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1 if panel.target.size < FEW_CELLS else None, "openmp"):
        spec = _features(panel, settings, bool(sampled["relative"]))
        model, local = _fit(panel, family, sampled, spec, holidays, cutoffs[0], seed, seconds / 2)
        # Predict each step for all origins at once, from each origin's window of latest values.
        length, count, horizon = int(spec["length"]), len(panel.target), settings.horizon
        values = np.column_stack([np.full((count, length), np.nan), panel.filled])
        history = np.concatenate([values[:, cut + 1 : cut + 1 + length] for cut in cutoffs])
        steps = np.array(cutoffs)[:, None] + 1 + np.arange(horizon)
        times = np.repeat(panel.grid.to_numpy()[steps], count, axis=0)
        regressors = np.concatenate([panel.known[:, step] for step in steps])
        columns = exogenous(times, holidays, regressors, spec)
        forecasts = recursive(model, spec, local * len(cutoffs), history, columns)
        sampled = {**sampled, "n_estimators": model.rounds}
        last, local = _fit(panel, family, sampled, spec, holidays, len(panel.grid) - 1, seed)
        forecasts = forecasts.reshape(len(cutoffs), count, horizon)
        return Fits(forecasts, {"kind": "trees", "features": spec, "series": local}, last)


def _features(panel: Panel, settings: Settings, relative: bool) -> dict[str, Any]:
    """Return the description of the trees' features, which `lagged` and `exogenous` read."""
    season, longest = panel.season, panel.target.shape[1]
    lags = {1, 2, 3, 4, season - 1, season, season + 1, 2 * season}
    lags |= {*range(1, season + 1)} if season <= 14 else set()
    lags |= {3 * season, 4 * season} if season <= 7 else set()
    lags |= {7 * season} if season == 24 else set()
    most = max(1, longest // 3)
    lags = {*settings.lags} if settings.lags else {lag for lag in lags if 0 < lag <= most}
    windows = (
        [settings.window]
        if settings.window
        else [size for size in {4, season if season > 2 else 8, 4 * season} if size <= most]
    )
    base = min(most, season if season > 1 else 4)
    return {
        **{"lags": sorted(lags), "windows": sorted(windows), "relative": relative, "base": base},
        "length": max([*lags, *windows, base]),
        "calendar": calendar(panel.grid.freqstr, longest),
        "known": list(panel.names),
        "code": 1 < len(panel.ids) <= MOST_CODES,
    }


def _fit(
    panel: Panel,
    family: str,
    sampled: Mapping[str, Any],
    spec: Mapping[str, Any],
    holidays: Sequence[str],
    cutoff: int,
    seed: int,
    seconds: float = math.inf,
) -> tuple[trees.FittedTrees, list[dict[str, float]]]:
    """Return trees fitted to the values up to a cutoff, and each series' standardization."""
    history = panel.until(cutoff)
    values, observed = history.filled, ~np.isnan(history.target)
    local = [
        _local(row[mask], number)
        for number, (row, mask) in enumerate(zip(values, observed, strict=True))
    ]
    begin = max(0, values.shape[1] - max(1, MOST_ROWS // len(values)))
    scale = np.array([entry["scale"] for entry in local])[:, None]
    location = np.array([entry["location"] for entry in local])[:, None]
    scaled = (values - location) / scale
    padding = np.full((len(values), int(spec["length"])), np.nan)
    padded = np.column_stack([padding, scaled])[:, begin:]
    lags, base = (array[:, :-1] for array in lagged(padded, spec))
    times = np.tile(history.grid.to_numpy()[begin:], (len(values), 1))
    columns = exogenous(times, holidays, panel.known[:, begin : cutoff + 1], spec)
    codes = np.broadcast_to(np.arange(len(values))[:, None, None], (*base.shape, 1))
    table = np.concatenate([lags, columns, *([codes] if spec["code"] else [])], axis=2)
    target = scaled[:, begin:] - base
    rows = observed[:, begin:] & ~np.isnan(target) & ~np.isnan(lags[..., 0])
    if not rows.any():  # no series has two values: fit zeros
        rows, target = np.ones_like(rows), np.zeros_like(target)
    categorical = [table.shape[2] - 1] if spec["code"] else []
    numbers = Numbers(
        table[rows].astype(np.float32), target[rows], None, "regression", 0, categorical
    )
    parameters = {name: value for name, value in sampled.items() if name != "relative"}
    if panel.target.size < FEW_CELLS:
        parameters |= {THREADS[family]: 1}
    return FITS[family](numbers, parameters, seed, seconds), local


def _local(values: Values, number: int) -> dict[str, float]:
    """Return mean (`location`), standard deviation (`scale`) and number (`code`) of a series."""
    scale = float(values.std()) if len(values) else 0.0
    location = float(values.mean()) if len(values) else 0.0
    # A constant series may have a tiny deviation by rounding.
    is_constant = scale <= 1e-9 * max(1.0, abs(location))
    return {"location": location, "scale": 1.0 if is_constant else scale, "code": number}
