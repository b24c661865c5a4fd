"""Trials of a forecasting search: what they save, and what a saved model forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ml.automl.forecasting import statistical, trial
from ml.automl.forecasting.families import FAMILIES
from ml.serving.scoring import forecasters
from ml.serving.scoring.forecasters import Ensemble
from tests.automl.conftest import Logged
from tests.automl.forecasting.conftest import SMALL_TREES, job, problem, sales, table

XGBOOST = {"relative": False, "n_estimators": 5, "max_depth": 3}


def run(
    monkeypatch: pytest.MonkeyPatch,
    search: Path,
    number: int,
    sampled: Mapping[str, Any],
    **fields: Any,
) -> tuple[Path, dict[str, float]]:
    """Run one trial of the search in this folder: its model folder and its metrics."""
    logged = Logged()

    @contextmanager
    def tracking() -> Any:
        yield logged

    folder = search / "trials" / str(number)
    words = ["--training-data", str(search / "table"), "--model", str(folder / "model")]
    monkeypatch.setattr(trial, "tracking", tracking)
    monkeypatch.setattr("sys.argv", ["trial", *words, "--predictions", str(folder / "predictions")])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("AUTOML_JOB", json.dumps(job(**fields)))
    monkeypatch.setenv("AZUREML_SWEEP_model", json.dumps(sampled))
    trial.main()
    return folder / "model", logged.values


def test_a_vote_of_trials_is_saved_and_forecasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The saved members forecast as the weighted mean; each trial logs Azure's metrics."""
    table(tmp_path / "table", sales())
    samples = [
        {"family": "naive"},
        {"family": "light_gbm", **SMALL_TREES},
        {"family": "xg_boost_regressor", **XGBOOST},
    ]
    fields = {"country_or_region_for_holidays": "US"}
    trials = [run(monkeypatch, tmp_path, at, of, **fields) for at, of in enumerate(samples)]
    voting = {"family": "voting_ensemble", "members": [1, 2, 0]}
    folder, metrics = run(monkeypatch, tmp_path, 3, voting, **fields)
    azure = {"normalized_root_mean_squared_error", "r2_score", "spearman_correlation"}
    for _, of in trials:
        assert azure | {"mase", "coverage_80", "normalized_mean_absolute_error"} <= {*of}
    worst = max(of["normalized_mean_absolute_error"] for _, of in trials)
    assert metrics["normalized_mean_absolute_error"] < worst
    document = json.loads((folder / "forecaster.json").read_text())
    known = np.full((2, 3, 1), 2.0)
    total = np.zeros((2, 3))
    for member in document["members"]:
        number = int(member.get("file", "member-0").partition("-")[2].partition(".")[0])
        alone = Ensemble(trials[number][0]).forecast([0, 1], known=known)[1][..., 0]
        total += member["weight"] * alone
    times, values = Ensemble(folder).forecast([0, 1], known=known)
    assert np.allclose(values[..., 0], total, atol=1e-9) and len(document["holidays"]) > 10
    assert times[0].astype("datetime64[D]").astype(str).tolist() == [
        *("2024-03-01", "2024-03-02", "2024-03-03")
    ]
    assert (values[..., 1] < values[..., 0]).all() and (values[..., 0] < values[..., 2]).all()
    assert not [*folder.glob("*.pkl")]


def test_the_table_of_forecasts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its columns are those that `ml.automl.forecasting` states, and no step is before a cutoff."""
    table(tmp_path / "table", sales())
    folder, _ = run(monkeypatch, tmp_path, 0, {"family": "seasonal_naive"})
    frame = pd.read_json(folder / "forecasts.json", orient="split", convert_dates=["ds", "cutoff"])
    columns = ["unique_id", "ds", "cutoff", "scale", "y", "yhat", "lo_80", "hi_80"]
    assert [*frame.columns] == columns and {*frame["unique_id"]} == {"a", "b"}
    assert (frame["ds"] > frame["cutoff"]).all() and frame["cutoff"].nunique() == 7


def test_a_short_series_gets_a_naive_forecast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two values of a new shop: it judges nothing, and the leaderboard says so. `drop` drops it."""
    new = sales().tail(2).assign(shop="z", sold=[4.0, 6.0])
    table(tmp_path / "table", pd.concat([sales(), new]))
    folder, _ = run(monkeypatch, tmp_path, 0, {"family": "naive"})
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert {"check": "series", "finding": "1 series have too few values to score"} in facts[
        "guardrails"
    ]
    assert Ensemble(folder).forecast([2])[1][0, :, 0].tolist() == [6.0, 6.0, 6.0]
    dropped = {"short_series_handling_config": "drop"}
    folder, _ = run(monkeypatch, tmp_path, 1, {"family": "naive"}, **dropped)
    assert Ensemble(folder).series == [("a",), ("b",)]


