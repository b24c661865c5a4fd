"""Run one trial of a forecasting search: forecast from each origin, score, and save the model.

    python -m ml.automl.forecasting.trial --training-data DIR --model DIR --predictions DIR

The environment variable AZUREML_SWEEP_model has the sampled family and hyperparameters, AUTOML_JOB
the job's settings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml.automl import ensembles, metrics, rungs
from ml.automl.cache import FOLDER as CACHE
from ml.automl.cache import Cache
from ml.automl.ensembles import OutOfFoldPredictions
from ml.automl.forecasting import boosted, statistical
from ml.automl.forecasting import origins as rolling
from ml.automl.forecasting import panel as panels
from ml.automl.forecasting.families import ALWAYS
from ml.automl.forecasting.origins import Origins
from ml.automl.forecasting.panel import Panel
from ml.automl.forecasting.settings import Settings
from ml.automl.forecasting.statistical import Fits
from ml.automl.forecasting.weights import Weights, choose
from ml.automl.tables import of_every_trial
from ml.automl.trial import SAMPLED
from ml.serving.scoring import forecasters
from ml.serving.scoring.forecasters import FILE, Ensemble, Values
from ml.toolkit.automl import folders
from ml.toolkit.automl.cells import stop
from ml.toolkit.training.model_folder import FILE as SETTINGS
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, FORECASTS
from ml.toolkit.training.tracking import tracking

if TYPE_CHECKING:
    import pandas as pd

_PATHS = "forecasts.npz"
# Time limit of a trial's fits: the minimum of a share of the search's timeout, a share of the
# trial's timeout, and a number of seconds.
MOST_OF_TIME, MOST_OF_TRIAL, MOST_SECONDS = 0.2, 0.5, 600.0
# Number of years after the training data for which the model folder has holidays.
YEARS_OF_HOLIDAYS = 3


@dataclass(frozen=True)
class ForecastProblem:
    """The data and settings that all trials of a search share."""

    settings: Settings
    metric: str
    seed: int
    panel: Panel
    origins: Origins
    holidays: Sequence[str]

    @property
    def labels(self) -> Values:
        """Return the actual values (origins, series, horizon), flattened."""
        return rolling.actual(self.panel, self.origins).ravel()

    def out_of_fold(self, forecasts: Values) -> OutOfFoldPredictions:
        """Return forecasts (origins, series, horizon) with each scored origin as a fold."""
        return self.out_of_fold_at(self.origins.scored, forecasts)

    def out_of_fold_at(self, numbers: Sequence[int], forecasts: Values) -> OutOfFoldPredictions:
        """Return forecasts (origins, series, horizon) with each origin in `numbers` as a fold."""
        mask = rolling.scored_mask(self.panel, self.origins)
        places = np.arange(forecasts.size).reshape(forecasts.shape)
        rows = [places[number][mask[number]] for number in numbers]
        return OutOfFoldPredictions(rows, [forecasts.ravel()[row] for row in rows], self.labels)

    def score(self, out_of_fold: OutOfFoldPredictions) -> list[dict[str, float]]:
        """Return Azure ML's metrics of each fold.

        Errors are divided by the range of the target in the training data, as Azure ML does
        (how-to-understand-automated-ml, regression/forecasting).
        """
        target_range = float(np.nanmax(self.panel.target) - np.nanmin(self.panel.target)) or 1.0
        folds = self._metrics(out_of_fold, target_range)
        return [{name: float(value()) for name, value in fold.items()} for fold in folds]

    def error(self, out_of_fold: OutOfFoldPredictions) -> float:
        """Return the mean over the folds of the search's metric as an error; lower is better.

        If higher is better, the error is 1 minus the metric. A fold in which it is undefined has
        error 1. Errors are not divided by the target's range, which depends on later values.
        """
        is_error, errors = self.metric.startswith("normalized_"), list[float]()
        for fold in self._metrics(out_of_fold, target_range=1.0):
            value = float(fold[self.metric]()) if self.metric in fold else math.nan
            errors.append(1.0 if math.isnan(value) else value if is_error else 1.0 - value)
        return float(np.mean(errors))

    def _metrics(
        self, out_of_fold: OutOfFoldPredictions, target_range: float
    ) -> list[metrics.Defined]:
        folds = zip(out_of_fold.rows, out_of_fold.values, strict=True)
        return [
            metrics.defined("regression", out_of_fold.labels[rows], values, 0, target_range)
            for rows, values in folds
        ]


def main() -> None:
    """Run the trial that the arguments and environment variables describe."""
    parser = argparse.ArgumentParser(description="Fit one forecaster of a search.")
    for name in ("training-data", "model", "predictions"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    job = json.loads(os.environ["AUTOML_JOB"])
    sampled: dict[str, Any] = json.loads(os.environ[SAMPLED])
    name, members = str(sampled.pop("family")), sampled.pop("members", [])
    cache = Cache(rungs.of_search(options.predictions) / CACHE)
    files = [
        (str(path), path.stat().st_mtime_ns) for path in sorted(options.training_data.rglob("*"))
    ]
    source = json.dumps([job, files])
    with of_every_trial():
        problem = cache.get_or_compute(lambda: prepare(job, options.training_data), source)
    budget = seconds_of(job)
    with tracking() as tracker:
        tracker.parameters({"family": name, **sampled})
        began = time.perf_counter()
        if name == ensembles.VOTING:
            documents, forecasts, notes = _vote(
                problem, members, options.model, options.predictions
            )
        else:
            # Cache the fits: a search may sample the same settings again.
            key = json.dumps([name, sampled], sort_keys=True)
            fits = cache.get_or_compute(lambda: fit(problem, name, sampled, budget), source, key)
            documents, forecasts, notes = _saved(fits, options.model), fits.forecasts, fits.notes
        seconds = time.perf_counter() - began
        folds = problem.score(problem.out_of_fold(forecasts))
        everywhere = [metric for metric in folds[0] if all(metric in fold for fold in folds)]
        means = {metric: float(np.mean([fold[metric] for fold in folds])) for metric in everywhere}
        if problem.metric not in means:
            actual = f"`{problem.metric}` is undefined: the target has one value in a fold"
            hint = "primary_metric: normalized_root_mean_squared_error"
            stop("no-metric", actual, "several values in each fold", hint)
        table = forecast_table(problem, forecasts)
        write(problem, options.model, documents, forecasts, table)
        options.predictions.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(options.predictions / _PATHS, forecasts=forecasts)
        of_table, errors = measured(table)
        folds = [{**fold, "mase": error} for fold, error in zip(folds, errors, strict=True)]
        tracker.metrics({**means, **of_table, "training_seconds": seconds})
        facts = {
            **{"seed": problem.seed, "seconds": seconds},
            **{"hyperparameters": {"family": name, **sampled}},
            FACT: _facts(problem, folds, notes),
        }
        digest = seal(options.model, facts)
    for note in notes:
        print(f"forecasting: {note}")
    summary = ", ".join(f"{metric} {value:.3g}" for metric, value in of_table.items())
    print(
        f"model {options.model} {digest}: {name} {problem.metric} {means[problem.metric]:.5g}",
        summary,
        sep="; ",
    )


def seconds_of(job: Mapping[str, Any]) -> float:
    """Return the time limit of a trial's fits in seconds."""
    of_search, of_trial = (float(job.get(key) or math.inf) for key in ("seconds", "trial_seconds"))
    return min(MOST_SECONDS, MOST_OF_TIME * of_search, MOST_OF_TRIAL * of_trial)


