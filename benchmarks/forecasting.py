"""A search of forecasters beside AutoETS, AutoTheta, mlforecast and seasonal naive, in one run.

On `shared/data` where it is there: the last horizon is held out, and before it another one. Ours
fits the portfolio for at most 60 s a table, without columns besides the target, as the peers do.
It also times 1,000 series of 150 points beside statsforecast's cross-validation with the same
models and origins.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ml.automl import ensembles
from ml.automl.forecasting import origins, panel, statistical, trial
from ml.automl.forecasting.families import FAMILIES
from ml.automl.forecasting.settings import Settings
from ml.serving.scoring.forecasters import Forecaster

DATA = Path(os.environ.get("BENCH_DATA", "../shared/data"))
SECONDS, OUTER = 60.0, 2
METRIC = "normalized_mean_absolute_error"
Values = np.ndarray[Any, np.dtype[np.float64]]


def tables() -> Iterator[tuple[str, pd.DataFrame, int, int]]:
    """Name, (unique_id, ds, y), horizon and season of each table that is there."""
    file = DATA / "bike" / "bike-no.csv"
    if file.exists():
        rows = pd.read_csv(file)
        yield "bike", _table("bike", rows["date"], rows["cnt"]), 14, 7
    file = DATA / "oj_sales" / "oj_sales_data.csv"
    if file.exists():
        rows = pd.read_csv(file)
        names = rows["Store"].astype(str) + "_" + rows["Brand"]
        kept = names.isin(names.unique()[:150])
        yield "oj_sales", _table(names, rows["WeekStarting"], rows["Quantity"])[kept], 4, 52
    file = DATA / "nyc_energy" / "nyc_energy_training_clean.csv"
    if file.exists():
        rows = pd.read_csv(file)
        table = _table("nyc", rows["timeStamp"], rows["demand"]).dropna().drop_duplicates("ds")
        yield "nyc_energy", table, 24, 24


def _table(name: Any, times: Any, values: Any) -> pd.DataFrame:
    return pd.DataFrame({"unique_id": name, "ds": pd.to_datetime(times), "y": values.astype(float)})


def _job(horizon: int) -> dict[str, Any]:
    names = {"time_column_name": "ds", "time_series_id_column_names": "unique_id"}
    return {
        **{"target": "y", "metric": METRIC, "seed": 0},
        "forecasting": {**names, "forecast_horizon": horizon},
    }


def ours(rows: pd.DataFrame, horizon: int) -> tuple[Values, str]:
    """(series, horizon, 3) of the vote of the portfolio, and what is in it."""
    settings, until = Settings.of(_job(horizon)), time.monotonic() + SECONDS
    of = panel.of_frame(rows.assign(ds=rows["ds"].astype(str)), settings)
    problem = trial.Problem(settings, METRIC, 0, of, origins.origins(of, settings), [])
    turns = sorted((turn, name) for name, family in FAMILIES.items() for turn in family.portfolio)
    fits = []
    for turn, name in turns:
        left = until - time.monotonic()
        if left > 0:
            sampled = FAMILIES[name].portfolio[turn]
            fits.append((name, trial.fit(problem, name, sampled, min(left, 0.4 * SECONDS))))
    weights = ensembles.choose([problem.answers(f.forecasts) for _, f in fits], problem.value)
    total = np.zeros((len(of.ids), horizon))
    paths = sum(fits[at][1].forecasts * weight for at, weight in weights.items())
    with tempfile.TemporaryDirectory() as folder:
        for at, weight in weights.items():
            place = Path(folder) / str(at)
            members = trial._saved(fits[at][1], place)
            table = trial.forecast_table(problem, fits[at][1].forecasts)
            trial.write(problem, place, members, fits[at][1].forecasts, table)
            total += weight * Forecaster(place).forecast(range(len(of.ids)))[1][..., 0]
    widths = origins.widths(of, problem.origins, np.asarray(paths), len(of.grid) - 1)
    spread = widths * origins.scale(of.target, of.season)[:, None]
    said = ", ".join(f"{fits[at][0]} {weight:.2f}" for at, weight in weights.items())
    return np.stack([total, total - spread, total + spread], axis=2), said


def _statsforecast(model: str) -> Callable[..., Values]:
    def run(rows: pd.DataFrame, horizon: int, season: int, frequency: str) -> Values:
        from statsforecast import StatsForecast, models

        season = season if season <= 24 or model == "SeasonalNaive" else 1
        # Hourly AutoETS of six years does not end in minutes: the last 6,000 values.
        rows = rows.groupby("unique_id").tail(6_000)
        of = getattr(models, model)(season_length=season)
        fallback = models.SeasonalNaive(season_length=season)
        engine = StatsForecast([of], freq=frequency, fallback_model=fallback)
        forecasts = engine.forecast(df=rows, h=horizon)
        assert isinstance(forecasts, pd.DataFrame)
        return _matrix(forecasts, horizon)

    return run


def _mlforecast(rows: pd.DataFrame, horizon: int, season: int, frequency: str) -> Values:
    from lightgbm import LGBMRegressor
    from mlforecast import MLForecast
    from mlforecast.lag_transforms import RollingMean
    from mlforecast.target_transforms import LocalStandardScaler

    lags = sorted({1, 2, 3, 4, 7, season, season + 1} | ({168} if season == 24 else set()))
    model = LGBMRegressor(n_estimators=300, learning_rate=0.05, num_leaves=31, verbosity=-1)
    dates = ["month", "dayofweek", *(["hour"] if season == 24 else [])]
    engine = MLForecast(
        {"lgb": model},
        freq=frequency,
        lags=lags,
        lag_transforms={1: [RollingMean(4), RollingMean(season)]},
        date_features=dates,
        target_transforms=[LocalStandardScaler()],
    )
    engine.fit(rows, static_features=[])
    return _matrix(engine.predict(horizon), horizon)


def _matrix(forecasts: pd.DataFrame, horizon: int) -> Values:
    ordered = forecasts.sort_values(["unique_id", "ds"])
    return ordered.iloc[:, -1].to_numpy(np.float64).reshape(-1, horizon)


PEERS: dict[str, Callable[..., Values]] = {
    "seasonal naive": _statsforecast("SeasonalNaive"),
    "AutoETS": _statsforecast("AutoETS"),
    "AutoTheta": _statsforecast("AutoTheta"),
    "mlforecast": _mlforecast,
}


def _measure(rows: pd.DataFrame, horizon: int, season: int) -> dict[str, list[Values]]:
    """The scaled errors (series, horizon) of each way at each outer origin, and our coverage."""
    wide = rows.pivot_table(index="ds", columns="unique_id", values="y").sort_index()
    grid = panel.of_frame(rows.assign(ds=rows["ds"].astype(str)), Settings.of(_job(horizon))).grid
    wide = wide.reindex(grid)[sorted(wide.columns)]
    # The peers take series without gaps, which end together.
    kept = wide.columns[
        wide.tail(horizon * (OUTER + 1)).notna().all() & wide.iloc[: 2 * season].notna().any()
    ]
    wide = wide[kept].ffill().bfill()
    result: dict[str, list[Values]] = {}
    for outer in range(OUTER, 0, -1):
        end = len(wide) - outer * horizon
        actual = wide.iloc[end : end + horizon].to_numpy().T
        history = (
            wide.iloc[:end]
            .rename_axis("ds")
            .reset_index()
            .melt("ds", var_name="unique_id", value_name="y")
        )
        history["unique_id"] = history["unique_id"].astype(str)
        history = history[["unique_id", "ds", "y"]]
        scale = origins.scale(wide.iloc[:end].to_numpy().T, season)[:, None]
        begun = time.monotonic()
        values, said = ours(history, horizon)
        print(f"  ours: {time.monotonic() - begun:.0f} s, {said}", flush=True)
        result.setdefault("ours", []).append(np.abs(actual - values[..., 0]) / scale)
        inside = (values[..., 1] <= actual) & (actual <= values[..., 2])
        result.setdefault("coverage", []).append(inside.astype(np.float64))
        for name, run in PEERS.items():
            begun = time.monotonic()
            forecast = run(history, horizon, season, grid.freqstr)
            result.setdefault(name, []).append(np.abs(actual - forecast) / scale)
            print(f"  {name}: {time.monotonic() - begun:.0f} s", flush=True)
    return result


def _speed(series: int) -> float:
    """The time of our two statistical families over that of statsforecast with the same models."""
    from statsforecast import StatsForecast, models

    draw, times = np.random.default_rng(0), pd.date_range("2020-01-01", periods=150)
    wave = 5 * np.sin(2 * np.pi * np.arange(150) / 7)
    rows = pd.DataFrame(
        {
            "unique_id": np.repeat([f"s{number:04}" for number in range(series)], 150),
            "ds": np.tile(times, series),
            "y": (20 + wave + draw.normal(0, 2, (series, 150))).ravel(),
        }
    )
    settings = Settings.of(_job(7))
    of = panel.of_frame(rows.assign(ds=rows["ds"].astype(str)), settings)
    rolling = origins.origins(of, settings)
    begun = time.monotonic()
    for family in statistical.KINDS:
        assert not statistical.fit(of, family, rolling.cutoffs, 7, 3600).notes
    own = time.monotonic() - begun
    begun = time.monotonic()
    engine = StatsForecast([models.AutoETS(7), models.AutoTheta(7)], freq="D", n_jobs=-1)
    engine.cross_validation(df=rows, h=7, step_size=7, n_windows=len(rolling.cutoffs), refit=False)
    engine.forecast(df=rows, h=7)
    peer = time.monotonic() - begun
    print(f"{series} series of 150: ours {own:.1f} s, statsforecast {peer:.1f} s, {own / peer:.2f}")
    return own / peer


def main(quick: bool) -> float:
    """Our mean scaled error over that of the best peer, of the worst table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ratios, covered = [], []
    for name, rows, horizon, season in tables():
        print(f"{name}: {rows['unique_id'].nunique()} series, horizon {horizon}", flush=True)
        result = _measure(rows, horizon, season)
        covered.append(np.concatenate([of.ravel() for of in result.pop("coverage")]))
        mase = {way: float(np.mean([of.mean() for of in errors])) for way, errors in result.items()}
        best = min(of for way, of in mase.items() if way != "ours")
        ratios.append(mase["ours"] / best)
        shown = ", ".join(f"{way} {of:.3f}" for way, of in mase.items())
        print(
            f"  MASE: {shown}; ratio {ratios[-1]:.3f}; coverage {covered[-1].mean():.3f}",
            flush=True,
        )
    if covered:
        print(f"pooled coverage of 80 % intervals: {np.concatenate(covered).mean():.3f}")
    print(json.dumps({"speed": round(_speed(100 if quick else 1_000), 3)}))
    return max(ratios, default=float("nan"))
