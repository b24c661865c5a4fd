"""The metrics of each task, and the form of the predictions that they need.

A metric is the mean of one value a unit (`of_units`), or follows from all units at once (`of_all`).
Versions can be compared by either: on the same units, or the same draws of them. The formulas are
scikit-learn's (https://scikit-learn.org/stable/modules/model_evaluation.html); a test compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ml.toolkit.bootstrap import Estimate, Groups, Values, bounds, drawn_times, weighted_sums
from ml.toolkit.ranking import METRICS as OF_RANKS

Task = Literal["ranking", "binary", "multiclass", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
# Probabilities of 0 and 1 are taken for these, as scikit-learn's log_loss does.
_EPS = float(np.finfo(np.float64).eps)
# The level of each metric of a predicted quantile.
QUANTILES: Mapping[str, float] = {"quantile_loss_10": 0.1, "quantile_loss_90": 0.9}
# The probabilities of the classes are written with four digits.
_ROUNDED = 1e-4
# Of `lift_at_10` and `recall_at_precision_90`.
_TOP, _PRECISION = 0.1, 0.9


@dataclass(frozen=True)
class Answers:
    """The answers to some units, a row each; what does not concern the task is not looked at.

    ranking: `rank` of the right answer, from 1. binary: `expected` and `predicted` are "0" or "1",
    `score` is the probability of "1". multiclass: labels, and the probability that the right one
    was given. regression: numbers as text.
    """

    expected: NDArray[Any]
    predicted: NDArray[Any]
    rank: NDArray[np.int64]
    score: Values

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Answers:
        """Of objects that have these fields."""
        kinds = (np.str_, np.str_, np.int64, np.float64)
        return cls(
            *(
                np.array([getattr(row, field.name) for row in rows], dtype=kind)
                for field, kind in zip(fields(cls), kinds, strict=True)
            )
        )

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def ones(self) -> Values:
        """1 for each row whose right label is "1", else 0."""
        return np.asarray(self.expected == "1", dtype=np.float64)

    @cached_property
    def from_the_top(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows by their scores, the highest first, and where each distinct score ends."""
        order = np.argsort(-self.score, kind="stable")
        return order, np.flatnonzero(np.diff(self.score[order], append=-1.0))

    def __getitem__(self, rows: Any) -> Answers:
        """Those rows, as numpy takes them."""
        return Answers(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class Draws:
    """Some answers, and how often each of them counts in each of several draws: (draws, rows)."""

    answers: Answers
    times: Values

    @cached_property
    def from_the_top(self) -> tuple[Values, Values]:
        """How many "1", and how many rows at all, score at least as high as each distinct score,
        the highest first: (draws, scores) each.
        """
        order, ends = self.answers.from_the_top
        times = self.times.take(order, axis=1)
        ones = (times * self.answers.ones[order]).cumsum(axis=1)
        every = times.cumsum(axis=1)
        return (ones, every) if len(ends) == len(order) else (ones[:, ends], every[:, ends])


@dataclass(frozen=True)
class Metric:
    """One of `of_units`, a value a row, and `of_all`, a value a draw, NaN where it has none."""

    goal: Literal["maximize", "minimize"]
    of_units: Callable[[Answers], Values] | None = None
    of_all: Callable[[Draws], Values] | None = None


def _right(answers: Answers) -> Values:
    return np.asarray(answers.expected == answers.predicted, dtype=np.float64)


def _probability(answers: Answers) -> Values:
    """The probability that the right one of two labels was given."""
    return np.where(answers.expected == "1", answers.score, 1 - answers.score)


def _surprise(probability: Values) -> Values:
    return -np.log(np.clip(probability, _EPS, 1 - _EPS))


def _errors(answers: Answers) -> Values:
    return np.asarray(
        answers.predicted.astype(np.float64) - answers.expected.astype(np.float64), dtype=np.float64
    )


def _auc(draws: Draws) -> Values:
    """How often a "1" scores above a "0", a tie counting half (Hanley and McNeil 1982)."""
    ones, every = draws.from_the_top
    zeros = every - ones
    # The area under the ones over the zeros, a trapezium a score.
    twice = np.einsum("ij,ij->i", ones[:, 1:] + ones[:, :-1], np.diff(zeros, axis=1))
    won = (ones[:, 0] * zeros[:, 0] + twice) / 2
    return _share(won, ones[:, -1] * zeros[:, -1])


def _f1(draws: Draws) -> Values:
    """Of the label "1"; 0 where nothing is "1" and nothing was taken for it."""
    ones, times = draws.answers.ones, draws.times
    predicted = draws.answers.predicted == "1"
    hits, named = (weighted_sums(times, of) for of in (2.0 * ones * predicted, ones + predicted))
    return np.nan_to_num(_share(hits, named))


def _macro_f1(draws: Draws) -> Values:
    """The mean F1 of the classes that occur or are predicted."""
    answers, times = draws.answers, draws.times
    labels = np.unique([answers.expected, answers.predicted])
    right, predicted = (
        (of[:, None] == labels).astype(np.float64) for of in (answers.expected, answers.predicted)
    )
    of_class = _share(2.0 * (times @ (right * predicted)), times @ (right + predicted))
    return np.asarray(np.nanmean(of_class, axis=1))


def _share(part: Values, whole: Values) -> Values:
    """part / whole, NaN where the whole is nothing."""
    nothing = np.full(whole.shape, np.nan)
    return np.asarray(np.divide(part, whole, out=nothing, where=whole > 0))


def _average_precision(draws: Draws) -> Values:
    """The precision at every score that a "1" has, averaged over the "1"."""
    ones, every = draws.from_the_top
    precision = ones / np.maximum(every, 1.0)
    gained = np.einsum("ij,ij->i", np.diff(ones, axis=1), precision[:, 1:])
    return _share(ones[:, 0] * precision[:, 0] + gained, ones[:, -1])


def _recall_at_precision(draws: Draws) -> Values:
    """The largest share of the "1" that a threshold finds with a precision of 0.9; 0 if none."""
    ones, every = draws.from_the_top
    precise = ones >= (_PRECISION - 1e-12) * every
    last = precise.shape[1] - 1 - np.argmax(precise[:, ::-1], axis=1)
    found_ones = np.where(precise.any(axis=1), ones[np.arange(len(ones)), last], 0.0)
    return _share(found_ones, ones[:, -1])


def _lift(draws: Draws) -> Values:
    """The share of "1" among the tenth of rows that score highest, by the share among all. Of rows
    that tie at its end a part counts.
    """
    ones, every = draws.from_the_top
    tenth = every[:, -1:] * _TOP
    at = np.argmax(every >= tenth, axis=1)[:, None]
    before = np.maximum(at - 1, 0)
    below, ones_above = (
        np.where(at > 0, np.take_along_axis(of, before, axis=1), 0.0) for of in (every, ones)
    )
    own = np.take_along_axis(every, at, axis=1) - below
    rest = np.take_along_axis(ones, at, axis=1) - ones_above
    ones_above = ones_above + rest * (tenth - below) / np.maximum(own, 1.0)
    return _share(ones_above / tenth, ones[:, -1:] / every[:, -1:])[:, 0]


def _quantile_loss(level: float) -> Metric:
    """The pinball loss of a predicted quantile."""

    def of_units(answers: Answers) -> Values:
        short = -_errors(answers)
        return np.maximum(level * short, (level - 1) * short)

    return Metric("minimize", of_units=of_units)


def _rmse(draws: Draws) -> Values:
    squares = weighted_sums(draws.times, _errors(draws.answers) ** 2)
    return np.asarray(np.sqrt(squares / draws.times.sum(axis=1)))


_ACCURACY = Metric("maximize", of_units=_right)
METRICS: Mapping[Task, Mapping[str, Metric]] = {
    "ranking": {
        name: Metric(
            "minimize" if name == "mean_rank" else "maximize",
            of_units=lambda answers, of=of: of(answers.rank),  # type: ignore[misc]
        )
        for name, of in OF_RANKS.items()
    },
    "binary": {
        "accuracy": _ACCURACY,
        "log_loss": Metric("minimize", of_units=lambda answers: _surprise(_probability(answers))),
        "brier": Metric("minimize", of_units=lambda answers: (1 - _probability(answers)) ** 2),
        "auc": Metric("maximize", of_all=_auc),
        "average_precision": Metric("maximize", of_all=_average_precision),
        "f1": Metric("maximize", of_all=_f1),
        "lift_at_10": Metric("maximize", of_all=_lift),
        "recall_at_precision_90": Metric("maximize", of_all=_recall_at_precision),
    },
    "multiclass": {
        "accuracy": _ACCURACY,
        "log_loss": Metric("minimize", of_units=lambda answers: _surprise(answers.score)),
        "f1": Metric("maximize", of_all=_macro_f1),
    },
    "regression": {
        "mae": Metric("minimize", of_units=lambda answers: np.abs(_errors(answers))),
        "mse": Metric("minimize", of_units=lambda answers: _errors(answers) ** 2),
        "rmse": Metric("minimize", of_all=_rmse),
        **{name: _quantile_loss(level) for name, level in QUANTILES.items()},
    },
}


def fault(task: Task, expected: str, predicted: str, rank: int, score: float) -> str:
    """Why a row cannot be an answer of that task, or ""."""
    if not math.isfinite(score):
        return f"score {score}"
    if task == "ranking":
        if rank < 1:
            return f"rank {rank}"
        right = rank > 1 or expected == predicted
        return "" if right else "rank 1, but another entry was predicted"
    if rank:
        return f"rank {rank}, where nothing is ranked"
    if task == "regression":
        sound = all(_is_number(text) for text in (expected, predicted))
        return "" if sound else f"{expected!r} and {predicted!r} are not two finite numbers"
    if not 0 <= score <= 1:
        return f"score {score}, where it is a probability"
    if task == "binary" and not {expected, predicted} <= {"0", "1"}:
        return f"{expected!r} and {predicted!r}, where labels are 0 and 1"
    if task == "multiclass" and score > 0.5 and expected != predicted:
        return f"{predicted!r} was predicted, with probability {score} on {expected!r}"
    return ""


def probabilities_fault(
    expected: str, predicted: str, score: float, probabilities: Mapping[str, float]
) -> str:
    """Why these, of every class, cannot be the rounded probabilities of a multiclass row, or ""."""
    if not all(0 <= probability <= 1 for probability in probabilities.values()):
        return "a probability is not between 0 and 1"
    if abs(sum(probabilities.values()) - 1) > _ROUNDED * len(probabilities):
        return f"probabilities that sum to {sum(probabilities.values()):.6g}"
    if abs(probabilities.get(expected, 0.0) - score) > _ROUNDED:
        return f"score {score}, where the probability of {expected!r} is another"
    if probabilities.get(predicted, 0.0) < max(probabilities.values()) - _ROUNDED:
        return f"{predicted!r} was predicted, and another class is more probable"
    return ""


def value(metric: Metric, answers: Answers) -> float:
    """The metric of some rows; ValueError when there is none or it is not defined on them."""
    if not len(answers):
        raise ValueError("no unit to measure on")
    if metric.of_units is not None:
        return float(metric.of_units(answers).mean())
    assert metric.of_all is not None
    result = float(metric.of_all(Draws(answers, np.ones((1, len(answers)))))[0])
    if math.isnan(result):
        raise ValueError("it is not defined on these units")
    return result


def estimate(
    metric: Metric, answers: Answers, seed: int = 0, groups: Groups | None = None
) -> Estimate:
    """The metric with its percentile-bootstrap interval; ValueError as `value`, or for too few
    groups. Draws that it is not defined on (no "1" among them, say) are left out.
    """
    value(metric, answers)
    return estimates_of({"": metric}, answers, seed, groups)[""]


def estimates(
    task: Task, answers: Answers, seed: int = 0, groups: Groups | None = None
) -> dict[str, Estimate]:
    """Every metric of the task; one that is not defined on these units (the AUC where all are
    "0") is left out, and a gate that asks for it refuses. ValueError when there is no unit.
    """
    return estimates_of(METRICS[task], answers, seed, groups)


def estimates_of(
    metrics: Mapping[str, Metric],
    answers: Answers,
    seed: int = 0,
    groups: Groups | None = None,
) -> dict[str, Estimate]:
    """As `estimate`, of several metrics on the same draws, which take most of the time; those that
    are not defined on these units are left out. ValueError when there is no unit, or for too few
    groups.
    """
    if not len(answers):
        raise ValueError("no unit to measure on")
    points = {}
    for name, metric in metrics.items():
        with suppress(ValueError):
            points[name] = value(metric, answers)
    of_units = {name: of(answers) for name in points if (of := metrics[name].of_units) is not None}
    drawn: dict[str, list[Values]] = {name: [] for name in points}
    for times in drawn_times(len(answers), seed, groups):
        draws = Draws(answers, times)
        rows = times.sum(axis=1)
        for name, column in of_units.items():
            drawn[name].append(weighted_sums(times, column) / rows)
        for name in points.keys() - of_units.keys():
            of_all = metrics[name].of_all
            assert of_all is not None
            drawn[name].append(of_all(draws))
    estimated = {}
    for name, point in points.items():
        values = np.concatenate(drawn[name])
        low, high = bounds(values if name in of_units else values[~np.isnan(values)])
        estimated[name] = Estimate(point, min(low, point), max(high, point), len(answers))
    return estimated


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
