"""Odd series get a clear answer, from an AutoML job and from `ml new --horizon`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ml.automl.forecasting import origins, trial
from ml.core.errors import UserError
from ml.repository.scaffold.profile import Choices
from ml.repository.scaffold.series import SeriesChoices, series_profile
from tests.automl.forecasting.conftest import SMALL_TREES, problem, sales

Change = Callable[[pd.DataFrame], pd.DataFrame]
SERIES, HORIZON = 20, 3


def _zones(frame: pd.DataFrame) -> pd.DataFrame:
    """Half of the shops are an hour further east."""
    zones = np.where(frame["shop"] < "k", "T00:00:00+02:00", "T00:00:00+01:00")
    return frame.assign(day=frame["day"] + zones)


def _constant(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(sold=frame["sold"].mask(frame["shop"] == "c", 7.0))


def _without(frame: pd.DataFrame, *days: str) -> pd.DataFrame:
    return frame[~frame["day"].isin(days)]


def _weekdays(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[pd.to_datetime(frame["day"]).dt.dayofweek < 5]


def _odd_names(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(shop='ü "' + frame["shop"] + "', /\n🙂")


def _dates(frame: pd.DataFrame, years: int = 0, form: str = "%Y-%m-%d") -> pd.DataFrame:
    times = pd.to_datetime(frame["day"]) + pd.DateOffset(years=years)
    return frame.assign(day=times.dt.strftime(form))


def _long(frame: pd.DataFrame) -> pd.DataFrame:
    """Four years, to the last day of the others."""
    times = pd.date_range(end="2024-02-29", periods=1500).strftime("%Y-%m-%d")
    return pd.concat([frame, sales(1, 1500).assign(shop="z", day=times)])


def _weekly_too(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame[24:60:7].assign(shop="w")])


@pytest.mark.parametrize(
    ("change", "job", "project"),
    [
        pytest.param(lambda of: of, [], [], id="usual"),
        pytest.param(_constant, [], ["`sold` is constant in 1 of 20 series (c)"], id="constant"),
        pytest.param(
            lambda of: of.assign(sold=5.0),
            [],
            "`sold` is constant in each of 20 series",
            id="all-constant",
        ),
        pytest.param(
            lambda of: of[(of["shop"] != "d") | (of["day"] > "2024-02-26")],
            ["1 series have too few values to score"],
            ["1 of 20 series (d) have no more values than", "have no value in the test"],
            id="shorter-than-the-horizon",
        ),
        pytest.param(
            lambda of: of.groupby("shop").tail(2),
            "and the longest series has 2",
            "the table has 2 steps",
            id="two-values-each",
        ),
        pytest.param(
            lambda of: of.drop(index=[20, 21]),
            ["2 gaps within series"],
            ["2 values are missing between the first and the last one of 1 of 20 series (a)"],
            id="gaps",
        ),
        pytest.param(
            lambda of: _without(of, "2024-01-20", "2024-01-21"),
            ["40 gaps within series"],
            ["no series has a row between 2024-01-19 and 2024-01-22"],
            id="gap-of-every-series",
        ),
        pytest.param(_weekdays, [], [], id="weekdays"),
        pytest.param(
            lambda of: pd.concat([of, of.iloc[:1]]),
            "error[duplicate-times]: a has 2024-01-01",
            "a has 2024-01-01T00:00:00 on line 2 too",
            id="duplicates",
        ),
        pytest.param(
            lambda of: of.assign(day=of["day"] + "T00:00:00+02:00"),
            ["taken as local dates"],
            [],
            id="time-zone",
        ),
        pytest.param(
            _zones,
            ["taken as local dates"],
            ["values are missing", "time zones +0100, +0200"],
            id="two-time-zones",
        ),
        pytest.param(
            lambda of: of.assign(sold=-of["sold"]),
            [],
            ["1,200 of 1,200 values of `sold` are negative"],
            id="negative",
        ),
        pytest.param(
            lambda of: of.assign(sold=of["sold"].mask(of.index % 60 == 30)),
            ["20 gaps within series"],
            ["20 values are missing"],
            id="missing",
        ),
        pytest.param(
            lambda of: of.assign(sold=of["sold"].round().astype(int), shop="0" + of["shop"]),
            [],
            [],
            id="whole-numbers",
        ),
        pytest.param(_odd_names, [], [], id="names-with-odd-characters"),
        pytest.param(_long, [], [], id="one-long-series"),
        pytest.param(lambda of: _dates(of, years=40), [], [], id="future"),
        pytest.param(
            lambda of: _dates(of, form="%d/%m/%Y"),
            ["`day` is read as day, month, year"],
            "`day` is '01/01/2024'",
            id="day-before-month",
        ),
        pytest.param(
            _weekly_too,
            ["30 gaps within series", "1 series have too few values to score"],
            ["30 values are missing between the first and the last one of 1 of 21 series (w)"],
            id="mixed-frequencies",
        ),
        pytest.param(
            lambda of: of.assign(sold=np.nan),
            "error[no-label]: no row of training_data",
            "`sold`, of type text",
            id="all-missing",
        ),
    ],
)
def test_odd_series_get_a_clear_answer(
    change: Change, job: str | list[str], project: str | list[str], tmp_path: Path
) -> None:
    """A text is the error that refuses them, a list what is said of them; a job's forecasts are
    finite and those of a constant are that constant.
    """
    frame = change(sales(series=SERIES))
    if isinstance(job, str):
        with pytest.raises(SystemExit, match="expected: ") as stopped:
            problem(frame)
        assert job in str(stopped.value)
    else:
        of = problem(frame)
        forecasts = trial.fit(of, "light_gbm", SMALL_TREES, 60).forecasts
        notes = [found["finding"] for found in trial._facts(of, [], [])["guardrails"]]
        assert len(notes) == len(job) and all(map(str.__contains__, notes, job))
        assert np.isfinite(forecasts[origins.scored_mask(of.panel, of.origins)]).all()
        if (frame["sold"] == 5).all():
            assert np.allclose(forecasts, 5)
    frame.to_csv(tmp_path / "sales.csv", index=False)
    words = (tmp_path / "sales.csv", Choices("sold", time="day"), SeriesChoices(HORIZON, ["shop"]))
    if isinstance(project, str):
        with pytest.raises(UserError) as refused:
            series_profile(*words, "lightgbm")
        assert project in refused.value.problems[0].actual and refused.value.problems[0].expected
    else:
        profile = series_profile(*words, "lightgbm")
        assert len(profile.doubts) == len(project)
        assert all(map(str.__contains__, profile.doubts, project))
        assert profile.head["season"] == (5 if change is _weekdays else 7 + 17 * (change is _zones))
