"""Seasonal naive, the scale, the texts of predictions.csv, and the metrics of forecasts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ml.measures import forecasting
from ml.measures.forecasting import Actuals, actuals, seasonal_naive
from ml.measures.measurement import Rows, metric_values, metrics_of, predict
from ml.measures.metrics import ScoredRows
from ml.measures.schema import Evaluation
from ml.measures.tasks import TASKS, fault
from ml.release.comparison import metric_sign

NAN = math.nan


def test_seasonal_naive_repeats_the_last_season() -> None:
    """Each place of the season has its last observed value; the interval grows by season."""
    history = [1, 2, 3, 4, 5, NAN, 7, 9]
    forecast = seasonal_naive(history, 3, 5)
    # Places from the end: 4 and 7 steps of three before; the missing value falls back a season.
    assert forecast[:, 0].tolist() == [3, 7, 9, 3, 7]
    width = forecast[:, 2] - forecast[:, 0]
    assert width[3] == pytest.approx(width[0] * math.sqrt(2))
    assert width[0] == pytest.approx(1.2815515655446004 * math.sqrt((9 + 9 + 9 + 16) / 4))


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 20])
@pytest.mark.parametrize("season", [1, 7, 12])
def test_seasonal_naive_is_that_of_the_definition(length: int, season: int) -> None:
    """ŷ(T+h) = y(T+h−m(k+1)), of a history of at least a season; a shorter one has its last value
    where a place of the season was never seen.
    """
    history = np.random.default_rng(length).normal(size=length)
    for step, value in enumerate(seasonal_naive(history, season, 15)[:, 0].tolist()):
        at = length + step - season * (step // season + 1)
        assert value == (history[at] if at >= 0 else history[-1])


def test_a_history_without_values_has_no_forecast() -> None:
    """Neither has one whose every value is missing."""
    for history in ([], [NAN, NAN]):
        with pytest.raises(ValueError, match="without an observed value"):
            seasonal_naive(history, 7, 3)
    with pytest.raises(ValueError, match="after its cutoff"):
        actuals([1.0], [NAN], 1)


@pytest.mark.parametrize(
    ("history", "season", "scale"),
    [
        ([1, 2, 3, 5, 5, 9], 2, (2 + 3 + 2 + 4) / 4),
        ([1, 2, NAN, 5, 5, 9], 2, (3 + 4) / 2),
        ([1, 4], 7, 3),  # shorter than a season: of the last value
        ([5, 5, 5], 1, 5),  # constant: the size
        ([0, 0, 0], 1, 1),
        ([NAN], 1, 1),
    ],
)
def test_the_scale(history: list[float], season: int, scale: float) -> None:
    """It is never 0, so that every error can be divided by it."""
    assert forecasting.scale(history, season) == pytest.approx(scale)


def rows(count: int = 40, noise: float = 0.5, seed: int = 0) -> Rows:
    """Forecasts of a weekly season, two of each series, with a missing value in each."""
    rng = np.random.default_rng(seed)
    labels, scores = [], []
    for _ in range(count):
        values = 10 + np.arange(60) % 7 + rng.normal(0, 1, 60)
        actual = values[50:].copy()
        actual[rng.integers(10)] = NAN
        labels.append(actuals(values[:50], actual, 7))
        middle = 10 + np.arange(50, 60) % 7 + rng.normal(0, noise, 10)
        scores.append(np.stack([middle, middle - 1.5, middle + 1.5], axis=1))
    names = [str(number) for number in range(count)]
    groups = [str(number // 2) for number in range(count)]
    return Rows(names, labels, np.array(scores), groups=groups)


def test_the_metrics_by_their_definitions() -> None:
    """Over the observed steps."""
    given = rows()
    values = metric_values("forecasting", given)
    label: list[Actuals] = [*given.labels]
    scores = np.asarray(given.scores)
    actual = np.array([of.actual for of in label])
    scale = np.array([of.scale for of in label])[:, None]
    errors = np.abs(actual - scores[:, :, 0])
    assert values["mase"] == pytest.approx(np.nanmean(np.nanmean(errors / scale, axis=1)))
    assert values["wape"] == pytest.approx(np.nansum(errors) / np.nansum(np.abs(actual)))
    naive = np.abs(actual - np.array([of.naive for of in label])) / scale
    assert values["relative_mase"] == pytest.approx(np.nansum(errors / scale) / np.nansum(naive))
    inside = errors[~np.isnan(actual)] <= 1.5
    assert values["coverage"] == pytest.approx(inside.mean())
    score = 3.0 + 10 * np.maximum(errors - 1.5, 0)
    assert values["interval_score"] == pytest.approx(np.nanmean(np.nanmean(score / scale, axis=1)))


def test_the_interval_is_over_series() -> None:
    """Two forecasts of one series are drawn together; the true one is better than naive."""
    given = rows()
    ours = metrics_of(TASKS["forecasting"].metrics, predict("forecasting", "test", given))["test"]
    assert ours["relative_mase"].low < ours["relative_mase"].value < ours["relative_mase"].high < 1
    naive = np.array([np.stack([of.naive] * 3, axis=1) for of in given.labels])
    same = metric_values("forecasting", Rows(given.ids, given.labels, naive))
    assert same["relative_mase"] == pytest.approx(1.0, abs=1e-6)


def test_predictions_come_back() -> None:
    """What is written is read with nine digits; a horizon may be shorter than others."""
    given = rows(12)
    long = predict("forecasting", "test", given)
    short = Rows(["s"], [actuals([1, 2], [2, 3], 1)], np.full((1, 2, 3), 2.0))
    scored = ScoredRows.from_rows([*long, *predict("forecasting", "test", short)])
    of = scored.forecasts
    assert of.value.shape == (13, 10) and np.isnan(of.value[12, 2:]).all()
    assert of.value[:12] == pytest.approx(np.asarray(given.scores)[:, :, 0], rel=1e-8)
    assert not any(
        fault("forecasting", each.expected, each.predicted, each.rank, each.score) for each in long
    )


EXPECTED = forecasting.written_actuals(actuals([1, 2, 3], [4, NAN], 1))
PREDICTED = forecasting.written([[3, 2, 4], [3, 1, 5]])


@pytest.mark.parametrize(
    ("expected", "predicted", "rank", "score", "words"),
    [
        ("[]", PREDICTED, 0, 6.0, "has no actual, naive, scale"),
        ("{", PREDICTED, 0, 6.0, "has no actual, naive, scale"),
        (EXPECTED.replace("4.0", "null"), PREDICTED, 0, 6.0, "an actual and a naive value"),
        (EXPECTED.replace("4.0, null", "4.0"), PREDICTED, 0, 6.0, "an actual and a naive value"),
        (EXPECTED.replace('"scale": 1.0', '"scale": 0'), PREDICTED, 0, 6.0, "not finite"),
        (EXPECTED, "[]", 0, 0.0, "a step that is not three finite numbers"),
        (EXPECTED, "[[3, 2, NaN], [3, 1, 5]]", 0, 6.0, "a step that is not three finite numbers"),
        (EXPECTED, "[[3, 2], [3, 1]]", 0, 6.0, "not a list of [value, low, high]"),
        (EXPECTED, "[[3, 4, 2], [3, 1, 5]]", 0, 6.0, "whose low end is above its high end"),
        (EXPECTED, "[[3, 2, 4]]", 0, 3.0, "1 steps were predicted, expected 2"),
        (EXPECTED, PREDICTED, 0, 7.0, "expected the sum of the values, 6"),
        (EXPECTED, PREDICTED, 1, 6.0, "rank 1, expected 0 in a task without ranking"),
    ],
)
def test_a_row_that_is_no_forecast(
    expected: str, predicted: str, rank: int, score: float, words: str
) -> None:
    """It says why."""
    assert words in fault("forecasting", expected, predicted, rank, score)
    assert fault("forecasting", EXPECTED, PREDICTED, 0, 6.0) == ""
    assert json.loads(EXPECTED)["actual"] == [4.0, None]


def test_no_coverage_or_selection_rate_is_better_than_another() -> None:
    """A report names no better way for it, and one for the errors."""
    evaluation = Evaluation(task="forecasting", primary_metric="mase", goal="minimize")
    signs = {name: metric_sign(evaluation, name) for name in TASKS["forecasting"].metrics}
    assert signs == {**dict.fromkeys(signs, -1), "coverage": 0}
    evaluation = Evaluation(task="binary", primary_metric="auc", goal="maximize")
    assert [metric_sign(evaluation, name) for name in ("selection_rate", "f1")] == [0, 1]
