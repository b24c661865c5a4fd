"""Run one trial of a search: fit and validate on each fold, fit on all rows, save the model.

    python -m ml.automl.trial --training-data DIR --model DIR --predictions DIR …

The environment variable AZUREML_SWEEP_model has the sampled family and hyperparameters, AUTOML_JOB
the settings of data and validation.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import encoding, ensembles, guardrails, rungs
from ml.automl.cache import FOLDER as CACHE
from ml.automl.cache import Cache
from ml.automl.calibration import FEWEST, calibrate, rarest
from ml.automl.ensembles import OutOfFoldPredictions
from ml.automl.models import families, sampling, trees
from ml.automl.models.estimators import Fitted, Numbers
from ml.automl.models.families import Family
from ml.automl.problem import Job, Problem, prepare
from ml.automl.tables import of_every_trial
from ml.automl.validation import Rows
from ml.serving.scoring.columns import FILE as COLUMNS
from ml.serving.scoring.members import Members
from ml.toolkit.automl import folders
from ml.toolkit.automl.cells import stop
from ml.toolkit.training.model_folder import FILE as SETTINGS
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, content
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# The environment variable with the sampled values.
SAMPLED = "AZUREML_SWEEP_model"
# Number of fits with different seeds if there is one validation set: they measure how much the
# score depends on the seed. With many rows, it depends less and a fit takes longer.
SEEDS, SEEDS_OF_MANY = 3, 2
# The maximum share of a search's time limit for the boosted trees of one trial, over all folds.
MOST_OF_TIME = 0.15
# Maximum rows to compare the saved with the fitted model, and to measure the latency.
COMPARED, TIMED = 2_000, 50


@dataclass(frozen=True)
class Trial:
    """The results of a fit: validation predictions, training rows and notes."""

    out_of_fold: OutOfFoldPredictions
    fitted: Rows  # training rows of the saved model
    notes: Mapping[str, str] = field(default_factory=dict)  # topic → note for the leaderboard


def main() -> None:
    """Run the trial that the arguments and environment variables describe."""
    parser = argparse.ArgumentParser(description="Fit one model of a search.")
    for name in ("training-data", "validation-data", "test-data", "model", "predictions"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    sampled: dict[str, Any] = json.loads(os.environ[SAMPLED])
    name, members = sampled.pop("family"), sampled.pop("members", [])
    sources = options.training_data, options.validation_data, options.test_data
    with of_every_trial():
        job = Job(json.loads(os.environ["AUTOML_JOB"]))
        problem = prepare(job, *sources, Cache(rungs.of_search(options.predictions) / CACHE))
    with tracking() as tracker:
        tracker.parameters({"family": name, **sampled})
        began = time.perf_counter()
        outputs = options.model, options.predictions
        if name in ensembles.NAMES:
            combine = _vote if name == ensembles.VOTING else _stack
            trial = combine(problem, _members(problem, members, *outputs), options.model)
        else:
            trial = _fit(problem, families.of_task(job.task)[name], sampled, *outputs)
        seconds = time.perf_counter() - began
        out_of_fold = trial.out_of_fold
        folds = [
            problem.score(*fold) for fold in zip(out_of_fold.rows, out_of_fold.values, strict=True)
        ]
        everywhere = [metric for metric in folds[0] if all(metric in fold for fold in folds)]
        means = {metric: float(np.mean([fold[metric] for fold in folds])) for metric in everywhere}
        if (primary := job.metric) not in means:
            actual = f"`{primary}` is undefined on the validation rows"
            if job.task != "regression":
                stop("no-metric", actual, "validation rows of at least two classes")
            actual += f": `{job.target}` is constant in a fold"
            hint = "primary_metric: normalized_root_mean_squared_error"
            stop("no-metric", actual, "several values in each fold", hint)
        scores = [fold[primary] for fold in folds]
        # np.std of equal scores may be 1e-16 instead of 0, since their mean is rounded.
        spread = {f"{primary}_std": float(np.ptp(scores) and np.std(scores, ddof=1))}
        spread = spread if len(scores) > 1 else {}
        options.predictions.mkdir(parents=True, exist_ok=True)
        out_of_fold.save(options.predictions)
        served = Members(options.model)
        document = json.loads((options.model / COLUMNS).read_text(encoding="utf-8"))
        rows = problem.matrix(document, problem.fitted[:TIMED])
        timed = latency(served.predict, [row.reshape(1, -1).astype(np.float64) for row in rows])
        facts = {
            **{"seed": job.seed, "seconds": seconds},
            **{"hyperparameters": {"family": name, **sampled}},
            FACT: _facts(problem, trial, folds, served, document),
        }
        tracker.metrics({**means, **spread, "training_seconds": seconds, **timed.as_metrics()})
        digest = seal(options.model, facts)
    deviation = "".join(f" ± {value:.2g}" for value in spread.values())
    print(f"model {options.model} {digest}: {name} {primary} {means[primary]:.5g}{deviation}")


def _fit(
    problem: Problem, family: Family, sampled: Mapping[str, Any], folder: Path, predictions: Path
) -> Trial:
    """Fit a family on each fold, then on all rows, and save that model in `folder`.

    With a large table, fit a sample first, and stop there if the trial is weak (`rungs`).
    """
    settings = {key: value for key, value in sampled.items() if key != "balance"}
    balance, notes = str(sampled.get("balance", "none")), dict[str, str]()
    if balance != "none" and (why := _why_not_balanced(problem)):
        notes["balance"] = f"`{balance}` not applied: {why}"
        balance = "none"
    fitting = _Fitting(problem, family, settings, balance)
    train, validation = problem.folds[0]
    if size := rungs.size(train):
        sample = problem.sample(train, size)
        model = fitting.fit(problem.encoding(sample), sample, problem.job.seed)
        out_of_fold = OutOfFoldPredictions(
            [validation], [model.predict(validation)], problem.labels
        )
        if why := rungs.early_stop_reason(size, problem.value(out_of_fold), predictions):
            return _saved(
                model, family, folder, Trial(out_of_fold, sample, {**notes, "stopped": why})
            )
    values, counted, last = fitting.validate()
    if last is None:
        document = problem.encoding(problem.fitted)
        last = fitting.fit(document, problem.fitted, problem.job.seed, **counted)
    rows = [validation for _, validation in problem.folds] * (len(values) // len(problem.folds))
    if rounds := counted.get("n_estimators"):
        notes["trees"] = f"{rounds} boosted trees"
    trial = Trial(OutOfFoldPredictions(rows, values, problem.labels), problem.fitted, notes)
    return _saved(last, family, folder, trial)


def _why_not_balanced(problem: Problem) -> str:
    """Return why the classes must not be balanced; "" if they may.

    Balancing distorts probabilities, so it needs enough validation rows for a calibration.
    """
    weights = problem.table.weights
    of_all = np.ones(len(problem.table)) if weights is None else weights
    validation = [rows for _, rows in problem.folds]
    count = rarest(problem.labels, validation, of_all, len(problem.classes))
    if count >= FEWEST:
        return ""
    return f"calibration needs {FEWEST} validation rows of the rarest class, not {count}"


@dataclass(frozen=True)
class _Model:
    """A fitted model with `document`, the content of columns.json that encodes its inputs."""

    problem: Problem
    document: dict[str, Any]
    fitted: Fitted

    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """Return predictions for these rows, in the target's original units."""
        table = self.problem.matrix(self.document, rows)
        predictions = encoding.columns(self.document).predict_imputed(self.fitted.predict, table)
        return self.problem.in_units(predictions)


