"""Compare AutoML forecasting with seasonal naive, AutoETS, AutoTheta, mlforecast and FLAML.

It uses the tables that exist in `shared/data`. At each outer origin, all forecast the next horizon
from earlier values of the target only. Ours, mlforecast (AutoMLForecast with LightGBM) and FLAML
(in `.venv/peers`) fit for `--seconds` per table and origin, without their imports. The error is the
MASE; its intervals resample series, or origins if there is one series. It also compares the time
for 1,000 series of 150 points with statsforecast's cross-validation of the same models.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ml.automl.forecasting import boosted, origins, panel, statistical, trial
from ml.automl.forecasting.families import FAMILIES
from ml.automl.forecasting.settings import Settings
from ml.backends.local.automl_sweep import _branch
from ml.core.errors import Place
from ml.serving.scoring.forecasters import Ensemble
from ml.specs.plan.plans import Dimension
from ml.sweeps.sources import choose, draw, stream_of

DATA = Path(os.environ.get("BENCH_DATA", "../shared/data"))
TABLES = ("bike", "oj_sales", "nyc_energy")
# Number of outer origins for a table of one series, and of many.
OUTER_ONE, OUTER_MANY = 6, 2
METRIC = "normalized_mean_absolute_error"
PEERS_PYTHON = Path(__file__).parents[1] / ".venv/peers/bin/python"
# Maximum values that peers fit, the latest ones: AutoETS takes too long for six years of hours.
MOST_VALUES = 6_000
# Maximum series for FLAML, which needs a fit of a second or more for each.
MOST_FLAML = 10
Values = np.ndarray[Any, np.dtype[np.float64]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="for each search: 60")
    parser.add_argument("--tables", default=",".join(TABLES), help="names, with commas")
    parser.add_argument("--origins", type=int, default=OUTER_ONE, help="of tables of one series")
    parser.add_argument("--speed", type=int, default=1_000, help="series that are timed")


def _tables() -> Iterator[tuple[str, pd.DataFrame, int, int]]:
    """Yield name, rows (unique_id, ds, y), horizon and season of each table that exists."""
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


def _trials() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (family, settings): those of the portfolio, then endless random ones of the trees."""
    turns = [
        (order, name, family.portfolio[order])
        for name, family in FAMILIES.items()
        for order in family.portfolio
    ]
    for _, name, settings in sorted(turns, key=lambda turn: turn[:2]):
        yield name, dict(settings)
    place, stream = Place("search.yml", 1), stream_of(0)
    trees = [_branch(name, FAMILIES[name], "forecasting", place) for name in boosted.FITS]
    space = {"model": Dimension("model", "choice", tuple(trees), place)}
    while True:
        drawn: Any = draw(space, lambda dimension: choose(dimension, stream)).values["model"]
        sampled = dict(drawn)
        yield str(sampled.pop("family")), sampled


def ours(rows: pd.DataFrame, horizon: int, seconds: float) -> tuple[Values, str]:
    """Run our search; return its forecasts, and a text about the ensemble's members.

    The forecasts are (series, horizon, 3): value, lower and upper end of the interval.
    """
    settings, until = Settings.parse(_job(horizon)), time.monotonic() + seconds
    data = panel.of_frame(rows.assign(ds=rows["ds"].astype(str)), settings)
    problem = trial.ForecastProblem(settings, METRIC, 0, data, origins.origins(data, settings), [])
    fits = list[tuple[str, statistical.Fits]]()
    for name, sampled in _trials():
        if (left := until - time.monotonic()) <= 0:
            break
        budget = min(left, trial.MOST_OF_TIME * seconds)
        fits.append((name, trial.fit(problem, name, sampled, budget)))
    vote, paths = trial.combine(
        problem, [name for name, _ in fits], [fit.forecasts for _, fit in fits]
    )
    total = np.zeros((len(data.ids), horizon))
    with tempfile.TemporaryDirectory() as folder:
        for index, weight in vote.items():
            place = Path(folder) / str(index)
            members = trial._saved(fits[index][1], place)
            table = trial.forecast_table(problem, fits[index][1].forecasts)
            trial.write(problem, place, members, fits[index][1].forecasts, table)
            total += weight * Ensemble(place).forecast(range(len(data.ids)))[1][..., 0]
    widths = origins.widths(data, problem.origins, paths, len(data.grid) - 1)
    spread = widths * origins.scale(data.target, data.season)[:, None]
    said = ", ".join(f"{fits[index][0]} {weight:.2f}" for index, weight in vote.items())
    said = f"{len(fits)} trials, {said}"
    return np.stack([total, total - spread, total + spread], axis=2), said


