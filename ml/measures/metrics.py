"""The metrics of all tasks, and the scored rows that they are computed from.

A metric is the mean of one value per unit (`of_units`), or a function of all units (`of_all`).
Paired comparisons of versions support both, on the same units or the same bootstrap draws. The
formulas are scikit-learn's (https://scikit-learn.org/stable/modules/model_evaluation.html), which a
test verifies.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.measures import detection, forecasting
from ml.measures.bootstrap import Groups, Values, bounds, drawn_times, weighted_sums
from ml.measures.ranking import METRICS as OF_RANKS
from ml.measures.schema import Estimate, StatedMetric

Goal = Literal["maximize", "minimize"]
Range = tuple[float, float]
# Probabilities are clipped to this distance from 0 and 1, as in scikit-learn's log_loss.
_EPS = float(np.finfo(np.float64).eps)
# The quantile level of each quantile loss.
QUANTILES: Mapping[str, float] = {"quantile_loss_10": 0.1, "quantile_loss_90": 0.9}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
# The share of rows for `lift_at_10`, and the precision for `recall_at_precision_90`.
_TOP, _PRECISION = 0.1, 0.9
_SHARE: Range = (0.0, 1.0)
_UP: Range = (0.0, math.inf)


@dataclass(frozen=True)
class ScoredRows:
    """Labels and predictions, one row per unit; fields that the task does not use are ignored.

    For custom metrics, binary labels and regression values are numbers instead of texts.
    """

    # Binary: "0" or "1"; multiclass: labels; regression: numbers as text; detection and
    # forecasting: texts of `ml.measures.detection` and `ml.measures.forecasting`.
    expected: NDArray[Any]
    predicted: NDArray[Any]  # as `expected`
    rank: NDArray[np.int64]  # ranking: rank of the right answer, from 1
    # Binary: probability of "1"; multiclass: probability of the right label; detection: sum of the
    # boxes' scores; forecasting: sum of the values.
    score: Values
    # Custom metric → (rows, 1), or (rows, 2) with a weight.
    custom: Mapping[str, Values] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> ScoredRows:
        """Return the scored rows of objects with the attributes of `Prediction`."""

        def column(name: str, kind: Any) -> NDArray[Any]:
            return np.array([getattr(row, name) for row in rows], dtype=kind)

        return cls(
            column("expected", np.str_),
            column("predicted", np.str_),
            column("rank", np.int64),
            column("score", np.float64),
            {
                name: np.array([row.custom[name] for row in rows], dtype=np.float64)
                for name in (rows[0].custom if rows else ())
            },
        )

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def ones(self) -> Values:
        """Binary: 1 for each row whose true label is "1", else 0."""
        positive = "1" if self.expected.dtype.kind == "U" else 1
        return np.asarray(self.expected == positive, dtype=np.float64)

    @cached_property
    def matches(self) -> detection.Matches:
        """Detection: the matches of predicted boxes and objects."""
        return detection.matches(self.expected.tolist(), self.predicted.tolist())

    @cached_property
    def forecasts(self) -> forecasting.Forecasts:
        """Forecasting: the parsed forecasts and actual values."""
        return forecasting.forecasts(self.expected.tolist(), self.predicted.tolist())

    @cached_property
    def from_the_top(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row order by falling score, and the last position in it of each distinct score."""
        order = np.argsort(-self.score, kind="stable")
        return order, np.flatnonzero(np.diff(self.score[order], append=-1.0))

    def __getitem__(self, rows: Any) -> ScoredRows:
        """Select rows by anything that indexes a numpy array."""
        custom = {name: values[rows] for name, values in self.custom.items()}
        labels = self.expected[rows], self.predicted[rows]
        return ScoredRows(*labels, self.rank[rows], self.score[rows], custom)


@dataclass(frozen=True)
class Draws:
    """Scored rows with bootstrap draws."""

    scored: ScoredRows
    times: Values  # (draws, rows): how often a draw contains a row

    @cached_property
    def average_precisions(self) -> Values:
        """Detection: the average precision (draws, overlaps)."""
        return detection.average_precisions(self.scored.matches, self.times)

    @cached_property
    def from_the_top(self) -> tuple[Values, Values]:
        """Binary: the number of "1" and of all rows with at least each distinct score.

        Both arrays are (draws, distinct scores), from the highest score.
        """
        order, ends = self.scored.from_the_top
        times = self.times.take(order, axis=1)
        ones = (times * self.scored.ones[order]).cumsum(axis=1)
        every = times.cumsum(axis=1)
        return (ones, every) if len(ends) == len(order) else (ones[:, ends], every[:, ends])