def prepare(job: Mapping[str, Any], training: Path) -> ForecastProblem:
    """Read the series of a search and choose its origins; end the program if that is impossible."""
    settings = Settings.parse(job)
    panel = panels.read(training, settings)
    origins = rolling.origins(panel, settings)
    if settings.drops_short:
        panel = panels.without_short(panel, origins.cutoffs[0])
    for number in origins.scored:
        if not rolling.scored_mask(panel, origins)[number].any():
            cutoff, last = panel.grid[origins.cutoffs[number]], panel.grid[-1]
            actual = f"no series has values on both sides of {cutoff}, the cutoff of a fold"
            expected = f"series whose values reach the last time, {last}"
            hint = "correct wrong times, or lower n_cross_validations or cv_step_size"
            stop("few-times", actual, expected, hint)
    return ForecastProblem(
        settings, str(job["metric"]), int(job["seed"]), panel, origins, _holidays(settings, panel)
    )


def _holidays(settings: Settings, panel: Panel) -> list[str]:
    """Return the country's holidays as ISO dates, from the first year of training on."""
    if not settings.country:
        return []
    import holidays

    years = range(panel.grid[0].year, panel.grid[-1].year + YEARS_OF_HOLIDAYS + 1)
    return sorted(
        day.isoformat() for day in holidays.country_holidays(settings.country, years=years)
    )


