"""ml.serving.scoring.series: features, intervals, and requests of another form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.measures.forecasting import seasonal_naive
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.series import Forecaster, Spec, features, relevant, save, with_interval

SPEC = Spec(7, 4, ["promotion"], [-0.5, -0.5, -1, -1], [0.5, 0.5, 1, 1], 0.0)


@pytest.fixture(scope="module", name="forecaster")
def _forecaster(tmp_path_factory: pytest.TempPathFactory) -> Forecaster:
    """A model of few trees over one series."""
    rng = np.random.default_rng(0)
    values = 10 + np.arange(200) % 7 + rng.normal(0, 1, 200)
    parts = [
        features(values[:cutoff], {"promotion": np.zeros(cutoff + 4)}, SPEC)
        for cutoff in range(60, 190, 3)
    ]
    target = [values[60 + 3 * at : 64 + 3 * at] / level for at, (_, level) in enumerate(parts)]
    data = lgb.Dataset(np.concatenate([of for of, _ in parts]), np.concatenate(target))
    booster = lgb.train({"verbosity": -1, "min_child_samples": 5, "num_threads": 1}, data, 5)
    folder = tmp_path_factory.mktemp("series")
    save(booster.model_to_string(), SPEC, folder)
    return Forecaster(folder)


VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), min_size=1, max_size=90)


@given(VALUES, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_features_use_the_last_seasons(values: list[float], seed: int) -> None:
    """Without the steps that no forecast depends on they are bit-identical, and never infinite; one
    is seasonal naive.
    """
    history, rng = np.array(values), np.random.default_rng(seed)
    if np.isnan(history).all():
        history[0] = 1.0
    known = {"promotion": rng.integers(0, 2, len(history) + 4).astype(float)}
    table, level = features(history, known, SPEC)
    first = relevant(history, 7)
    short, same_level = features(history[first:], {"promotion": known["promotion"][first:]}, SPEC)
    assert np.array_equal(table, short, equal_nan=True) and level == same_level > 0
    assert table.shape == (4, len(SPEC.names())) and not np.isinf(table).any()
    naive = seasonal_naive(history[first:], 7, 4)[:, 0]
    assert np.array_equal(table[:, SPEC.names().index("naive")], naive / level)


@pytest.mark.parametrize(
    "history", [[5.0], [0.0], [5.0, math.nan], [3.0] * 80, [0.0] * 80, [-2.0, 4.0], [1e-9, 0.0]]
)
def test_every_series_has_a_forecast(forecaster: Forecaster, history: list[float]) -> None:
    """One value, constant, all 0: finite values within their interval, none below 0."""
    known = {"promotion": np.zeros(len(history) + 4)}
    rows = forecaster.forecast(np.array(history), known)
    assert rows.shape == (4, 3) and np.isfinite(rows).all() and (rows >= 0).all()
    assert (rows[:, 1] <= rows[:, 0]).all() and (rows[:, 0] <= rows[:, 2]).all()


def test_the_interval_scales_with_the_level() -> None:
    """The ends are offsets in levels, cut at the smallest value."""
    rows = with_interval(np.array([1.0, 0.2]), 10.0, SPEC)
    assert rows.tolist() == [[10, 5, 15], [2, 0, 7]]


def test_a_field_that_is_given_twice(forecaster: Forecaster) -> None:
    """Which of the two is meant, JSON does not say."""
    content = json.dumps(BODY).replace('"horizon"', '"horizon": 1, "horizon"')
    with pytest.raises(BadRequest, match="horizon: given twice, expected once"):
        forecaster.answer(content)


BODY = {"history": [1, None, 3], "known": {"promotion": [0, 0, 1, 1, 0]}, "horizon": 2}


def test_a_request(forecaster: Forecaster) -> None:
    """A shorter horizon has the first steps of a longer one."""
    answer = forecaster.answer(json.dumps(BODY))
    longer = {**BODY, "known": {"promotion": [0, 0, 1, 1, 0, 0, 0]}, "horizon": 4}
    whole = forecaster.answer(json.dumps(longer))
    assert answer["forecast"] == whole["forecast"][:2]  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"history": []}, "history: not a list of numbers, expected 1 to 10000 numbers"),
        ({"history": [None]}, "history: no value, expected at least one number"),
        ({"history": ["1"]}, "history: 1, expected numbers of less than 1e15"),
        ({"history": [True]}, "history: True, expected numbers of less than 1e15"),
        ({"history": [1e300]}, "history: 1e+300, expected numbers of less than 1e15"),
        ({"history": [10**400]}, "expected numbers of less than 1e15"),
        ({"history": [math.nan]}, "history: nan, expected numbers of less than 1e15"),
        ({"horizon": 5}, "horizon: 5, expected 1 to 4"),
        ({"horizon": True}, "horizon: True, expected 1 to 4"),
        ({"known": {}}, "known: other columns, expected promotion"),
        ({"known": {"promotion": [0]}}, "promotion: 1 values, expected 5"),
        ({"known": {"promotion": [None] * 5}}, "promotion: None, expected numbers"),
        ({"price": 1}, "the body: not an object with only known fields"),
    ],
)
def test_a_request_of_another_form(
    forecaster: Forecaster, change: dict[str, object], words: str
) -> None:
    """It says the field, what was found and what is expected."""
    with pytest.raises(BadRequest) as caught:
        forecaster.answer(json.dumps({**BODY, **change}))
    assert words in str(caught.value)


def test_a_body_that_is_not_json(forecaster: Forecaster) -> None:
    """Neither an array nor a text is a request."""
    for body in ("", "{", "[]", "1", "[" * 100_000):
        with pytest.raises(BadRequest):
            forecaster.answer(body)


def test_a_model_without_known_columns(tmp_path: Path) -> None:
    """The history and the horizon are enough."""
    spec = Spec(7, 4, [], [0] * 4, [0] * 4, None)
    table, _ = features(np.arange(30.0), {}, spec)
    data = lgb.Dataset(np.tile(table, (30, 1)), np.tile(np.arange(4.0), 30))
    booster = lgb.train({"verbosity": -1, "num_threads": 1}, data, 2)
    save(booster.model_to_string(), spec, tmp_path)
    answer = Forecaster(tmp_path).answer('{"history": [1, 2, 3], "horizon": 3}')
    assert len(answer["forecast"]) == 3  # type: ignore[arg-type]