@dataclass(frozen=True)
class Metric:
    """A metric, defined by `of_units` or by `of_all`."""

    goal: Goal
    range: Range  # the lowest and the highest possible value; infinity if unbounded
    # Returns a value per row; the metric is their mean.
    of_units: Callable[[ScoredRows], Values] | None = None
    of_all: Callable[[Draws], Values] | None = None  # returns a value per draw; NaN if undefined


@dataclass(frozen=True)
class CustomMetric:
    """A metric that a project defines, computed at evaluation.

    `function` takes scored rows and the columns of the table (name → values) and returns a value
    per row; the metric is their mean. With `ratio` it returns (rows, 2): the metric is the sum of
    the first column divided by the sum of the second, which must not be negative. The values are
    stored in predictions.csv, so intervals and comparisons do not call the function. `code` is the
    sha256 of the function's file: values of different code are not comparable.
    """

    goal: Goal
    range: Range
    function: Callable[[ScoredRows, Mapping[str, NDArray[Any]]], Any] | None = None
    ratio: bool = False
    code: str = ""

    def values(
        self, name: str, scored: ScoredRows, columns: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float64]:
        """Call the project's function and return its values: (rows, 1) or (rows, 2).

        Raises ValueError if the shape is wrong, or a value is not finite or out of range.
        """
        assert self.function is not None
        try:
            result = np.asarray(self.function(scored, columns), dtype=np.float64)
        except Exception as error:  # project code may raise anything
            what = f"{type(error).__name__}: {error}"
            for line in traceback.extract_tb(error.__traceback__)[1:2]:  # the function's own
                what += f", {Path(line.filename).name}:{line.lineno}"
            raise ValueError(f"the metric `{name}` fails with {what}") from error
        form = (len(scored), 2) if self.ratio else (len(scored),)
        if result.shape != form:
            raise ValueError(f"the metric `{name}` gives {result.shape}, expected {form}")
        values = result.reshape(len(scored), -1)
        for row in values:
            if wrong := self.fault(row):
                raise ValueError(f"the metric `{name}` gives {wrong}")
        return values

    def fault(self, row: Sequence[float] | Values) -> str:
        """Return why these values cannot be the function's result for a row, or ""."""
        if len(row) != 1 + self.ratio or not all(math.isfinite(number) for number in row):
            return f"{[float(number) for number in row]}, not {1 + self.ratio} finite numbers"
        if self.ratio:
            return "" if row[1] >= 0 else f"the weight {row[1]:g}, which is negative"
        low, high = self.range
        return "" if low <= row[0] <= high else f"{row[0]:g}, out of its range {low:g} to {high:g}"

    def from_stored_values(self, name: str) -> Metric:
        """Return the metric computed from the stored value of each unit, without the function."""
        if self.ratio:

            def of_all(draws: Draws) -> Values:
                sums = (
                    weighted_sums(draws.times, column) for column in draws.scored.custom[name].T
                )
                return _by(*sums)

            return Metric(self.goal, self.range, of_all=of_all)
        return Metric(self.goal, self.range, of_units=lambda scored: scored.custom[name][:, 0])

    def stated(self) -> StatedMetric:
        """Return the metric's declaration for evaluation.json.

        Raises ValueError if the function's source file is not available.
        """
        code = self.code
        if self.function is not None:
            try:
                source = Path(inspect.getsourcefile(self.function) or "").read_bytes()
            except (TypeError, OSError) as error:
                raise ValueError(f"{self.function!r} is no function of a file: {error}") from None
            code = hashlib.sha256(source).hexdigest()
        return StatedMetric(self.goal, self.range, self.ratio, code)

    @classmethod
    def of_statement(cls, stated: StatedMetric) -> CustomMetric:
        """Return the metric of a declaration in evaluation.json, without its function.

        Raises ValueError if the declaration is invalid.
        """
        match stated:
            case StatedMetric(
                "maximize" | "minimize" as goal, (low, high), bool(ratio), str(code)
            ) if math.isfinite(low) and math.isfinite(high) and low < high:
                return cls(goal, (low, high), ratio=ratio, code=code)
        raise ValueError(f"{stated!r} is no goal with a range of two finite numbers")


