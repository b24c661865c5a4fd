"""Validate forecasts at rolling origins: each uses only the values until its cutoff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.automl.forecasting.panel import Panel
from ml.automl.forecasting.settings import Settings
from ml.serving.scoring.forecasters import LEVEL, Values, filled
from ml.toolkit.automl.cells import stop

# Number of scored origins, and of earlier ones that only calibrate intervals: for MANY_SERIES
# series or more, and for fewer series.
MANY_SERIES, SCORED, CALIBRATING, SCORED_FEW, CALIBRATING_FEW = 10, 3, 2, 12, 3
# Minimum number of scored origins with few series; more are used only if half of the times remain
# for training.
FEWEST_SCORED = 5
# Minimum errors for a quantile; a step with fewer also uses the errors of neighbouring steps.
FEWEST_ERRORS = 40


@dataclass(frozen=True)
class Origins:
    """The forecast origins of a search."""

    cutoffs: Sequence[int]  # grid indices of the last known values, ascending
    calibrating: int  # number of first cutoffs that are not scored but calibrate intervals
    horizon: int  # steps

    @property
    def scored(self) -> Sequence[int]:
        """Return the indices of the scored origins in `cutoffs`."""
        return range(self.calibrating, len(self.cutoffs))


def origins(panel: Panel, settings: Settings) -> Origins:
    """Return the origins of a search; end the program if the longest series is too short."""
    horizon, end = settings.horizon, len(panel.grid) - 1 - settings.horizon
    step = settings.step or horizon
    few = len(panel.ids) < MANY_SERIES
    count = settings.folds or (SCORED_FEW if few else SCORED)
    calibrating = CALIBRATING_FEW if few else CALIBRATING
    first = int((~np.isnan(panel.target)).argmax(axis=1).min())
    fewest = first + max(1, min(2 * panel.season, end // 2))

    def first_cutoff(count: int, calibrating: int) -> int:
        return end - (count - 1) * step - calibrating * horizon

    while not settings.folds and count > FEWEST_SCORED:
        if first_cutoff(count, calibrating) >= first + (end - first) // 2:
            break
        count -= 1
    while calibrating and first_cutoff(count, calibrating) < fewest:
        calibrating -= 1
    while not settings.folds and count > 1 and first_cutoff(count, calibrating) < fewest:
        count -= 1
    if first_cutoff(count, calibrating) < first + 1:
        needed = 2 + (count - 1) * step + horizon
        message = f"`forecast_horizon: {horizon}`"
        message += f" with `n_cross_validations: {count}`" if settings.folds else ""
        message += f" needs {needed} times, and the longest series has {len(panel.grid)}"
        stop("few-times", message, f"{needed} times or more", "add rows, or lower the setting")
    scored = [end - number * step for number in range(count)][::-1]
    calibrated = [scored[0] - number * horizon for number in range(calibrating, 0, -1)]
    return Origins([*calibrated, *scored], calibrating, horizon)


def scored_mask(panel: Panel, origins: Origins) -> NDArray[np.bool_]:
    """Return a mask of the values that are scored (origins, series, horizon).

    A value is scored if it was observed, and its series has two values until the cutoff, one of
    them in the last `horizon` steps.
    """
    observed = ~np.isnan(panel.target)
    masks = []
    for cutoff in origins.cutoffs:
        before = observed[:, : cutoff + 1]
        is_known = (before.sum(axis=1) > 1) & before[:, -origins.horizon :].any(axis=1)
        masks.append(observed[:, cutoff + 1 : cutoff + 1 + origins.horizon] & is_known[:, None])
    return np.array(masks)


def actual(panel: Panel, origins: Origins) -> Values:
    """Return the values after each cutoff (origins, series, horizon); NaN if not observed."""
    steps = origins.horizon
    return np.array([panel.target[:, cut + 1 : cut + 1 + steps] for cut in origins.cutoffs])


def scale(target: Values, season: int) -> Values:
    """Return the scale of each series (series,), the divisor of its errors.

    It is the mean absolute seasonal difference (Hyndman and Koehler 2006). If that is 0 or missing,
    use the mean absolute first difference, then the mean absolute value, then 1.
    """
    values = filled(target)
    result = np.zeros(len(values))
    for lag in (season, 1, 0):
        distances = np.abs(values[:, lag:] - values[:, : values.shape[1] - lag] if lag else values)
        count = (~np.isnan(distances)).sum(axis=1)
        means = np.nansum(distances, axis=1) / np.maximum(1, count)
        result = np.where(result > 0, result, means)
    return np.where(result > 0, result, 1.0)


def widths(panel: Panel, origins: Origins, forecasts: Values, cutoff: int) -> Values:
    """Return half the width of the intervals at a cutoff (horizon,), in units of `scale`.

    It is a conformal quantile of the absolute errors at origins whose horizon ended until the
    cutoff. Without such errors, it uses those of the seasonal naive forecast in the history.
    """
    errors = []
    mask, values = scored_mask(panel, origins), actual(panel, origins)
    for number, origin in enumerate(origins.cutoffs):
        if origin + origins.horizon <= cutoff:
            scales = scale(panel.target[:, : origin + 1], panel.season)[:, None]
            error = np.abs(values[number] - forecasts[number]) / scales
            errors.append(np.where(mask[number], error, np.nan))
    table = np.concatenate(errors) if errors else np.full((1, origins.horizon), np.nan)
    if np.isnan(table).all():
        history = panel.target[:, : cutoff + 1]
        scales = scale(history, panel.season)[:, None]
        naive = [
            math.ceil((step + 1) / panel.season) * panel.season for step in range(origins.horizon)
        ]
        columns = [
            (np.abs(history[:, lag:] - history[:, :-lag]) / scales).ravel()
            if lag < history.shape[1]
            else history[:0, 0]
            for lag in naive
        ]
    else:
        columns = [table[:, step] for step in range(origins.horizon)]
    columns = [column[~np.isnan(column)] for column in columns]
    return np.array([_quantile(columns, step) for step in range(origins.horizon)])


def _quantile(columns: Sequence[Values], step: int) -> float:
    """Return the conformal quantile of a step's errors; use neighbouring steps if too few."""
    for around in range(len(columns)):
        near = np.concatenate(columns[max(0, step - around) : step + around + 1])
        if len(near) >= FEWEST_ERRORS:
            break
    else:
        near = np.concatenate(columns)
    if not len(near):
        return 1.0
    rank = min(len(near), math.ceil(LEVEL * (len(near) + 1)))
    return float(np.partition(near, rank - 1)[rank - 1])