def _statsforecast(model: str) -> Callable[..., Values]:
    def run(
        rows: pd.DataFrame, horizon: int, season: int, frequency: str, seconds: float
    ) -> Values:
        from statsforecast import StatsForecast, models

        season = season if season <= 24 or model == "SeasonalNaive" else 1
        rows = rows.groupby("unique_id").tail(MOST_VALUES)
        forecaster = getattr(models, model)(season_length=season)
        fallback = models.SeasonalNaive(season_length=season)
        engine = StatsForecast([forecaster], freq=frequency, fallback_model=fallback)
        forecasts = engine.forecast(df=rows, h=horizon)
        assert isinstance(forecasts, pd.DataFrame)
        return _matrix(forecasts, horizon)

    return run


def _mlforecast(
    rows: pd.DataFrame, horizon: int, season: int, frequency: str, seconds: float
) -> Values:
    """Return the forecasts of AutoMLForecast, which tunes lags, transforms and LightGBM."""
    import optuna
    from mlforecast.auto import AutoLightGBM, AutoMLForecast

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    engine = AutoMLForecast({"lgb": AutoLightGBM()}, freq=frequency, season_length=season)
    engine.fit(
        rows.groupby("unique_id").tail(MOST_VALUES),
        n_windows=3,
        h=horizon,
        num_samples=100,
        study_kwargs={"sampler": optuna.samplers.TPESampler(seed=0)},
        optimize_kwargs={"timeout": seconds},
    )
    forecasts = engine.predict(horizon)
    assert isinstance(forecasts, pd.DataFrame)
    return _matrix(forecasts, horizon)


def _flaml(rows: pd.DataFrame, horizon: int, season: int, frequency: str, seconds: float) -> Values:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rows.parquet", Path(folder) / "forecasts.parquet"
        rows.groupby("unique_id").tail(MOST_VALUES).to_parquet(source)
        script = Path(__file__).with_name("forecasting_peers.py")
        words = [str(source), str(horizon), str(seconds), str(target)]
        subprocess.run([PEERS_PYTHON, script, *words], check=True, capture_output=True)
        return _matrix(pd.read_parquet(target), horizon)


def _matrix(forecasts: pd.DataFrame, horizon: int) -> Values:
    ordered = forecasts.sort_values(["unique_id", "ds"])
    return ordered.iloc[:, -1].to_numpy(np.float64).reshape(-1, horizon)


PEERS: dict[str, Callable[..., Values]] = {
    "seasonal naive": _statsforecast("SeasonalNaive"),
    "AutoETS": _statsforecast("AutoETS"),
    "AutoTheta": _statsforecast("AutoTheta"),
    "mlforecast": _mlforecast,
    "FLAML": _flaml,
}