def custom_metric_fault(name: str, known: Mapping[str, Metric]) -> str:
    """Return why `name` is invalid for a custom metric, or ""; `known` has the built-in metrics."""
    if name in known:
        return f"`{name}` is a metric of the framework: choose another name"
    return "" if _NAME.fullmatch(name) else f"`{name}` is no name such as `cost_per_case`"


def _right(scored: ScoredRows) -> Values:
    return np.asarray(scored.expected == scored.predicted, dtype=np.float64)


def _probability(scored: ScoredRows) -> Values:
    """Return the predicted probability of the true label (binary)."""
    return np.where(scored.expected == "1", scored.score, 1 - scored.score)


def _surprise(probability: Values) -> Values:
    return -np.log(np.clip(probability, _EPS, 1 - _EPS))


def _errors(scored: ScoredRows) -> Values:
    return np.asarray(
        scored.predicted.astype(np.float64) - scored.expected.astype(np.float64), dtype=np.float64
    )


def _auc(draws: Draws) -> Values:
    """Compute the AUC; a tie counts half (Hanley and McNeil 1982)."""
    ones, every = draws.from_the_top
    zeros = every - ones
    # The area under the ROC curve, one trapezium per distinct score.
    twice = np.einsum("ij,ij->i", ones[:, 1:] + ones[:, :-1], np.diff(zeros, axis=1))
    won = (ones[:, 0] * zeros[:, 0] + twice) / 2
    return _by(won, ones[:, -1] * zeros[:, -1])


def _f1(draws: Draws) -> Values:
    """Compute the F1 score of the label "1"; 0 if it is neither expected nor predicted."""
    ones, times = draws.scored.ones, draws.times
    predicted = draws.scored.predicted == "1"
    hits, named = (
        weighted_sums(times, column) for column in (2.0 * ones * predicted, ones + predicted)
    )
    return np.nan_to_num(_by(hits, named))


def _rate(predicted: str, expected: str) -> Callable[[Draws], Values]:
    """Return the metric: share of rows labelled `expected` that are predicted as `predicted`."""

    def of_all(draws: Draws) -> Values:
        rows = (draws.scored.ones == float(expected)).astype(np.float64)
        wrong = rows * (draws.scored.predicted == predicted)
        return _by(*(weighted_sums(draws.times, column) for column in (wrong, rows)))

    return of_all


def _macro_f1(draws: Draws) -> Values:
    """Compute the macro F1 over the classes that occur as labels or predictions."""
    scored, times = draws.scored, draws.times
    labels = np.unique([scored.expected, scored.predicted])
    right, predicted = (
        (column[:, None] == labels).astype(np.float64)
        for column in (scored.expected, scored.predicted)
    )
    of_class = _by(2.0 * (times @ (right * predicted)), times @ (right + predicted))
    return np.asarray(np.nanmean(of_class, axis=1))


def _by(part: Values, total: Values) -> Values:
    """Return part / total; NaN if the total is 0."""
    nothing = np.full(total.shape, np.nan)
    return np.asarray(np.divide(part, total, out=nothing, where=total > 0))


def _average_precision(draws: Draws) -> Values:
    """Compute the average precision: the mean precision at the score of each "1"."""
    ones, every = draws.from_the_top
    precision = ones / np.maximum(every, 1.0)
    gained = np.einsum("ij,ij->i", np.diff(ones, axis=1), precision[:, 1:])
    return _by(ones[:, 0] * precision[:, 0] + gained, ones[:, -1])


def _recall_at_precision(draws: Draws) -> Values:
    """Compute the largest recall with a precision of at least 0.9; 0 if no threshold has that."""
    ones, every = draws.from_the_top
    precise = ones >= (_PRECISION - 1e-12) * every
    last = precise.shape[1] - 1 - np.argmax(precise[:, ::-1], axis=1)
    found_ones = np.where(precise.any(axis=1), ones[np.arange(len(ones)), last], 0.0)
    return _by(found_ones, ones[:, -1])


