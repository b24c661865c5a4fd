"""Rows become series on one grid, or the program says why they are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.automl.forecasting.conftest import of_frame, sales

Change = Callable[[pd.DataFrame], pd.DataFrame]


def _repeated(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[:1]], ignore_index=True)


def _off_grid(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(day=[f"{day}T0{row % 7}:00:00" for row, day in enumerate(frame["day"])])


def _first_days(frame: pd.DataFrame) -> pd.DataFrame:
    """The first twelve days of two months, the day before the month."""
    times = pd.to_datetime(frame["day"])
    return frame.assign(day=times.dt.strftime("%d/%m/%Y"))[times.dt.day <= 12].iloc[12:]


@pytest.mark.parametrize(
    ("change", "fields", "code", "says"),
    [
        (_repeated, {}, "duplicate-times", "a has 2024-01-01"),
        (lambda of: of.assign(day="soon"), {}, "not-a-time", "`day` is 'soon'"),
        (lambda of: of.assign(sold=np.nan), {}, "no-label", "no row"),
        (
            lambda of: of.assign(sold="many"),
            {},
            "not-numbers",
            "`target_column_name: sold` has texts",
        ),
        (lambda of: of.assign(sold=np.inf), {}, "not-numbers", "infinite"),
        (lambda of: of.drop(columns="shop"), {}, "no-such-column", "`shop`"),
        (lambda of: of.assign(shop=[None, *of["shop"][1:]]), {}, "no-series", "missing in row 1"),
        (lambda of: of.assign(day=of["day"].mask(of.index == 3)), {}, "not-a-time", "in row 4"),
        (
            lambda of: of.assign(day=of["day"].where(of.index != 5, "2924-01-01")),
            {},
            "not-a-time",
            "`day` is '2924-01-01' in row 6",
        ),
        (_first_days, {}, "not-a-time", "'01/02/2024' in row 1: the order of day and month"),
        (
            lambda of: of.assign(day=of["day"] + np.where(of.index < 9, "T00:00:00Z", "")),
            {},
            "mixed-time-zones",
            "no time zone in row 10",
        ),
        (
            lambda of: of.assign(
                shop=of["shop"] + "/c", city=of["shop"].map({"a": "d", "b": "c/d"})
            ).assign(shop=lambda to: to["shop"].where(to["shop"] == "a/c", "a")),
            {"time_series_id_column_names": ["shop", "city"]},
            "no-series",
            "2 series are named `a/c/d`",
        ),
        (_off_grid, {"frequency": "D"}, "irregular-times", "regular by `D`"),
        (lambda of: of, {"frequency": "ms"}, "too-many-times", "by `ms`"),
    ],
)
def test_rows_that_are_no_series_are_refused(
    change: Change, fields: dict[str, Any], code: str, says: str
) -> None:
    """With the code, and the column or the series."""
    with pytest.raises(SystemExit) as stopped:
        of_frame(change(sales()), **fields)
    message = str(stopped.value)
    assert message.startswith(f"error[{code}]") and says in message and "expected:" in message


@pytest.mark.parametrize(
    ("change", "fields", "note"),
    [
        (lambda of: of.assign(sold=5.0), {}, ""),
        (lambda of: of.assign(sold=-of["sold"]), {}, ""),
        (lambda of: of.drop(index=[20, 21]), {}, "2 gaps"),
        (lambda of: of.assign(sold=of["sold"].mask(of.index == 30)), {}, "1 gaps"),
        (_repeated, {"frequency": "D", "target_aggregate_function": "sum"}, ""),
        (_off_grid, {"frequency": "D", "target_aggregate_function": "mean"}, ""),
        (lambda of: pd.concat([of, of.tail(2).assign(shop="z")]), {}, ""),
        (lambda of: of.assign(day=of["day"] + "T00:00:00+02:00"), {}, "local dates"),
        (
            lambda of: of.assign(day=pd.to_datetime(of["day"]).dt.strftime("%m/%d/%Y")),
            {},
            "month, day, year",
        ),
        (
            lambda of: of.assign(day=pd.to_datetime(of["day"]).dt.strftime("%d.%m.%Y")),
            {},
            "day, month",
        ),
        (lambda of: of.assign(shop="ü/" + of["shop"] + ' é"\n🙂'), {}, ""),
        (lambda of: of.assign(note="text"), {}, "column note is not numeric"),
        (lambda of: of.sample(frac=1.0, random_state=0), {}, ""),
    ],
)
def test_odd_series_are_read(change: Change, fields: dict[str, Any], note: str) -> None:
    """Daily, whatever their order; what was done to them is noted."""
    panel = of_frame(change(sales()), **fields)
    assert (panel.grid.freqstr, len(panel.grid), panel.season) == ("D", 60, 7)
    assert panel.names == ["price"] and len(panel.ids) in (2, 3)
    assert any(note in of for of in panel.notes) if note else panel.notes == []


def test_values_of_one_step_are_aggregated() -> None:
    """By the function that the spec names; others of its columns by the mean."""
    frame = sales(series=1, days=14)
    panel = of_frame(frame, frequency="W-SUN", target_aggregate_function="sum")
    weeks = frame["sold"].to_numpy().reshape(2, 7)
    # A week is named by the Sunday that it begins with.
    assert panel.target.shape == (1, 3) and np.nansum(panel.target) == pytest.approx(weeks.sum())


@pytest.mark.parametrize(
    ("frequency", "season"),
    [("h", 24), ("D", 7), ("W-MON", 1), ("MS", 12), ("ME", 12), ("QS-JAN", 4), ("B", 5), ("YS", 1)],
)
def test_the_frequency_is_that_of_most_steps(frequency: str, season: int) -> None:
    """Also where a time is missing."""
    times = pd.date_range("2001-01-01", periods=70, freq=frequency)
    frame = pd.DataFrame({"day": times.astype(str), "sold": np.arange(70.0)}).drop(index=[33])
    panel = of_frame(frame, time_series_id_column_names=None)
    assert panel.grid.freqstr.split("-")[0] == frequency.split("-")[0] and panel.season == season
    assert panel.names_of_series == ["all"] and len(panel.grid) == 70


def test_three_centuries_are_read() -> None:
    """They are longer than pandas' Timedelta."""
    times = pd.date_range("1700-01-01", periods=309, freq="YS")
    frame = pd.DataFrame({"day": times.astype(str), "sold": np.arange(309.0)})
    panel = of_frame(frame, time_series_id_column_names=None)
    assert (panel.grid.freqstr, len(panel.grid)) == ("YS-JAN", 309)