def test_one_late_row_ends_the_search(tmp_path: Path) -> None:
    """A year without values before the last time: the message names the times."""
    late = sales().tail(1).assign(day="2025-03-01")
    folder = table(tmp_path / "table", pd.concat([sales(), late]))
    with pytest.raises(SystemExit, match=r"error\[few-times\].*cutoff of a fold") as stopped:
        trial.prepare(job(), folder)
    assert "reach the last time, 2025-03-01" in str(stopped.value)


def test_newer_values_move_the_forecast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A request may bring what was observed after the training."""
    table(tmp_path / "table", sales())
    folder, _ = run(monkeypatch, tmp_path, 0, {"family": "naive"})
    times, values = Ensemble(folder).forecast([0], [np.array([70.0, 80.0])])
    assert values[0, :, 0].tolist() == [80.0, 80.0, 80.0]
    assert str(times[0, 0])[:10] == "2024-03-03"


@pytest.mark.parametrize("values", [np.full(40, 5.0), np.zeros(40), -np.arange(1.0, 41)])
def test_trees_forecast_odd_series(values: np.ndarray) -> None:
    """Constant, zero and negative ones; a constant stays one."""
    of = problem(sales(series=1, days=40).assign(sold=values))
    sampled = {**SMALL_TREES, "n_estimators": 20}
    fits = trial.fit(of, "light_gbm", sampled, 60)
    assert np.isfinite(fits.forecasts).all()
    assert np.ptp(values) > 0 or np.allclose(fits.forecasts, values[0])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["exponential_smoothing", "theta", "auto_arima"])
@pytest.mark.parametrize("odd", ["constant", "zero", "negative", "gaps", "two"])
def test_statistical_models_forecast_odd_series(family: str, odd: str, tmp_path: Path) -> None:
    """Beside a usual series, each has a finite forecast; a constant stays one."""
    frame = sales(days=40)
    values = {
        "constant": np.full(40, 5.0),
        "zero": np.zeros(40),
        "negative": -(np.arange(1.0, 41) ** 2),
        "gaps": np.where(np.arange(40) % 6 == 3, np.nan, np.arange(40.0)),
        "two": np.where(np.arange(40) > 37, 7.0, np.nan),
    }[odd]
    frame.loc[frame["shop"] == "b", "sold"] = values
    of = problem(frame)
    fits = trial.fit(of, family, {}, 60)
    members = trial._saved(fits, tmp_path)
    trial.write(of, tmp_path, members, fits.forecasts, trial.forecast_table(of, fits.forecasts))
    path = Ensemble(tmp_path).forecast([1])[1][0, :, 0]
    assert np.isfinite(path).all()
    if odd in ("constant", "zero", "two"):
        assert np.allclose(path, values[-1], atol=1e-6)
    if odd == "negative":
        assert (path < 0).all()


@pytest.mark.parametrize("family", ["light_gbm", "xg_boost_regressor"])
def test_trees_end_with_their_budget(family: str) -> None:
    """Of hourly series of a year, whose search would end with this fit: no more rounds are added,
    and the model that serves has as many as the one that was judged.
    """
    times = pd.date_range("2023-01-01", periods=9000, freq="h")
    wave = np.sin(np.arange(9000) * 2 * np.pi / 24) + (times.dayofweek < 5)
    of = problem(
        pd.DataFrame({"day": times.astype(str), "sold": 100 + 20 * wave}),
        time_series_id_column_names=None,
    )
    rounds = []
    for seconds in (0.2, 600):
        sampled = {"relative": True, "n_estimators": 3000 if seconds < 1 else 3}
        fits = trial.fit(of, family, sampled, seconds)
        assert np.isfinite(fits.forecasts).all()
        rounds.append(fits.files.rounds)
    assert 1 <= rounds[0] < 3000 and rounds[1] == 3


def test_trees_forecast_three_centuries() -> None:
    """Years alone, which pandas counts to 2262."""
    times = pd.date_range("1700-01-01", periods=309, freq="YS").astype(str)
    frame = pd.DataFrame({"day": times, "sold": np.arange(309.0) % 11})
    of = problem(frame, time_series_id_column_names=None)
    assert np.isfinite(trial.fit(of, "light_gbm", SMALL_TREES, 60).forecasts).all()


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [({}, 600), ({"seconds": 100}, 20), ({"trial_seconds": 60}, 30), ({"seconds": 9000}, 600)],
)
def test_fits_end_before_their_trial(limits: dict[str, float], seconds: float) -> None:
    """Else a trial that takes all its time would be ended with nothing saved."""
    assert trial.seconds_of(limits) == seconds


def test_every_family_has_a_point_that_leaves_nothing_to_chance() -> None:
    """What a point of the portfolio does not say would be drawn."""
    for name, family in FAMILIES.items():
        assert all({*of} == {*family.space} for of in family.portfolio.values()), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ets", "theta", "arima"])
@pytest.mark.parametrize("season", [1, 7])
def test_saved_parameters_forecast_as_the_library(kind: str, season: int) -> None:
    """Of series with and without a trend and a season, damped ones too."""
    draw, times = np.random.default_rng(0), np.arange(100)
    wave = np.sin(2 * np.pi * times / 7)
    for slope, height in ((0.0, 0.0), (0.3, 0.0), (0.0, 9.0), (0.3, 9.0)):
        values = 50 + slope * times + height * wave + draw.normal(0, 1, 100)
        _, parameters, why = statistical._fit_one(kind, season, [], values, 9)
        assert parameters is not None and why == ""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ANN", "AAN", "ANA", "AAA", "MAM"])
@pytest.mark.parametrize("damped", [False, True])
def test_newer_values_update_the_states_of_exponential_smoothing(model: str, damped: bool) -> None:
    """The states a week earlier and the week's values give the states of today."""
    from statsforecast.models import AutoETS

    draw, times = np.random.default_rng(0), np.arange(100)
    values = 50 + 0.3 * times + 9 * np.sin(2 * np.pi * times / 7) + draw.normal(0, 1, 100)
    damped = damped and model[1] != "N"
    fitted = AutoETS(7, model=model, damped=damped).fit(values).model_
    now = statistical._ets(fitted)
    before = {**now, "states": fitted["states"][-8].tolist()}
    assert np.allclose(
        forecasters.ets(before, values[-7:], 5), forecasters.ets(now, values[:0], 5), atol=1e-6
    )


