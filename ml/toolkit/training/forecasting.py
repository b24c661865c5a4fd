"""Train and evaluate forecasters, for the train.py and evaluate.py of a time series project.

One LightGBM model forecasts every step of every series directly from features of the history
(`ml.serving.scoring.series`). Its intervals are split-conformal: the 10th and 90th percentile of
the scaled validation errors per step (Lei et al. 2018, Distribution-Free Predictive Inference for
Regression).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures import measurement
from ml.measures.contributions import Contributions, permuted
from ml.measures.evaluation import EvaluationRefused
from ml.measures.forecasting import seasonal_naive
from ml.measures.leakage import not_later
from ml.measures.measurement import VALIDATION, Features, Rows, Training
from ml.measures.reference import write_reference
from ml.measures.tasks import TASKS
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.series import (
    SPEC,
    TAILS,
    TREES,
    Forecaster,
    Spec,
    features,
    save,
    with_interval,
)
from ml.toolkit.data.datasets import TEST, TRAIN
from ml.toolkit.data.series import TASK, Panel, Unit, read_panel, write_train
from ml.toolkit.training import searched
from ml.toolkit.training.boosting import boost_lightgbm, contributions, threads
from ml.toolkit.training.model_folder import seal, unseal
from ml.toolkit.training.segments import checkpointed
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# Hyperparameters: arguments of train.py, which a sweep may search.
SETTINGS: Mapping[str, Any] = {
    "trees": 300,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_child_samples": 50,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "lambda_l2": 1.0,
}
FORECASTS = "forecasts.csv"
REFITS = (1, 2)
EXPLAINED, TIMED, PERMUTED = 500, 50, 100
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Examples:
    """The features and targets of the forecasts of a split."""

    units: Sequence[Unit]
    table: Floats  # (units × horizon, features): one row per step
    levels: Floats  # (units,): scale of the history
    scaled: Floats  # (units, horizon): actual values ÷ level, NaN if missing

    @classmethod
    def from_panel(cls, panel: Panel, split: str, spec: Spec) -> Examples:
        """Return the examples of a split."""
        units = panel.units(split)
        parts = [features(*panel.history(unit), spec) for unit in units]
        levels = np.array([level for _, level in parts])
        actual = np.array([panel.actual(unit) for unit in units])
        return cls(
            units,
            np.concatenate([example for example, _ in parts]),
            levels,
            actual / levels[:, None],
        )


@dataclass(frozen=True)
class Fitting:
    """Fits models to a panel; computes the training and validation examples once."""

    panel: Panel

    @cached_property
    def spec(self) -> Spec:
        """The model's spec without intervals, which need a fitted model."""
        head, values = self.panel.head, self.panel.values
        end = self.panel.cutoffs[VALIDATION][0]
        smallest = 0.0 if np.nanmin(values[:, :end]) >= 0 else None
        return Spec(head.season, head.horizon, [*head.known], [], [], smallest)

    @cached_property
    def train(self) -> Examples:
        """The training examples."""
        return Examples.from_panel(self.panel, TRAIN, self.spec)

    @cached_property
    def validation(self) -> Examples:
        """The validation examples."""
        return Examples.from_panel(self.panel, VALIDATION, self.spec)

    def fit(self, settings: Mapping[str, Any], seed: int) -> tuple[str, Spec, Floats]:
        """Fit a model; return (LightGBM's text, spec with intervals, validation forecasts).

        The forecasts are (units, horizon, 3): value, low, high.
        """
        import lightgbm as lgb

        parameters = dict(settings)
        trees = parameters.pop("trees")
        target = self.train.scaled.ravel()
        observed = ~np.isnan(target)
        parameters = {
            **{"objective": "l1", "bagging_freq": 1, "seed": seed, "deterministic": True},
            **{"force_row_wise": True, "num_threads": threads(), "verbosity": -1, **parameters},
        }
        data = lgb.Dataset(self.train.table[observed], target[observed])
        booster = boost_lightgbm(parameters, data, trees)
        scaled = booster.predict(self.validation.table).reshape(self.validation.scaled.shape)
        low, high = _ends(self.validation.scaled - scaled)
        spec = replace(
            self.spec, low=np.minimum(low, 0).tolist(), high=np.maximum(high, 0).tolist()
        )
        pairs = zip(scaled, self.validation.levels, strict=True)
        return (
            booster.model_to_string(),
            spec,
            np.array([with_interval(*pair, spec) for pair in pairs]),
        )


