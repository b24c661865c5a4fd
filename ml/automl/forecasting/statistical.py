"""Fit a forecaster to each series: naive ones and models of statsforecast."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any

import numpy as np

from ml.automl.forecasting.panel import Panel
from ml.serving.scoring import forecasters
from ml.serving.scoring.forecasters import Parameters, Values
from ml.toolkit.training.boosting import threads

# Family name → `kind` of its entry in forecaster.json.
FORECASTER_OF_FAMILY = {"exponential_smoothing": "ets", "theta": "theta", "auto_arima": "arima"}
# AutoARIMA approximates the model selection for longer series and seasons, as R's auto.arima does.
EXACT_VALUES, EXACT_SEASON = 150, 12
# Maximum values of a series that are fitted, the latest ones: fit time grows faster than linearly,
# and older values hardly affect the forecast.
MOST_VALUES = 1_000
# For seasons longer than EXACT_SEASON, AutoARIMA is fitted to this many latest seasons. With the
# hourly data of nyc_energy, a fit took at most 1.5 s instead of 28 s with MOST_VALUES, and had
# about the same error.
MOST_SEASONS = 14
# Minimum values that are fitted, and maximum season by kind, since fit time grows with the season.
FEWEST_VALUES, LONGEST_SEASON = 4, {"ets": 60, "theta": 366, "arima": 24}
# With longer seasons and at least this many of them, exponential smoothing always has a seasonal
# component. Selection by one-step error would drop it for hourly data, as in nyc_energy, so that
# forecasts would be a line.
FEWEST_SEASONS = 3
# Maximum relative difference between forecasts by the saved parameters and by the library.
TOLERANCE = 1e-6
_POLL_S = 0.1


@dataclass(frozen=True)
class Fits:
    """Forecasts at several cutoffs, and the model fitted to all values."""

    forecasts: Values  # (origins, series, horizon)
    member: dict[str, Any]  # the model's entry in forecaster.json, with fitted parameters
    files: Any = None  # fitted trees, which have a file of their own
    notes: tuple[str, ...] = ()


def naive(panel: Panel, family: str, cutoffs: Sequence[int], horizon: int) -> Fits:
    """Return naive forecasts: the last value (`naive`) or the value one season earlier."""
    season = 1 if family == "naive" else panel.season
    values = panel.filled
    forecasts = [
        forecasters.seasonal_naive(values[:, : cutoff + 1], season, horizon) for cutoff in cutoffs
    ]
    return Fits(np.array(forecasts), {"kind": family, "season": season})


def fit(panel: Panel, family: str, cutoffs: Sequence[int], horizon: int, seconds: float) -> Fits:
    """Fit a model to each series twice: until the first usable cutoff, and to all values.

    At later cutoffs only the states are updated. A series whose fit fails or exceeds `seconds` gets
    the seasonal naive forecast, and a note.
    """
    kind = FORECASTER_OF_FAMILY[family]
    season = panel.season if panel.season <= LONGEST_SEASON[kind] else 1
    fallback = naive(panel, "seasonal_naive", cutoffs, horizon)
    values, observed = panel.filled, ~np.isnan(panel.target)
    first, last = observed.argmax(axis=1), panel.last
    work = [
        (
            number,
            [values[number, first[number] : cutoff + 1] for cutoff in cutoffs],
            values[number, first[number] : last[number] + 1],
        )
        for number in range(len(values))
    ]
    _load(kind, season, 0)  # import once, before forking the processes
    series: list[Parameters | None] = [None] * len(values)
    forecasts, whys = fallback.forecasts, dict[str, list[int]]()
    answered = set()
    for number, path, parameters, why in _in_processes(kind, season, work, horizon, seconds):
        answered.add(number)
        series[number] = parameters
        if why:
            whys.setdefault(why, []).append(number)
        for origin, forecast in enumerate(path):
            if forecast is not None:
                forecasts[origin, number] = forecast
    if late := sorted({*range(len(values))} - answered):
        whys[f"not fitted within {seconds:.0f} s"] = late
    names = panel.names_of_series
    notes = [
        f"{len(value)} of {len(names)} series have the seasonal naive forecast "
        f"({', '.join(names[index] for index in value[:3])}{' …' if len(value) > 3 else ''}): {why}"
        for why, value in whys.items()
    ]
    member = {"kind": kind, "season": fallback.member["season"], "series": series}
    return Fits(forecasts, member, notes=tuple(notes))


_Answer = tuple[int, list[Values | None], Parameters | None, str]


def _in_processes(
    kind: str, season: int, work: Sequence[Any], horizon: int, seconds: float
) -> Iterator[_Answer]:
    """Fit the series in parallel processes until `seconds` are over; yield results in any order."""
    until, context = time.monotonic() + seconds, get_context("fork")
    readers: list[Any] = []
    count, processes = min(threads(), len(work)), []
    for part in range(count):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_work, args=(writer, kind, season, work[part::count], horizon), daemon=True
        )
        process.start()
        writer.close()
        readers.append(reader)
        processes.append(process)
    try:
        while readers and (remaining := until - time.monotonic()) > 0:
            waiting: Any = connection.wait(readers, min(remaining, _POLL_S))
            for ready in waiting:
                try:
                    yield ready.recv()
                except EOFError:
                    readers.remove(ready)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(writer: Any, kind: str, season: int, work: Sequence[Any], horizon: int) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for number, histories, values in work:
            writer.send((number, *_fit_one(kind, season, histories, values, horizon)))
    writer.close()


def _fit_one(
    kind: str, season: int, histories: Sequence[Values], values: Values, horizon: int
) -> tuple[list[Values | None], Parameters | None, str]:
    """Return a series' forecasts at each origin, its parameters or None, and why None.

    `histories` has the values until each origin, `values` all values.
    """
    model, path = None, list[Values | None]()
    is_cut = kind == "arima" and season > EXACT_SEASON
    most = min(MOST_VALUES, MOST_SEASONS * season) if is_cut else MOST_VALUES
    try:
        for history in histories:
            ahead, history = None, history[-most:]
            if len(history) >= FEWEST_VALUES:
                if model is None:
                    model = _load(kind, season, len(history)).fit(history)
                    ahead = model.predict(horizon)["mean"]
                else:
                    ahead = model.forward(history, horizon)["mean"]
                ahead = None if not np.isfinite(ahead).all() else np.asarray(ahead, np.float64)
            path.append(ahead)
        if len(values) < FEWEST_VALUES:
            return path, None, f"fewer than {FEWEST_VALUES} values"
        values = values[-most:]
        model = _load(kind, season, len(values)).fit(values)
        parameters = _DESCRIBE[kind](model.model_)
        original = np.asarray(model.predict(horizon)["mean"], np.float64)
        served = forecasters.FORECASTERS[kind](parameters, values[:0], horizon)
        deviation = np.abs(served - original).max() / max(1.0, float(np.abs(original).max()))
        if not deviation <= TOLERANCE:
            return path, None, f"the saved parameters' forecast is off by {deviation:.1g}"
        return path, parameters, ""
    except Exception as error:  # the library's models raise various exceptions
        path += [None] * (len(histories) - len(path))
        return path, None, f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def _load(kind: str, season: int, count: int) -> Any:
    """Return an unfitted model of statsforecast for a series of `count` values.

    The first call imports statsforecast, which takes seconds.
    """
    from statsforecast import models

    if kind == "arima":
        is_long = count > EXACT_VALUES or season > EXACT_SEASON
        return models.AutoARIMA(season_length=season, approximation=is_long)
    if kind == "theta":
        return models.AutoTheta(season_length=season)
    if season <= EXACT_SEASON:
        return models.AutoETS(season_length=season)
    if count < FEWEST_SEASONS * season:
        return models.AutoETS(season_length=1)
    return models.AutoETS(season_length=season, model="ZZA")


def _ets(model: Any) -> Parameters:
    """Return the parameters and the last states of a fitted exponential smoothing."""
    _, trend, season, damped = model["components"]
    alpha, beta, gamma, phi = (float(number) for number in model["par"][:4])
    return {
        **{"trend": trend, "season": season, "alpha": alpha},
        **{"beta": 0.0 if trend == "N" else beta, "gamma": 0.0 if season == "N" else gamma},
        "phi": 1.0 if damped == "N" else phi,
        "states": [float(number) for number in model["states"][-1]],
    }


def _theta(model: Any) -> Parameters:
    """Return parameters, last states and next seasonal components of a fitted Theta model."""
    is_seasonal = bool(model.get("decompose", False))
    seasonal = model["seas_forecast"]["mean"] if is_seasonal else ()
    return {
        **{"alpha": float(model["par"]["alpha"]), "theta": float(model["par"]["theta"])},
        **{"count": int(model["n"]), "dynamic": model["modeltype"] in ("DSTM", "DOTM")},
        "states": [float(number) for number in model["states"][-1][:4]],
        "seasonal": [float(number) for number in seasonal],
        "multiplicative": is_seasonal and model["decomposition_type"] == "multiplicative",
    }


def _arima(model: Any) -> Parameters:
    """Return the parameters of a fitted ARIMA model, and its states after the last value."""
    state, coefficients = model["model"], model["coef"]
    covariance, observed = state["Pn"], state["Z"]
    gain = covariance @ observed / (state["h"] + observed @ covariance @ observed)
    order = len(state["a"]) - len(state["delta"])
    return {
        "ar": [*map(float, state["phi"]), *[0.0] * (order - len(state["phi"]))],
        "delta": [*map(float, state["delta"])],
        "gain": gain.tolist(),
        "states": [*map(float, state["a"])],
        "count": len(model["x"]),
        "mean": float(coefficients.get("intercept", 0.0)),
        "drift": float(coefficients.get("drift", 0.0)),
    }


_DESCRIBE = {"ets": _ets, "theta": _theta, "arima": _arima}