@dataclass(frozen=True)
class _Fitting:
    """Fits models of a family with sampled settings."""

    problem: Problem
    family: Family
    settings: Mapping[str, Any]
    balance: str

    def numbers(self, document: Mapping[str, Any], rows: Rows, seed: int) -> Numbers:
        """Return the training rows with balanced classes.

        Callers should not keep a reference, so that the fit can free the memory.
        """
        return sampling.balanced(self.problem.numbers(document, rows), self.balance, seed)

    def fit(self, document: dict[str, Any], rows: Rows, seed: int, **counted: int) -> _Model:
        """Return a model fitted to these rows; `counted` may have `n_estimators`."""
        settings = {**self.settings, **counted}
        fitted = self.family.fit(self.numbers(document, rows, seed), settings, seed)
        return _Model(self.problem, document, fitted)

    def validate(self) -> tuple[list[NDArray[np.float64]], dict[str, int], _Model | None]:
        """Return validation predictions, settings for the final fit, and the final model or None.

        The predictions are by fold, or by seed with one fold. The settings may have `n_estimators`
        from early stopping. There is a final model if the fold was trained on all training rows,
        which is so with separate validation data.
        """
        problem, seeds, counted = self.problem, [self.problem.job.seed], dict[str, int]()
        is_drawn = self.family.seeded or self.balance in sampling.DRAWN
        if len(problem.folds) > 1 and self.family.grow is not None:
            return *self._grown([(*fold, fold[1]) for fold in problem.folds]), None
        if len(problem.folds) == 1:
            train, _ = problem.folds[0]
            more = range(SEEDS_OF_MANY if rungs.size(train) else SEEDS)
            seeds = [problem.job.seed + offset for offset in more]
            rows, early_stopping = problem.divided.split_early_stopping(train)
            if self.family.grow is not None and len(early_stopping):
                _, counted = self._grown([(rows, early_stopping, early_stopping)], 1 + len(seeds))
        values, last = [], None
        for train, validation in problem.folds:
            document = problem.encoding(train)
            for seed in seeds if is_drawn else seeds[:1]:
                model = self.fit(document, train, seed, **counted)
                last = last or (model if len(train) == len(problem.fitted) else None)
                values.append(model.predict(validation))
        return (values if is_drawn else values * len(seeds)), counted, last

    def _grown(
        self, folds: Sequence[tuple[Rows, Rows, Rows]], parts: int = 1
    ) -> tuple[list[NDArray[np.float64]], dict[str, int]]:
        """Grow the trees of all folds with early stopping.

        A fold has (training rows, early stopping rows, rows to predict). Returns the predictions of
        each fold, and `n_estimators` for the final fit. The time limit is the trial's, divided by
        `parts`.
        """
        problem, grow, seed = self.problem, self.family.grow, self.problem.job.seed
        assert grow is not None
        documents = [problem.encoding(train) for train, _, _ in folds]
        growing = [
            grow(
                self.numbers(document, train, seed),
                problem.numbers(document, early_stopping, are_fitted=False),
                problem.job.metric,
                self.settings,
                seed,
            )
            for document, (train, early_stopping, _) in zip(documents, folds, strict=True)
        ]
        most = int(self.settings.get("n_estimators", trees.MOST))
        fewest = min(most, trees.fewest(float(self.settings.get("learning_rate", trees.RATE))))
        patience = trees.patience(min(len(train) for train, _, _ in folds))
        seconds = MOST_OF_TIME * problem.job.seconds / parts
        counts, of_all = trees.grow(growing, most, patience, seconds, fewest)
        of_folds = zip(growing, counts, documents, folds, strict=True)
        values = [
            _Model(problem, document, booster.cut(count)).predict(answered)
            for booster, count, document, (_, _, answered) in of_folds
        ]
        return values, {"n_estimators": of_all}