def fit(problem: ForecastProblem, family: str, sampled: Mapping[str, Any], seconds: float) -> Fits:
    """Fit a family; return its forecasts at each origin, and the model fitted to all values."""
    cutoffs, horizon = problem.origins.cutoffs, problem.settings.horizon
    if family in ALWAYS:
        return statistical.naive(problem.panel, family, cutoffs, horizon)
    if family in statistical.FORECASTER_OF_FAMILY:
        return statistical.fit(problem.panel, family, cutoffs, horizon, seconds)
    args = (problem.settings, cutoffs, problem.holidays, problem.seed, seconds)
    return boosted.fit(problem.panel, family, sampled, *args)


def _saved(fits: Fits, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"file": fits.files.save(folder)} if fits.files is not None else {}
    return [{**fits.member, **files, "weight": 1.0}]


def _vote(
    problem: ForecastProblem, numbers: Sequence[int], folder: Path, predictions: Path
) -> tuple[list[dict[str, Any]], Values, Sequence[str]]:
    """Save a weighted ensemble of trials; return its members, forecasts and notes.

    The saved model's weights are fitted to all origins. The forecasts at each origin, which
    validate the ensemble, use weights fitted to earlier origins only.
    """
    trials = [rungs.of_trial(folder, number) for number in numbers]
    paths = []
    for number in numbers:
        with np.load(rungs.of_trial(predictions, number) / _PATHS, allow_pickle=False) as file:
            paths.append(file["forecasts"])
    settings = [json.loads((trial / SETTINGS).read_text(encoding="utf-8")) for trial in trials]
    families = [str(trial["hyperparameters"]["family"]) for trial in settings]
    weights, forecasts = combine(problem, families, paths)
    folder.mkdir(parents=True, exist_ok=True)
    members, notes = list[dict[str, Any]](), list[str]()
    for index, weight in weights.items():
        document = json.loads((trials[index] / FILE).read_text(encoding="utf-8"))
        notes += [note for note in settings[index][FACT]["notes"].values() if note not in notes]
        for member in document["members"]:
            renamed = {}
            if "file" in member:
                source = trials[index] / member["file"]
                renamed = {"file": f"member-{numbers[index]}{source.suffix}"}
                (folder / renamed["file"]).write_bytes(source.read_bytes())
            members.append({**member, **renamed, "weight": weight})
    return members, forecasts, notes


def combine(
    problem: ForecastProblem, families: Sequence[str], paths: Sequence[Values]
) -> tuple[Weights, Values]:
    """Return the final weights of the trials, and the ensemble's forecasts at each origin.

    `paths` has the forecasts of each trial; forecasts are (origins, series, horizon). At an origin,
    the weights depend only on errors at earlier origins.
    """
    first = problem.origins.calibrating
    has_values = rolling.scored_mask(problem.panel, problem.origins)[:first].any(axis=(1, 2))
    calibrating = [*map(int, np.flatnonzero(has_values))]
    numbers = [*calibrating, *problem.origins.scored]
    out_of_fold = [problem.out_of_fold_at(numbers, path) for path in paths]
    *earlier, weights = choose(out_of_fold, families, problem.error, len(calibrating))
    by_origin = [earlier[len(calibrating)]] * first + earlier[len(calibrating) :]
    votes = [
        sum(paths[member][origin] * weight for member, weight in by_origin[origin].items())
        for origin in range(len(by_origin))
    ]
    return weights, np.array(votes)


def forecast_table(problem: ForecastProblem, forecasts: Values) -> pd.DataFrame:
    """Return the table of `forecasts.json`: a row for each series, scored origin and step."""
    import pandas as pd

    panel, origins, steps = problem.panel, problem.origins, problem.settings.horizon
    mask, actual = rolling.scored_mask(panel, origins), rolling.actual(panel, origins)
    parts = []
    for number in origins.scored:
        cutoff = origins.cutoffs[number]
        low, high = _interval(problem, forecasts, forecasts[number], cutoff)
        # Leave out series without a scored value at this origin.
        rows = np.flatnonzero(mask[number].any(axis=1))
        columns = {"y": actual[number], "yhat": forecasts[number], "lo_80": low, "hi_80": high}
        part = {
            "unique_id": np.repeat(np.array(panel.names_of_series, object)[rows], steps),
            "ds": np.tile(panel.grid[cutoff + 1 : cutoff + 1 + steps], len(rows)),
            "cutoff": panel.grid[cutoff],
            "scale": np.repeat(_scales(panel.until(cutoff))[0][rows], steps),
        }
        parts.append(
            pd.DataFrame(part | {name: column[rows].ravel() for name, column in columns.items()})
        )
    return pd.concat(parts, ignore_index=True)


def _interval(
    problem: ForecastProblem, forecasts: Values, values: Values, cutoff: int
) -> tuple[Values, Values]:
    panel = problem.panel.until(cutoff)
    widths = rolling.widths(problem.panel, problem.origins, forecasts, cutoff)
    scales, floors = _scales(panel)
    return forecasters.interval(values, widths, scales[:, None], floors[:, None])