def _lift(draws: Draws) -> Values:
    """Compute the lift: the share of "1" in the top tenth by score ÷ the share in all rows.

    Rows with the score at the cut-off count proportionally.
    """
    ones, every = draws.from_the_top
    tenth = every[:, -1:] * _TOP
    cut = np.argmax(every >= tenth, axis=1)[:, None]
    before = np.maximum(cut - 1, 0)
    below, ones_above = (
        np.where(cut > 0, np.take_along_axis(column, before, axis=1), 0.0)
        for column in (every, ones)
    )
    inside = np.take_along_axis(every, cut, axis=1) - below
    ones_inside = np.take_along_axis(ones, cut, axis=1) - ones_above
    ones_above = ones_above + ones_inside * (tenth - below) / np.maximum(inside, 1.0)
    return _by(ones_above / tenth, ones[:, -1:] / every[:, -1:])[:, 0]


def _quantile_loss(level: float) -> Metric:
    """Return the pinball loss of a predicted quantile as a metric."""

    def of_units(scored: ScoredRows) -> Values:
        short = -_errors(scored)
        return np.maximum(level * short, (level - 1) * short)

    return Metric("minimize", _UP, of_units=of_units)


def _rmse(draws: Draws) -> Values:
    squares = weighted_sums(draws.times, _errors(draws.scored) ** 2)
    return np.asarray(np.sqrt(squares / draws.times.sum(axis=1)))


def _miscounted(scored: ScoredRows) -> Values:
    """Return the absolute error of the object count; boxes count from a score of CERTAIN on."""
    counts = [
        (detection.certain(boxes), len(detection.read(truth, 4)))
        for boxes, truth in zip(scored.predicted.tolist(), scored.expected.tolist(), strict=True)
    ]
    return np.array([abs(ours - right) for ours, right in counts], dtype=np.float64)


def _ratio_of_steps(
    part: Callable[[forecasting.Forecasts], Values],
    total: Callable[[forecasting.Forecasts], Values],
) -> Callable[[Draws], Values]:
    """Return a metric: the sum of `part` ÷ the sum of `total`, over all observed steps."""

    def of_all(draws: Draws) -> Values:
        forecasts = draws.scored.forecasts
        observed = ~np.isnan(forecasts.actual)
        sums = (np.where(observed, values(forecasts), 0.0).sum(axis=1) for values in (part, total))
        return _by(*(weighted_sums(draws.times, column) for column in sums))

    return of_all


_ACCURACY = Metric("maximize", _SHARE, of_units=_right)
RANKING: Mapping[str, Metric] = {
    name: Metric(
        "minimize" if name == "mean_rank" else "maximize",
        (1.0, math.inf) if name == "mean_rank" else _SHARE,
        of_units=lambda scored, function=function: function(scored.rank),  # type: ignore[misc]
    )
    for name, function in OF_RANKS.items()
}
BINARY: Mapping[str, Metric] = {
    "accuracy": _ACCURACY,
    "log_loss": Metric("minimize", _UP, of_units=lambda scored: _surprise(_probability(scored))),
    "brier": Metric("minimize", _SHARE, of_units=lambda scored: (1 - _probability(scored)) ** 2),
    "auc": Metric("maximize", _SHARE, of_all=_auc),
    "average_precision": Metric("maximize", _SHARE, of_all=_average_precision),
    "f1": Metric("maximize", _SHARE, of_all=_f1),
    "false_positive_rate": Metric("minimize", _SHARE, of_all=_rate("1", "0")),
    "false_negative_rate": Metric("minimize", _SHARE, of_all=_rate("0", "1")),
    "selection_rate": Metric(
        "maximize", _SHARE, of_units=lambda scored: (scored.predicted == "1").astype(np.float64)
    ),
    "lift_at_10": Metric("maximize", (0.0, 1 / _TOP), of_all=_lift),
    "recall_at_precision_90": Metric("maximize", _SHARE, of_all=_recall_at_precision),
}
MULTICLASS: Mapping[str, Metric] = {
    "accuracy": _ACCURACY,
    "log_loss": Metric("minimize", _UP, of_units=lambda scored: _surprise(scored.score)),
    "f1": Metric("maximize", _SHARE, of_all=_macro_f1),
}
REGRESSION: Mapping[str, Metric] = {
    "mae": Metric("minimize", _UP, of_units=lambda scored: np.abs(_errors(scored))),
    "mse": Metric("minimize", _UP, of_units=lambda scored: _errors(scored) ** 2),
    "rmse": Metric("minimize", _UP, of_all=_rmse),
    **{name: _quantile_loss(level) for name, level in QUANTILES.items()},
}
DETECTION: Mapping[str, Metric] = {
    "map_50": Metric("maximize", _SHARE, of_all=lambda draws: draws.average_precisions[:, 0]),
    "map_50_95": Metric(
        "maximize", _SHARE, of_all=lambda draws: draws.average_precisions.mean(axis=1)
    ),
    "count_error": Metric("minimize", _UP, of_units=_miscounted),
}
# Metrics without a better direction: the gate `forecasting` bounds coverage on both sides, and
# selection rates only compare groups.
UNDIRECTED = frozenset({"coverage", "selection_rate"})
# Errors are scaled per unit, so that series of all sizes have equal weight; `wape` weighs by size.
FORECASTING: Mapping[str, Metric] = {
    "mase": Metric(
        "minimize",
        _UP,
        of_units=lambda scored: np.nanmean(scored.forecasts.scaled_errors, axis=1),
    ),
    # Below 1 the model is better than seasonal naive.
    "relative_mase": Metric(
        "minimize",
        _UP,
        of_all=_ratio_of_steps(lambda rows: rows.scaled_errors, lambda rows: rows.naive_errors),
    ),
    "wape": Metric(
        "minimize",
        _UP,
        of_all=_ratio_of_steps(
            lambda rows: np.abs(rows.actual - rows.value), lambda rows: np.abs(rows.actual)
        ),
    ),
    "coverage": Metric(
        "maximize",
        _SHARE,
        of_all=_ratio_of_steps(lambda rows: rows.covered, lambda rows: np.ones_like(rows.actual)),
    ),
    "interval_score": Metric(
        "minimize",
        _UP,
        of_units=lambda scored: np.nanmean(scored.forecasts.interval_scores, axis=1),
    ),
}


