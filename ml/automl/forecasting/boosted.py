"""Boosted trees over all series: each step is forecast by lags, the calendar and known columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml.automl.forecasting.panel import Panel
from ml.automl.forecasting.settings import Settings
from ml.automl.forecasting.statistical import Fits
from ml.automl.models import trees
from ml.automl.models.numbers import Fitted, Numbers
from ml.serving.scoring.forecasters import (
    Values,
    calendar,
    exogenous,
    lagged,
    recursive,
)

FITS = {"light_gbm": trees.fit_lightgbm, "xg_boost_regressor": trees.fit_xgboost}
# Rows of training at most, the latest ones.
MOST_ROWS = 200_000
# Cells below which threads wait for each other longer than they work.
FEW_CELLS, THREADS = 100_000, {"light_gbm": "num_threads", "xg_boost_regressor": "nthread"}
# The number of a series is a feature of at most so many.
MOST_CODES = 1_000


def fit(
    panel: Panel,
    family: str,
    sampled: Mapping[str, Any],
    settings: Settings,
    cutoffs: Sequence[int],
    holidays: Sequence[str],
    seed: int,
) -> Fits:
    """Fit at the first origin, and once to all values; later origins have newer lags alone."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1 if panel.target.size < FEW_CELLS else None, "openmp"):
        spec = _features(panel, settings, bool(sampled["relative"]))
        values = panel.filled
        model, local = _fit(panel, family, sampled, spec, holidays, cutoffs[0], seed)
        forecasts = []
        for cutoff in cutoffs:
            steps = slice(cutoff + 1, cutoff + 1 + settings.horizon)
            times = np.tile(panel.grid.to_numpy()[steps], (len(values), 1))
            columns = exogenous(times, holidays, panel.known[:, steps], spec)
            history = values[:, : cutoff + 1]
            forecasts.append(recursive(model, spec, local, history, columns))
        last, local = _fit(panel, family, sampled, spec, holidays, len(panel.grid) - 1, seed)
        return Fits(np.array(forecasts), {"kind": "trees", "features": spec, "series": local}, last)


def _features(panel: Panel, settings: Settings, relative: bool) -> dict[str, Any]:
    """What trees take, as `lagged` and `exogenous` read it."""
    season, longest = panel.season, panel.target.shape[1]
    lags = {1, 2, 3, 4, season - 1, season, season + 1, 2 * season}
    lags |= {*range(1, season + 1)} if season <= 14 else set()
    lags |= {3 * season, 4 * season} if season <= 7 else set()
    lags |= {7 * season} if season == 24 else set()
    most = max(1, longest // 3)
    lags = {*settings.lags} if settings.lags else {of for of in lags if 0 < of <= most}
    windows = (
        [settings.window]
        if settings.window
        else [of for of in {4, season if season > 2 else 8, 4 * season} if of <= most]
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
) -> tuple[Fitted, list[dict[str, float]]]:
    """The trees of all values until a cutoff, and by what those of each series are scaled."""
    known = panel.until(cutoff)
    values, observed = known.filled, ~np.isnan(known.target)
    local = [
        _local(row[of], number)
        for number, (row, of) in enumerate(zip(values, observed, strict=True))
    ]
    begin = max(0, values.shape[1] - max(1, MOST_ROWS // len(values)))
    length = int(spec["length"])
    padded = np.column_stack([np.full((len(values), length), np.nan), values])[:, begin:]
    lags, base = (of[:, :-1] for of in lagged(padded, spec, local))
    times = np.tile(known.grid.to_numpy()[begin:], (len(values), 1))
    columns = exogenous(times, holidays, panel.known[:, begin : cutoff + 1], spec)
    codes = np.broadcast_to(np.arange(len(values))[:, None, None], (*base.shape, 1))
    table = np.concatenate([lags, columns, *([codes] if spec["code"] else [])], axis=2)
    scale = np.array([of["scale"] for of in local])[:, None]
    location = np.array([of["location"] for of in local])[:, None]
    target = (values[:, begin:] - location) / scale - base
    rows = observed[:, begin:] & ~np.isnan(target) & ~np.isnan(lags[..., 0])
    if not rows.any():  # no series has two values
        rows, target = np.ones_like(rows), np.zeros_like(target)
    categorical = [table.shape[2] - 1] if spec["code"] else []
    numbers = Numbers(
        table[rows].astype(np.float32), target[rows], None, "regression", 0, categorical
    )
    own = {name: of for name, of in sampled.items() if name != "relative"}
    if panel.target.size < FEW_CELLS:
        own |= {THREADS[family]: 1}
    return FITS[family](numbers, own, seed), local


def _local(values: Values, number: int) -> dict[str, float]:
    """By what the values of a series are made alike those of others."""
    scale = float(values.std()) if len(values) else 0.0
    location = float(values.mean()) if len(values) else 0.0
    # Of rounding a constant has a deviation too.
    is_constant = scale <= 1e-9 * max(1.0, abs(location))
    return {"location": location, "scale": 1.0 if is_constant else scale, "code": number}