def _scales(panel: Panel) -> tuple[Values, Values]:
    """Return the scale of each series' errors and the lower bound of its intervals, (series,) each.

    The bound is 0 for a series without negative values, else NaN.
    """
    with np.errstate(invalid="ignore"):
        lowest = np.fmin.reduce(panel.target, axis=1)
    return rolling.scale(panel.target, panel.season), np.where(lowest >= 0, 0.0, np.nan)


def measured(table: pd.DataFrame) -> tuple[dict[str, float], list[float]]:
    """Return metrics of a table as `forecasts.json`, and the MASE of each origin.

    The metrics are `mase`, the mean over series and origins, and `coverage_80`.
    """
    rows = table[table["y"].notna()]
    covered = (rows["lo_80"] <= rows["y"]) & (rows["y"] <= rows["hi_80"])
    errors = (rows["y"] - rows["yhat"]).abs() / rows["scale"]
    of_series = errors.groupby([rows["cutoff"], rows["unique_id"]]).mean()
    of_table = {"mase": float(of_series.mean()), "coverage_80": float(covered.mean())}
    return of_table, of_series.groupby(level=0).mean().tolist()


def write(
    problem: ForecastProblem,
    folder: Path,
    members: Sequence[Mapping[str, Any]],
    forecasts: Values,
    table: pd.DataFrame,
) -> None:
    """Write `forecaster.json` and `forecasts.json`; end the program if a forecast is not finite."""
    panel, settings = problem.panel, problem.settings
    length = 2 * panel.season + max(
        [0, *(int(member["features"]["length"]) for member in members if "features" in member)]
    )
    history, last = panel.filled, panel.last
    scales, floors = _scales(panel)
    document = {
        **{"task": "forecasting", "target": settings.target, "time": settings.time},
        **{"ids": list(settings.ids), "known": list(panel.names), "horizon": settings.horizon},
        **{
            "frequency": str(panel.grid.freqstr),
            "season": panel.season,
            "level": forecasters.LEVEL,
        },
        "series": [list(key) for key in panel.ids],
        "last": [panel.grid[index].isoformat() for index in last],
        "history": [
            _numbers(row[max(0, end + 1 - length) : end + 1], length)
            for row, end in zip(history, last, strict=True)
        ],
        "scale": scales.tolist(),
        "floor": _numbers(floors, 0),
        "widths": rolling.widths(panel, problem.origins, forecasts, len(panel.grid) - 1).tolist(),
        "holidays": list(problem.holidays),
        "members": list(members),
    }
    folders.write_json(folder / FILE, document)
    table.to_json(
        folder / FORECASTS, orient="split", index=False, date_format="iso", double_precision=15
    )
    _, values = Ensemble(folder).forecast(range(len(panel.ids)))
    if not np.isfinite(values).all():
        name = panel.names_of_series[int(np.argmin(np.isfinite(values).all(axis=(1, 2))))]
        stop(
            "not-finite", f"the forecast of {name} is not finite", "numbers", "block this algorithm"
        )


def _numbers(values: Values, length: int) -> list[float | None]:
    """Return values for JSON: NaN becomes None, and shorter lists are left-padded with None."""
    numbers = [None if math.isnan(value) else float(value) for value in values]
    return [None] * (length - len(numbers)) + numbers


def _facts(
    problem: ForecastProblem, folds: Sequence[Mapping[str, float]], notes: Sequence[str]
) -> dict[str, Any]:
    """Return the record of the search for the model's settings.json: folds, rows, notes …"""
    panel, origins = problem.panel, problem.origins
    scored = [panel.grid[origins.cutoffs[index]] for index in origins.scored]
    short = len(panel.ids) - int(
        rolling.scored_mask(panel, origins)[origins.calibrating :].any(axis=(0, 2)).sum()
    )
    remarks = [*panel.notes, *([f"{short} series have too few values to score"] if short else [])]
    return {
        "metric": problem.metric,
        "validation": f"{len(scored)} origins, {scored[0]} to {scored[-1]}, "
        f"{origins.horizon} steps ahead of {len(panel.ids)} series",
        "over": "folds",
        "folds": list(folds),
        "rows": {"fitted": int((~np.isnan(panel.target)).sum()), "test": 0},
        "test": {},
        "columns": [],
        "guardrails": [{"check": "series", "finding": remark} for remark in remarks],
        "notes": {f"fallback {number}": note for number, note in enumerate(notes)},
    }


if __name__ == "__main__":
    main()