def value(metric: Metric, scored: ScoredRows) -> float:
    """Return a metric's value; raise ValueError if it is undefined or there are no rows."""
    if not len(scored):
        raise ValueError("no unit to measure on")
    if metric.of_units is not None:
        return float(metric.of_units(scored).mean())
    assert metric.of_all is not None
    result = float(metric.of_all(Draws(scored, np.ones((1, len(scored)))))[0])
    if math.isnan(result):
        raise ValueError("it is not defined on these units")
    return result


def values(metrics: Mapping[str, Metric], scored: ScoredRows) -> dict[str, float]:
    """Return metric → value; metrics that are undefined on these rows are omitted."""
    measured = {}
    for name, metric in metrics.items():
        with suppress(ValueError):
            measured[name] = value(metric, scored)
    return measured


def estimate(
    metric: Metric, scored: ScoredRows, seed: int = 0, groups: Groups | None = None
) -> Estimate:
    """Return the metric with its percentile-bootstrap interval.

    Draws on which it is undefined (such as without any "1") are left out. Raises ValueError as
    `value` does, and for too few groups.
    """
    value(metric, scored)
    return estimates({"": metric}, scored, seed, groups)[""]


def estimates(
    metrics: Mapping[str, Metric],
    scored: ScoredRows,
    seed: int = 0,
    groups: Groups | None = None,
) -> dict[str, Estimate]:
    """Return several metrics as `estimate` does, but with shared draws, which are slow to make.

    Metrics that are undefined on these units (such as the AUC if all are "0") are omitted; a gate
    that requires one fails. Raises ValueError without units, or for too few groups.
    """
    if not len(scored):
        raise ValueError("no unit to measure on")
    points = values(metrics, scored)
    of_units = {name: f(scored) for name in points if (f := metrics[name].of_units) is not None}
    drawn: dict[str, list[Values]] = {name: [] for name in points}
    for times in drawn_times(len(scored), seed, groups):
        draws = Draws(scored, times)
        rows = times.sum(axis=1)
        for name, column in of_units.items():
            drawn[name].append(weighted_sums(times, column) / rows)
        for name in points.keys() - of_units.keys():
            of_all = metrics[name].of_all
            assert of_all is not None
            drawn[name].append(of_all(draws))
    estimated = {}
    for name, point in points.items():
        of_draws = np.concatenate(drawn[name])
        low, high = bounds(of_draws if name in of_units else of_draws[~np.isnan(of_draws)])
        estimated[name] = Estimate(point, min(low, point), max(high, point), len(scored))
    return estimated