def _saved(model: _Model, family: Family, folder: Path, trial: Trial) -> Trial:
    """Save a single model in `folder`, compare it with the fitted one, and calibrate it.

    Returns the trial, with calibrated predictions if a calibration is used.
    """
    problem = model.problem
    folder.mkdir(parents=True, exist_ok=True)
    member: dict[str, Any] = {"file": model.fitted.save(folder), "weight": 1.0}
    folders.write_json(folder / COLUMNS, model.document)
    folders.write(folder, problem.prediction_fields, [member])
    rows = problem.folds[0][1][:COMPARED]
    numbers = problem.matrix(model.document, rows).astype(np.float64)
    served = encoding.columns(model.document).predict_imputed(Members(folder).predict, numbers)
    folders.compare(model.predict(rows), served, problem.target_range, in_steps=family.in_steps)
    if problem.task == "regression":
        return trial
    args = (trial.out_of_fold, problem.value, problem.job.seed, problem.table.weights)
    calibration, out_of_fold, sentence = calibrate(*args)
    if calibration is None:
        return trial
    member["calibration"] = dict(calibration)
    folders.write(folder, problem.prediction_fields, [member])
    return replace(trial, out_of_fold=out_of_fold, notes={**trial.notes, "calibration": sentence})


@dataclass(frozen=True)
class _Member:
    """An earlier trial of this search, as a candidate for an ensemble."""

    folder: Path
    out_of_fold: OutOfFoldPredictions
    family: str


def _members(
    problem: Problem, numbers: Sequence[int], folder: Path, predictions: Path
) -> list[_Member]:
    """Return the trials with these numbers, best first, except those that stopped early.

    Ends the program if fewer than two remain.
    """
    members = []
    for number in numbers:
        model = rungs.of_trial(folder, number)
        settings = json.loads((model / SETTINGS).read_text(encoding="utf-8"))
        if "stopped" not in settings[FACT]["notes"]:
            out_of_fold = OutOfFoldPredictions.load(
                rungs.of_trial(predictions, number), problem.labels
            )
            members.append(_Member(model, out_of_fold, settings["hyperparameters"]["family"]))
    if len(members) < 2:
        actual = f"{len(members)} trials were trained on all rows"
        stop("few-members", actual, "two or more", "raise `limits.max_trials` or its timeout")
    return members