def _measure(
    rows: pd.DataFrame, horizon: int, season: int, outer: int, seconds: float
) -> dict[str, Values]:
    """Return each method's scaled errors (origins, series), and our intervals' coverage."""
    wide = rows.pivot_table(index="ds", columns="unique_id", values="y").sort_index()
    grid = panel.of_frame(
        rows.assign(ds=rows["ds"].astype(str)), Settings.parse(_job(horizon))
    ).grid
    wide = wide.reindex(grid)[sorted(wide.columns)]
    # The peers need series without gaps that end at the same time.
    kept = wide.columns[
        wide.tail(horizon * (outer + 1)).notna().all() & wide.iloc[: 2 * season].notna().any()
    ]
    wide = wide[kept].ffill().bfill()
    result: dict[str, list[Values]] = {}
    for number in range(outer, 0, -1):
        end = len(wide) - number * horizon
        actual = wide.iloc[end : end + horizon].to_numpy().T
        history = wide.iloc[:end].rename_axis("ds").reset_index()
        history = history.melt("ds", var_name="unique_id", value_name="y")
        history["unique_id"] = history["unique_id"].astype(str)
        history = history[["unique_id", "ds", "y"]]
        scale = origins.scale(wide.iloc[:end].to_numpy().T, season)[:, None]
        begun = time.monotonic()
        values, said = ours(history, horizon, seconds)
        print(f"  ours: {time.monotonic() - begun:.0f} s, {said}", flush=True)
        result.setdefault("ours", []).append(np.abs(actual - values[..., 0]) / scale)
        inside = (values[..., 1] <= actual) & (actual <= values[..., 2])
        result.setdefault("coverage", []).append(inside.astype(np.float64))
        taken = []
        for name, run in PEERS.items():
            if name == "FLAML" and len(kept) > MOST_FLAML:
                continue
            begun = time.monotonic()
            forecast = run(history, horizon, season, grid.freqstr, seconds)
            result.setdefault(name, []).append(np.abs(actual - forecast) / scale)
            taken.append(f"{name} {time.monotonic() - begun:.0f} s")
        print(f"  {', '.join(taken)}", flush=True)
    return {name: np.array(errors).mean(axis=2) for name, errors in result.items()}


def _against(errors: Values, others: Values) -> str:
    """Return, as text, the ratio of two mean errors (origins, series) and its 95 % interval."""
    axis = 0 if errors.shape[1] > 1 else 1
    pairs = np.stack([errors.mean(axis=axis), others.mean(axis=axis)])
    draws = np.random.default_rng(0).integers(0, pairs.shape[1], (2_000, pairs.shape[1]))
    drawn = pairs[:, draws].mean(axis=2)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return f"{errors.mean() / others.mean():.3f} ({low:.3f} to {high:.3f})"


def _speed(series: int) -> float:
    """Return the time of two statistical families divided by statsforecast's for these models."""
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
    settings = Settings.parse(_job(7))
    data = panel.of_frame(rows.assign(ds=rows["ds"].astype(str)), settings)
    rolling = origins.origins(data, settings)
    begun = time.monotonic()
    for family in ("exponential_smoothing", "theta"):
        assert not statistical.fit(data, family, rolling.cutoffs, 7, 3600).notes
    mine = time.monotonic() - begun
    begun = time.monotonic()
    engine = StatsForecast([models.AutoETS(7), models.AutoTheta(7)], freq="D", n_jobs=-1)
    engine.cross_validation(df=rows, h=7, step_size=7, n_windows=len(rolling.cutoffs), refit=False)
    engine.forecast(df=rows, h=7)
    peer = time.monotonic() - begun
    print(
        f"{series} series of 150: ours {mine:.1f} s, statsforecast {peer:.1f} s, {mine / peer:.2f}"
    )
    return mine / peer


def main(
    quick: bool,
    seconds: float = 60.0,
    tables: str = ",".join(TABLES),
    origins: int = OUTER_ONE,
    speed: int = 1_000,
) -> float:
    """Print the comparison; return our MASE over the best peer's, for the worst table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ratios, covered = [], []
    for name, rows, horizon, season in _tables():
        if name not in tables.split(","):
            continue
        count = rows["unique_id"].nunique()
        outer = OUTER_MANY if count > 1 or quick else origins
        print(f"{name}: {count} series, horizon {horizon}, {outer} origins", flush=True)
        result = _measure(rows, horizon, season, outer, seconds)
        covered.append(result.pop("coverage").ravel())
        mase = {way: float(errors.mean()) for way, errors in result.items()}
        best = min(mase.keys() - {"ours", "seasonal naive"}, key=mase.__getitem__)
        ratios.append(mase["ours"] / mase[best])
        print(f"  MASE: {', '.join(f'{way} {error:.3f}' for way, error in mase.items())}")
        for peer in ("seasonal naive", best):
            print(f"  ours over {peer}: {_against(result['ours'], result[peer])}")
        print(f"  coverage of 80 % intervals: {covered[-1].mean():.3f}", flush=True)
    if covered:
        print(f"pooled coverage of 80 % intervals: {np.concatenate(covered).mean():.3f}")
    if speed:
        print(json.dumps({"speed": round(_speed(min(speed, 100) if quick else speed), 3)}))
    return max(ratios, default=float("nan"))