@pytest.mark.slow
def test_newer_values_update_the_states_of_theta() -> None:
    """As the library's own states of a week earlier do."""
    from statsforecast.models import AutoTheta

    values = 50 + 0.3 * np.arange(60) + np.random.default_rng(0).normal(0, 1, 60)
    for model in ("STM", "DOTM"):
        fitted = AutoTheta(1, model=model).fit(values).model_
        now = statistical._theta(fitted)
        before = {**now, "count": 53, "states": fitted["states"][-8][:4].tolist()}
        assert np.allclose(
            forecasters.theta(before, values[-7:], 5),
            forecasters.theta(now, values[:0], 5),
            atol=1e-6,
        )


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "height"), [(0.0, 0.0), (0.3, 0.0), (0.3, 9.0)])
def test_newer_values_update_the_states_of_arima(slope: float, height: float) -> None:
    """As the library's filter does, without and with differences, a drift and a season."""
    from statsforecast.models import AutoARIMA

    draw, times = np.random.default_rng(0), np.arange(120)
    wave = height * np.sin(2 * np.pi * times / 7)
    values = 50 + slope * times + wave + draw.normal(0, 1, 120)
    fitted = AutoARIMA(season_length=7, approximation=True).fit(values[:-7])
    ours = forecasters.arima(statistical._arima(fitted.model_), values[-7:], 9)
    assert np.allclose(ours, fitted.forward(values, 9)["mean"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("frequency", "season", "steps"), [("h", 24, 500), ("W", 52, 208)])
def test_a_long_season_is_forecast(frequency: str, season: int, steps: int) -> None:
    """By exponential smoothing, though the error of one step of a smooth curve is least without a
    season, and by Theta.
    """
    times, draw = np.arange(steps), np.random.default_rng(0)
    late = draw.normal(0, 0.2, steps).cumsum()  # the peak is at another step of each season
    sold = 100 + 30 * np.sin((times + late) * 2 * np.pi / season)
    days = pd.date_range("2022-01-01", periods=steps, freq=frequency).strftime("%Y-%m-%dT%H:%M")
    of = problem(pd.DataFrame({"day": days, "shop": "a", "sold": sold}), forecast_horizon=season)
    for family in ("exponential_smoothing", "theta"):
        fits = statistical.fit(of.panel, family, [steps - 1], season, 60.0)
        assert of.panel.season == season and fits.notes == () and np.ptp(fits.forecasts) > 30


@pytest.mark.slow
def test_arima_of_hours_takes_two_weeks() -> None:
    """More hours may take twenty times as long to fit, and forecast hardly better."""
    hours, draw = np.arange(500), np.random.default_rng(0)
    values = 100 + 30 * np.sin(hours * 2 * np.pi / 24) + draw.normal(0, 1, 500)
    _, parameters, why = statistical._fit_one("arima", 24, [], values, 24)
    assert parameters is not None and why == "" and parameters["count"] == 14 * 24


@pytest.mark.slow
def test_a_series_that_fails_falls_back_and_says_so() -> None:
    """Too short for a fit, or not fitted in time."""
    frame = pd.concat([sales(), sales().tail(3).assign(shop="z")])
    of = problem(frame)
    cutoffs = of.origins.cutoffs
    fits = statistical.fit(of.panel, "theta", cutoffs, 3, 60)
    assert fits.member["series"][2] is None and fits.member["series"][0] is not None
    assert fits.notes == (
        "1 of 3 series have the seasonal naive forecast (z): fewer than 4 values",
    )
    late = statistical.fit(of.panel, "exponential_smoothing", cutoffs, 3, 0.0)
    naive = statistical.naive(of.panel, "seasonal_naive", cutoffs, 3)
    assert np.array_equal(late.forecasts, naive.forecasts, equal_nan=True)
    assert late.notes[0].startswith("3 of 3 series") and "not fitted within 0 s" in late.notes[0]