def _ends(errors: Floats) -> Floats:
    """Return each step's interval of errors (2, horizon), from errors (units, horizon) with NaN.

    The ends are the floor(0.1 (n + 1))-th and the ceil(0.9 (n + 1))-th of n sorted errors. An
    exchangeable new error is inside with a probability of at least 80 %.
    """
    count = int((~np.isnan(errors)).sum(axis=0).min())
    ranks = (math.floor(TAILS[0] * (count + 1)), math.ceil(TAILS[1] * (count + 1)))
    levels = np.clip(np.array(ranks) / max(count, 1), 0, 1)
    return np.asarray(np.nanquantile(errors, levels, axis=0, method="inverted_cdf"))


def train(schema: Path, arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; fit, calibrate, log and save one forecaster."""
    parser = argparse.ArgumentParser(description="Train one forecaster.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="the folder that a restart goes on from")
    parser.add_argument("--seed", type=int, default=0)
    for name, usual in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    settings = vars(parser.parse_args(arguments))
    names = ("data", "model", "checkpoints", "seed")
    data, folder, checkpoints, seed = (settings.pop(name) for name in names)
    fitting = Fitting(read_panel(data, schema))
    with tracking() as tracker:
        tracker.parameters({**settings, "seed": seed})
        began = time.perf_counter()
        with checkpointed(checkpoints):
            text, spec, scores = fitting.fit(settings, seed)
        seconds = time.perf_counter() - began
        metrics = _metrics(fitting.panel, scores)
        tracker.metrics({**metrics, "training_seconds": seconds})
        save(text, spec, folder)
        histories = [fitting.panel.history(unit) for unit in fitting.validation.units[:TIMED]]
        forecaster = Forecaster(folder)
        tracker.metrics(
            latency(lambda history: forecaster.forecast(*history), histories).as_metrics()
        )
        digest = seal(folder, {"seed": seed, "seconds": seconds, "hyperparameters": settings})
    print(f"model {folder} {digest}: {metrics}")


def split(schema: Path, arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; write the rows before the test as an MLTable for an AutoML job."""
    parser = argparse.ArgumentParser(description="Write the rows that an AutoML job may see.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--train", type=Path, required=True, help="the MLTable to write")
    options = parser.parse_args(arguments)
    write_train(options.data, schema, options.train)


def evaluate(schema: Path, model: str, arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; evaluate a forecaster with seasonal naive as the baseline.

    `model` is the endpoint's name. Also writes forecasts.csv with one row per test step. For a
    model of an AutoML job, the validation forecasts are the rolling-origin forecasts of its search.
    Exits if they are missing, or if the search has seen a test row.
    """
    parser = argparse.ArgumentParser(description="Measure a forecaster.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder that train wrote")
    parser.add_argument("--evaluation", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    panel = read_panel(options.data, schema)
    facts, digest = unseal(options.model)
    search = facts.pop(searched.FACT, {})
    forecaster, fitting = Forecaster(options.model), Fitting(panel)
    head, metric = panel.head, panel.head.primary_metric

    def scores(split: str, forecast: Callable[[Unit], Floats]) -> Rows:
        return panel.rows(split, np.array([forecast(unit) for unit in panel.units(split)]))

    def naive(unit: Unit) -> Floats:
        return seasonal_naive(panel.history(unit)[0], head.season, head.horizon)

    scored = scored_forecasts(options.model, panel) if search else {}

    def forecast(unit: Unit) -> Floats:
        if (unit.series, unit.cutoff) in scored:
            return scored[unit.series, unit.cutoff]
        series, until = panel.place(unit)
        return forecaster.forecast(*panel.history(unit), series=series, until=until)

    try:
        splits = {name: scores(name, forecast) for name in (VALIDATION, TEST)}
    except BadRequest as error:  # a series that is unknown to the AutoML job
        searched.stop("row-mismatch", str(error), "a search of these series")
    baseline = [
        row for name in splits for row in measurement.predict(TASK, name, scores(name, naive))
    ]
    refits = searched.refits(search, metric) or [
        _metrics(panel, fitting.fit(facts["hyperparameters"], facts["seed"] + more)[2])[
            f"{VALIDATION}_{metric}"
        ]
        for more in REFITS
    ]
    import lightgbm as lgb

    if search:
        names, table, explained = explain_searched(forecaster, panel)
    else:
        names = forecaster.spec.names()
        table = Examples.from_panel(panel, TEST, forecaster.spec).table[:EXPLAINED]
        explained = contributions(lgb.Booster(model_file=options.model / TREES), table)
    train_times, test_times = (
        [panel.times[step + head.horizon - 1].timestamp() for step in panel.cutoffs[TRAIN]],
        [panel.times[step].timestamp() for step in panel.cutoffs[TEST]],
    )
    with tracking() as tracker:
        try:
            evaluation = measurement.evaluate(
                options.evaluation,
                splits,
                Training(
                    panel.rows(TRAIN),
                    refits=refits,
                    threads=threads(),
                    **({"over": search["over"]} if search else {}),
                    **facts,
                ),
                Features(names, table),
                explained,
                task=TASK,
                primary_metric=metric,
                model=model,
                digest=digest,
                resampled="series",
                identified_by="series and cutoff",
                leakage=[not_later(train_times, test_times, head.time)],
                baseline=measurement.metrics_of(TASKS[TASK].metrics, baseline),
                baseline_from="seasonal naive",
            )
        except (EvaluationRefused, ValueError) as error:
            raise SystemExit(f"error[no-evaluation]: {error}") from error
        tracker.metrics(evaluation.values())
    write_forecasts(options.evaluation / FORECASTS, panel, np.asarray(splits[TEST].scores))
    # `ml watch` compares totals, whose actual values are known after the horizon.
    totals = np.asarray(splits[TEST].scores)[:, :, 0].sum(axis=1)
    actual = np.array([panel.actual(unit).sum() for unit in panel.units(TEST)])
    losses = np.abs(totals - actual)[~np.isnan(actual)].tolist()
    measured = {"total": losses} if len(losses) > 1 else {}
    write_reference(
        options.evaluation, digest, {}, {"total": ("numeric", totals.tolist())}, measured
    )
    print(evaluation.text())


def explain_searched(
    forecaster: Forecaster, panel: Panel
) -> tuple[list[str], Floats, Contributions | str]:
    """Return an AutoML forecaster's input names, their means, and their permutation importance.

    The inputs are the history, scaled by the series' level, and the known columns. Without known
    columns, it returns no inputs and a reason instead of importances.
    """
    if not panel.head.known:
        return [], np.empty((0, 0)), "a forecast of each series by its own past"
    units = panel.units(TEST)
    units = units[:: max(1, len(units) // PERMUTED)]
    requests = [panel.history(unit) for unit in units]
    longest, horizon = max(len(history) for history, _ in requests), panel.head.horizon
    levels = np.array([float(np.nanmean(np.abs(history))) or 1.0 for history, _ in requests])
    shapes = [
        np.pad(history / level, (longest - len(history), 0), constant_values=np.nan)
        for (history, _), level in zip(requests, levels, strict=True)
    ]

    def loss(rows: Sequence[Sequence[int]]) -> float:
        """Return the mean scaled error; a cell is the index of the row whose value it takes."""
        errors = []
        for unit, level, (shape, *columns) in zip(units, levels, rows, strict=True):
            known = {
                name: np.concatenate([np.zeros(longest), requests[number][1][name][-horizon:]])
                for name, number in zip(panel.head.known, columns, strict=True)
            }
            series, until = panel.place(unit)
            path = forecaster.forecast(shapes[shape] * level, known, series=series, until=until)
            errors.append(np.nanmean(np.abs(path[:, 0] - panel.actual(unit))) / level)
        return float(np.mean(errors))

    names = ["history", *panel.head.known]
    means = [
        [np.nanmean(shape[-horizon:]), *(values[-horizon:].mean() for values in known.values())]
        for shape, (_, known) in zip(shapes, requests, strict=True)
    ]
    rows = [[number] * len(names) for number in range(len(units))]
    return names, np.nan_to_num(np.array(means), nan=0.0), permuted(loss, rows, names)


def scored_forecasts(folder: Path, panel: Panel) -> dict[tuple[int, int], Floats]:
    """Return (series, cutoff) → the search's rolling-origin forecast (horizon, 3), for validation.

    Series without such a forecast get seasonal naive. Exits if the search scored other rows or has
    seen a test row.
    """
    import pandas as pd

    forecasts = pd.read_json(
        folder / searched.FORECASTS,
        orient="split",
        convert_dates=["ds", "cutoff"],
        dtype={"unique_id": str},
    )
    rows: dict[Any, pd.DataFrame] = dict([*forecasts.groupby(["unique_id", "cutoff"], sort=False)])
    document = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    seen = max(map(pd.Timestamp, document["last"]))
    times = [pd.Timestamp(time).tz_localize(None) for time in panel.times]
    first, head = times[panel.cutoffs[TEST][0]], panel.head
    expected = f"rows before {first}, and folds `horizon` steps apart"
    if seen >= first:
        searched.stop("row-mismatch", f"the search used rows up to {seen}", expected)
    units = [unit for unit in panel.units(VALIDATION) if times[unit.cutoff] <= seen]
    scored, cutoffs = {}, set()
    for unit in units:
        series_rows = rows.get((panel.names[unit.series], times[unit.cutoff - 1]))
        if series_rows is not None and np.allclose(
            series_rows["y"], panel.actual(unit), equal_nan=True
        ):
            scored[unit.series, unit.cutoff] = series_rows[["yhat", "lo_80", "hi_80"]].to_numpy()
            cutoffs.add(unit.cutoff)
    if {unit.cutoff for unit in units} - cutoffs:
        difference = "the search forecast other rows than those of validation"
        searched.stop("row-mismatch", difference, expected)
    for unit in units:
        naive = seasonal_naive(panel.history(unit)[0], head.season, head.horizon)
        scored.setdefault((unit.series, unit.cutoff), naive)
    return scored


def write_forecasts(path: Path, panel: Panel, scores: Floats) -> None:
    """Write one CSV row per test step: series, time, cutoff, actual, forecast, interval."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("unique_id", "ds", "cutoff", "y", "yhat", "lo_80", "hi_80"))
        for unit, rows in zip(panel.units(TEST), scores, strict=True):
            times = panel.times[unit.cutoff - 1 : unit.cutoff + panel.head.horizon]
            actual = ["" if np.isnan(value) else float(value) for value in panel.actual(unit)]
            for time, y, row in zip(times[1:], actual, rows.tolist(), strict=True):
                name, cutoff = panel.names[unit.series], times[0].isoformat()
                writer.writerow((name, time.isoformat(), cutoff, y, *row))


def _metrics(panel: Panel, scores: Floats) -> dict[str, float]:
    values = measurement.metric_values(TASK, panel.rows(VALIDATION, scores))
    return {f"{VALIDATION}_{name}": value for name, value in values.items()}