def _vote(problem: Problem, members: Sequence[_Member], folder: Path) -> Trial:
    """Save the weighted ensemble of trials with the best out-of-fold predictions; return it."""
    weights = ensembles.choose([member.out_of_fold for member in members], problem.value)
    of_folders = {members[index].folder: weight for index, weight in weights.items()}
    entries = ensembles.gather(of_folders, folder)
    folders.write(folder, problem.prediction_fields, entries)
    chosen = [members[index].out_of_fold for index in weights]
    return Trial(ensembles.mean(chosen, list(weights.values())), problem.fitted)


def _stack(problem: Problem, members: Sequence[_Member], folder: Path) -> Trial:
    """Save a stack: a meta-model fitted to the out-of-fold predictions of the best trials.

    Its own validation predictions are cross-fitted.
    """
    members = [members[index] for index in ensembles.stacked([member.family for member in members])]
    learners = families.META_LEARNERS[problem.job.task]
    kind = (problem.job.settings.get("stack") or {}).get("stack_meta_learner_type", "none")
    fit_meta = learners.get(kind) or next(iter(learners.values()))

    def fit(table: Any, rows: Rows) -> Fitted:
        every = problem.table.weights
        numbers = Numbers(
            table.astype(np.float32),
            problem.standardized(problem.labels[rows]),
            None if every is None else every[rows],
            problem.task,
            len(problem.classes),
            featurized=False,
        )
        try:
            return fit_meta(numbers, {}, problem.job.seed)
        except ValueError as error:
            hint = "add rows, or set enable_stack_ensemble: false"
            stop("meta-model", str(error).splitlines()[0], "more rows of each class", hint)

    def predictor(table: Any, rows: Rows) -> ensembles.Predict:
        model = fit(table, rows)
        return lambda inputs: problem.in_units(model.predict(inputs.astype(np.float32)))

    stack_inputs = ensembles.stack_inputs([member.out_of_fold for member in members])
    stack_inputs = replace(
        stack_inputs, values=list(map(problem.standardized, stack_inputs.values))
    )
    cross_fitted = ensembles.cross_fitted(stack_inputs, predictor, problem.job.seed)
    meta = fit(stack_inputs.all[0], np.concatenate(stack_inputs.rows))
    entries = ensembles.gather({member.folder: 1 / len(members) for member in members}, folder)
    file = folder / meta.save(folder)
    file = file.rename(file.with_stem("meta"))
    folders.write(folder, problem.prediction_fields, entries, file.name)
    document = json.loads((folder / COLUMNS).read_text(encoding="utf-8"))
    rows = problem.matrix(document, problem.folds[0][1][:COMPARED]).astype(np.float64)
    served = Members(folder)
    of_members = np.column_stack(served.answers(rows)).astype(np.float32)
    original = problem.in_units(meta.predict(of_members))
    folders.compare(original, served.predict(rows), problem.target_range, in_steps=False)
    return Trial(cross_fitted, problem.fitted)


def _facts(
    problem: Problem,
    trial: Trial,
    folds: Sequence[Mapping[str, float]],
    served: Members,
    document: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the record of the search for the model's settings.json: scores, rows, guardrails …"""
    tested = {}
    if len(problem.test):
        rows = problem.matrix(document, problem.test)
        predictions = encoding.columns(document).predict_imputed(
            served.predict, rows.astype(np.float64)
        )
        tested = problem.score(problem.test, predictions)
    values = {column.name: problem.table.frame[column.name] for column in problem.table.columns}
    # Only rows of separate validation data: other validation rows are part of the final fit.
    validation = np.setdiff1d(np.concatenate([rows for _, rows in problem.folds]), problem.fitted)
    return {
        "metric": problem.job.metric,
        "validation": problem.sentence,
        "over": "seeds" if len(folds) > 1 and len(problem.folds) == 1 else "folds",
        "folds": folds,
        "rows": {"fitted": len(trial.fitted), "test": len(problem.test)},
        "test": tested,
        "trained_on": problem.cached(
            lambda: content(values, problem.labels_of(trial.fitted), trial.fitted),
            "content",
            trial.fitted,
        ),
        "validated_on": content(values, problem.labels_of(validation), validation)
        if len(validation)
        else "",
        "columns": [{**vars(column), "used": column.used} for column in problem.table.columns],
        "guardrails": problem.cached(
            lambda: guardrails.report(problem, document), "guardrails", trial.fitted
        ),
        "notes": dict(trial.notes),
    }


if __name__ == "__main__":
    main()