def test_days_of_a_zone_stay_days_when_the_clock_changes() -> None:
    """Local midnight is another hour of UTC from 31 March on."""
    times = pd.date_range("2024-03-20", periods=30, freq="D", tz="Europe/Berlin")
    frame = pd.DataFrame({"day": [of.isoformat() for of in times], "sold": np.arange(30.0)})
    panel = of_frame(frame, time_series_id_column_names=None)
    assert (panel.grid.freqstr, len(panel.grid)) == ("D", 30)
    assert panel.target[0].tolist() == [*range(30)]


@pytest.mark.parametrize(("aggregate", "is_read"), [(None, False), ("mean", True)])
def test_local_hours_without_a_zone(aggregate: str | None, is_read: bool) -> None:
    """The hour that the clock repeats is there twice: refused, unless the spec aggregates."""
    times = pd.date_range("2024-10-26", periods=48, freq="h", tz="Europe/Berlin").tz_localize(None)
    frame = pd.DataFrame({"day": times.astype(str), "sold": np.arange(48.0)})
    fields = {"frequency": "h", "target_aggregate_function": aggregate}
    if not is_read:
        with pytest.raises(SystemExit, match=r"duplicate-times.*2024-10-27 02:00:00 twice"):
            of_frame(frame, time_series_id_column_names=None, **fields)
        return
    panel = of_frame(frame, time_series_id_column_names=None, **fields)
    assert len(panel.grid) == 47 and not np.isnan(panel.target).any()


def test_a_zone_of_hours_is_read_as_utc() -> None:
    """The clock is put back on 27 October: two rows have one local time."""
    times = pd.date_range("2024-10-26", periods=48, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame({"day": [of.isoformat() for of in times], "sold": np.arange(48.0)})
    panel = of_frame(frame, time_series_id_column_names=None)
    assert len(panel.grid) == 48 and panel.grid[0] == pd.Timestamp("2024-10-25T22:00:00")
    assert any("UTC" in of for of in panel.notes)
