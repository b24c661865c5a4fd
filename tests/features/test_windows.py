"""Windows against a reference that looks at every row for every arrival."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.features import windows as module
from ml.features.definition import TYPES
from ml.features.join import point_in_time
from ml.features.timeline import FeatureError, Timeline, source_lookback_limit
from ml.features.windows import FUNCTIONS, Window, windows
from ml.specs.check.transformations import WINDOW_TYPES

START = datetime(2026, 3, 28, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMES = st.integers(0, 9).map(lambda hours: START + hours * HOUR)
INTEGERS = st.integers(-9, 9)
ARRIVING = Timeline("event", "arrival")
ALL = [Window(name, name, 3 * HOUR, "value") for name in FUNCTIONS]
Row = tuple[str, datetime, datetime, float | None]


def histories(unit: float) -> st.SearchStrategy[list[Row]]:
    """Rows with multiples of a unit: quarters add up exactly in any order, sevenths do not."""
    values = st.one_of(st.none(), INTEGERS.map(lambda value: value * unit))
    return st.lists(st.tuples(st.sampled_from("aaab"), TIMES, TIMES, values), max_size=12)


def table(rows: list[Row]) -> pl.DataFrame:
    zone = pl.Datetime("us", "UTC")
    types = {"account": pl.String, "event": zone, "arrival": zone, "value": pl.Float64}
    return pl.DataFrame(rows, schema=types, orient="row")


def computed(rows: list[Row]) -> list[tuple[object, ...]]:
    result = windows(table(rows), ALL, keys=["account"], timeline=ARRIVING)
    return sorted(result.rows(), key=lambda row: (row[0], row[2]))


def reference(rows: list[Row]) -> list[tuple[object, ...]]:
    answers: list[tuple[object, ...]] = []
    for account, available_at in sorted({(row[0], max(row[1], row[2])) for row in rows}):
        known = [row for row in rows if row[0] == account and max(row[1], row[2]) <= available_at]
        latest = max(row[1] for row in known)
        inside = [row for row in known if row[1] > latest - 3 * HOUR]
        inside.sort(key=lambda row: (row[1], max(row[1], row[2])))  # stable: then by position
        values = [row[3] for row in inside if row[3] is not None]
        before = [row[1] for row in inside if row[1] < latest]
        total = 0.0
        for value in values:
            total += value
        gap = (latest - max(before)).total_seconds() if before else None
        mean = total / len(values) if values else None
        window = (len(inside), total, mean, len({*values}), inside[-1][3], gap)
        answers.append((account, latest, available_at, *window))
    return answers


@pytest.mark.parametrize("chunk", [1, 4_000_000])
@given(rows=histories(1 / 4))
def test_windows_use_what_had_arrived(rows: list[Row], chunk: int) -> None:
    whole = module._CHUNK
    module._CHUNK = chunk
    try:
        assert computed(rows) == reference(rows)
    finally:
        module._CHUNK = whole


@given(rows=histories(1 / 7), later=histories(1 / 7))
def test_rows_that_arrive_later_change_no_earlier_value(rows: list[Row], later: list[Row]) -> None:
    """A run on what had arrived gives, bit by bit, what a run on the whole history gives."""
    after = [(row[0], row[1], row[2] + 10 * HOUR, row[3]) for row in later]
    until = START + 10 * HOUR
    assert [row for row in computed(rows + after) if row[2] < until] == computed(rows)  # type: ignore[operator]


def test_spec_checks_know_the_type_of_each_window() -> None:
    """`last` alone has that of its column; code with windows is checked without running it."""
    kinds = {TYPES[kind]: kind for kind in ("long", "double")}
    made = windows(table([("a", START, START, 1.0)]), ALL, keys=["account"], timeline=ARRIVING)
    types = {name: kinds[str(made.schema[name])] for name in FUNCTIONS if name != "last"}
    assert types == WINDOW_TYPES


def test_a_label_gets_the_window_without_what_was_late() -> None:
    rows: list[Row] = [
        ("a", START, START, 1.0),
        ("a", START + HOUR, START + 5 * HOUR, 10.0),
        ("a", START + 2 * HOUR, START + 2 * HOUR, 100.0),
    ]
    features = windows(table(rows), ALL, keys=["account"], timeline=ARRIVING)
    times = [START + hours * HOUR for hours in (3, 5)]
    labels = pl.DataFrame({"account": ["a", "a"], "time": times})
    joined = point_in_time(
        labels,
        features,
        keys=["account"],
        time="time",
        timeline=ARRIVING,
        features=["sum", "count"],
    )
    assert joined.rows()[0][2:] == (101.0, 2) and joined.rows()[1][2:] == (111.0, 3)


@pytest.mark.parametrize(
    ("window", "code"),
    [
        (Window("x", "median", HOUR, "value"), "unknown-function"),
        (Window("x", "count", HOUR / 2), "window-length"),
        (Window("x", "count", timedelta(days=91)), "window-length"),
        (Window("x", "count", 7), "window-length"),  # type: ignore[arg-type]
        (Window("x", "sum", HOUR), "missing-column"),
        (Window("x", "sum", HOUR, "other"), "missing-column"),
        (Window("x", "sum", HOUR, "account"), "wrong-type"),
    ],
)
def test_a_window_that_cannot_be_computed(window: Window, code: str) -> None:
    with pytest.raises(FeatureError) as raised:
        windows(table([]), [window], keys=["account"], timeline=ARRIVING)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("names", "keys", "code"),
    [
        (["n", "n"], ["account"], "column-twice"),
        (["account"], ["account"], "column-twice"),
        (["arrival"], ["account"], "column-twice"),
        (["n"], ["account", "account"], "column-twice"),
        (["n"], ["account", "event"], "column-twice"),
        (["n"], [], "no-keys"),
    ],
)
def test_columns_of_one_name_are_an_error(names: list[str], keys: list[str], code: str) -> None:
    """Of windows, keys and times; and there is at least one key."""
    asked = [Window(name, "count", HOUR) for name in names]
    with pytest.raises(FeatureError) as raised:
        windows(table([("a", START, START, 1.0)]), asked, keys=keys, timeline=ARRIVING)
    assert raised.value.code == code


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_an_error(value: float) -> None:
    """One NaN would make every window that contains it NaN; infinity minus infinity is one."""
    rows = table([("a", START, START, None), ("a", START, START, value)])
    with pytest.raises(FeatureError, match=rf"row 1: `value` is {value}; .*null") as raised:
        windows(rows, ALL, keys=["account"], timeline=ARRIVING)
    assert raised.value.code == "not-finite"


def test_a_window_may_not_exceed_what_a_transformation_is_given() -> None:
    """It would be computed from a part of its rows, without a word."""
    table = pl.DataFrame({"key": ["a"], "time": [datetime(2025, 1, 1, tzinfo=UTC)]})
    asked = [Window("n", "count", timedelta(days=7))]
    limit = source_lookback_limit.set(timedelta(days=3))
    try:
        with pytest.raises(FeatureError, match="at most `source_lookback`, 3 days"):
            windows(table, asked, keys=["key"], timeline=Timeline("time"))
    finally:
        source_lookback_limit.reset(limit)
    assert windows(table, asked, keys=["key"], timeline=Timeline("time"))["n"].to_list() == [1]
