"""One trial of a search: fit on each fold, judge, fit once on all rows, save what serves.

    python -m ml.automl.trial --training-data DIR --model DIR --predictions DIR …

What to fit is the value that the sweep sampled (AZUREML_SWEEP_model), how to judge it AUTOML_JOB.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import ensembles, families, guardrails, metrics, tables, validation
from ml.automl.families import Fitted, Numbers
from ml.automl.tables import Table, stop
from ml.automl.validation import Rows
from ml.measures.measurement import Rows as Measured
from ml.measures.measurement import metric_values
from ml.measures.tasks import Task
from ml.serving.scoring.columns import FILE as COLUMNS
from ml.serving.scoring.members import FILE as MEMBERS
from ml.serving.scoring.members import Members
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, content
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# The variable with what a sweep sampled.
SAMPLED = "AZUREML_SWEEP_model"
# Fits of other seeds where one set of rows judges: they show how much the seed alone moves a score.
SEEDS = 3
# MLflow's flavor of a member's file, and the class of the library that it makes of it.
_FLAVORS = {
    ".txt": ("lightgbm", "lightgbm.basic.Booster"),
    ".json": ("xgboost", "xgboost.core.Booster"),
    ".onnx": ("onnx", ""),
}
# Rows on which what was saved is compared with what was fitted, and timed.
COMPARED, TIMED = 2_000, 50


@dataclass(frozen=True)
class Job:
    """What the spec says about the data and the judging; see `ml.automl.lowering`."""

    settings: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Of the folds and the fits."""
        return int(self.settings["seed"])


@dataclass(frozen=True)
class Problem:
    """The rows of a search as every trial has them: which it fits, which judge, which are for the
    end. `classes` are in the order of the scores; `shuffled`: rows that judge are drawn at random.
    """

    table: Table
    task: Task
    labels: NDArray[Any]
    classes: Sequence[str]
    fitted: Rows
    folds: Sequence[validation.Fold]
    test: Rows
    sentence: str
    shuffled: bool

    @property
    def positive(self) -> str:
        """The class whose probability is the answer, of two."""
        return self.classes[1] if self.task == "binary" else ""

    @property
    def spread(self) -> float:
        """The distance between the smallest and the largest value of a number."""
        return float(np.ptp(self.labels)) if self.task == "regression" else 1.0

    def numbers(
        self, document: Mapping[str, Any], rows: Rows, settings: Mapping[str, Any], featurized: bool
    ) -> Numbers:
        """The rows as a family fits them; `balance` gives every class the same weight."""
        weights = self.table.weights[rows] if self.table.weights is not None else None
        labels = self.labels[rows]
        if settings.get("balance") == "classes":
            from sklearn.utils.class_weight import compute_sample_weight

            balanced = compute_sample_weight("balanced", labels)
            weights = balanced if weights is None else weights * balanced
        return Numbers(
            tables.matrix(self.table, document)[rows],
            labels,
            weights,
            self.task,
            len(self.classes),
            tables.categorical(document),
            featurized,
        )

    def labels_of(self, rows: Rows) -> NDArray[Any]:
        """0 and 1 (binary), the classes (multiclass) or numbers, as datasets have them."""
        return self.table.labels[rows] if self.task == "multiclass" else self.labels[rows]

    def measured(self, rows: Rows, answers: NDArray[np.float64]) -> tuple[Any, ...]:
        """What the functions of `ml.automl.metrics` take."""
        return self.task, self.labels[rows], answers, len(self.classes), self.spread

    def score(self, rows: Rows, answers: NDArray[np.float64]) -> dict[str, float]:
        """Azure ML's metrics of answers to these rows, then those of the template."""
        of = metrics.values(*self.measured(rows, answers))
        measured = Measured([str(row) for row in rows], self.labels_of(rows), answers)
        own = metric_values(self.task, measured, self.classes)
        return {**{name: value for name, value in own.items() if name not in of}, **of}


def main() -> None:
    """Fit, judge and save by the arguments and the environment."""
    parser = argparse.ArgumentParser(description="Fit one model of a search.")
    for name in ("training-data", "validation-data", "test-data", "model", "predictions"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    job = Job(json.loads(os.environ["AUTOML_JOB"]))
    sampled: dict[str, Any] = json.loads(os.environ[SAMPLED])
    name = sampled.pop("family")
    folders = (options.training_data, options.validation_data, options.test_data)
    problem = prepare(job, *folders)
    with tracking() as tracker:
        tracker.parameters({"family": name, **{k: v for k, v in sampled.items() if k != "members"}})
        began = time.perf_counter()
        if name in ensembles.NAMES:
            trial: Trial = _combine(
                problem, job, sampled["members"], options.model, options.predictions
            )
        else:
            trial = _fit(problem, job, name, sampled, options.model)
        seconds = time.perf_counter() - began
        means = {of: float(np.mean([fold[of] for fold in trial.folds])) for of in trial.folds[0]}
        primary = job.settings["metric"]
        if primary not in means:
            stop("no-metric", f"`{primary}` is not defined on the rows that judge", "rows of both")
        spread = float(np.std([fold[primary] for fold in trial.folds], ddof=1))
        options.predictions.mkdir(parents=True, exist_ok=True)
        trial.answers.save(options.predictions)
        members = Members(options.model)
        rows = tables.matrix(problem.table, _document(options.model))
        timed = latency(
            members.predict,
            [rows[at : at + 1].astype(np.float64) for at in range(min(TIMED, len(rows)))],
        )
        facts = _facts(problem, job, name, sampled, trial, members, rows)
        tracker.metrics(
            {**means, f"{primary}_std": spread, "training_seconds": seconds, **timed.as_metrics()}
        )
        digest = seal(options.model, {**facts, "seconds": seconds})
    print(f"model {options.model} {digest}: {name} {primary} {means[primary]:.5g} ± {spread:.2g}")


@dataclass(frozen=True)
class Trial:
    """What a trial is worth: the metrics of each fold (or seed), and the answers to rows that were
    not fitted. `files` are the members of the folder with their weights.
    """

    folds: Sequence[Mapping[str, float]]
    over: str
    answers: ensembles.Answers
    files: Mapping[str, float]


def prepare(job: Job, training: Path, validated: Path | None, tested: Path | None) -> Problem:
    """The rows of the search, in the order training, validation, test."""
    import pandas as pd

    settings = job.settings
    regression = settings["task"] == "regression"
    parts = [tables.read(of, settings["target"]) for of in (training, validated, tested) if of]
    for part in parts[1:]:
        if {*part.columns} != {*parts[0].columns}:
            other = sorted(map(str, {*part.columns} ^ {*parts[0].columns}))[0]
            stop("other-columns", f"`{other}` is not in all tables", "the same columns in each")
    lengths = [
        int(part[settings["target"]].notna().sum()) if settings["target"] in part else len(part)
        for part in parts
    ]
    featurization = settings.get("featurization") or {}
    table = tables.as_table(
        pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0],
        target=settings["target"],
        weight=settings.get("weight_column_name") or "",
        splits=settings.get("cv_split_column_names") or (),
        purposes=featurization.get("column_name_and_types") or {},
        regression=regression,
    )
    if featurization.get("mode") == "off":
        texts = [of.name for of in table.columns if of.used and of.kind == "text"]
        if texts:
            stop(
                "not-numbers", f"`{texts[0]}` is a text, and featurization is off", "numbers alone"
            )
    classes = [] if regression else _classes(table, settings.get("positive_label"))
    labels = table.labels
    if classes:
        number = {name: at for at, name in enumerate(classes)}
        labels = np.array([number[of] for of in table.labels], dtype=np.int64)
    task: Task = "regression" if regression else "binary" if len(classes) == 2 else "multiclass"
    starts = np.cumsum([0, *lengths])
    ranges = [np.arange(low, high) for low, high in pairwise(starts)]
    fitted = ranges.pop(0)
    judged = ranges.pop(0) if validated else None
    test = ranges.pop(0) if tested else np.arange(0)
    if not tested and settings.get("test_data_size"):
        share = float(settings["test_data_size"])
        left, held = validation.hold_out(labels[fitted], share, job.seed, not regression)
        fitted, test = fitted[left], fitted[held]
    if judged is not None:
        folds: Sequence[validation.Fold] = [(fitted, judged)]
        sentence = f"{len(judged)} rows of validation_data"
    else:
        whole = Table(table.frame, labels, table.columns, table.weights, table.splits)
        folds, sentence = validation.folds(whole, fitted, settings, job.seed, not regression)
    for train, _ in folds:
        if classes and len(np.unique(labels[train])) < 2:
            stop("one-class", "a fold is fitted on rows of one class", "two in each")
    shuffled = judged is None and not table.splits
    return Problem(table, task, labels, classes, fitted, folds, test, sentence, shuffled)


def _classes(table: Table, label: object) -> list[str]:
    names, positive = sorted({*table.labels}), str(label)
    if label is None:
        return names
    if positive not in names:
        stop("no-such-value", f"`positive_label: {positive}`", f"one of {', '.join(names[:12])}")
    return [name for name in names if name != positive] + [positive] if len(names) == 2 else names


def _fit(problem: Problem, job: Job, name: str, sampled: Mapping[str, Any], folder: Path) -> Trial:
    """Fit one family on each fold, then once on all rows."""
    family = families.of_task(job.settings["task"])[name]
    settings = {of: value for of, value in sampled.items() if of != "balance"}
    featurized = (job.settings.get("featurization") or {}).get("mode") != "off"

    def fit(rows: Rows, seed: int) -> tuple[dict[str, Any], Fitted]:
        classes = problem.classes if problem.task == "multiclass" else ()
        document = tables.encoding(problem.table, rows, classes)
        numbers = problem.numbers(document, rows, sampled, featurized)
        return document, family.fit(numbers, settings, seed)

    def answer(of: tuple[dict[str, Any], Fitted], rows: Rows) -> NDArray[np.float64]:
        return of[1].predict(tables.matrix(problem.table, of[0])[rows])

    seeds = SEEDS if len(problem.folds) == 1 else 1
    fits = [
        (fit(train, job.seed + more), judged)
        for train, judged in problem.folds
        for more in range(seeds)
    ]
    answers = [answer(model, judged) for model, judged in fits]
    scores = [problem.score(judged, of) for (_, judged), of in zip(fits, answers, strict=True)]
    held_out = ensembles.Answers([judged for _, judged in fits], answers, problem.labels)
    # The rows of validation_data are for judging alone.
    is_final = len(problem.folds[0][0]) == len(problem.fitted)
    document, final = fits[0][0] if is_final else fit(problem.fitted, job.seed)
    folder.mkdir(parents=True, exist_ok=True)
    file = final.save(folder)
    _write(folder / COLUMNS, document)
    rows = tables.matrix(problem.table, document)[problem.folds[0][1][:COMPARED]]
    _write_members(problem, folder, {file: 1.0})
    _write_flavor(folder, file)
    original, served = final.predict(rows), Members(folder).predict(rows.astype(np.float64))
    _compare(original, served, problem.spread, family.in_steps)
    return Trial(scores, "seeds" if seeds > 1 else "folds", held_out, {file: 1.0})


def _compare(
    original: NDArray[np.float64], served: NDArray[np.float64], spread: float, in_steps: bool
) -> None:
    """End the trial where what serves answers otherwise than what was fitted: of any row, or of the
    mean row where answers are `in_steps`.
    """
    if original.shape != served.shape:
        stop("not-the-same", f"the saved model answers {served.shape}", f"{original.shape}")
    differences = np.abs(original - served) / spread
    apart = float(differences.mean() if in_steps else differences.max(initial=0.0))
    if not apart <= families.ROUNDING:
        stop("not-the-same", f"the saved model answers {apart:g} apart", f"{families.ROUNDING:g}")


def _combine(
    problem: Problem, job: Job, members: Sequence[int], folder: Path, predictions: Path
) -> Trial:
    """The trials that answer best together, by what they answered to rows they did not fit."""
    metric = job.settings["metric"]
    goal = -1.0 if metric.startswith("normalized_") else 1.0
    outputs = [_of_trial(predictions, number) for number in members]
    answers = [ensembles.Answers.load(of, problem.labels) for of in outputs]

    def value(of: ensembles.Answers) -> float:
        folds = zip(of.rows, of.values, strict=True)
        of_folds = [metrics.value(metric, *problem.measured(*fold)) for fold in folds]
        return goal * float(np.mean(of_folds))

    weights = ensembles.choose(answers, value)
    files = ensembles.gather(
        {_of_trial(folder, members[at]): weight for at, weight in weights.items()}, folder
    )
    _write_members(problem, folder, files)
    together = ensembles.mean([answers[at] for at in weights], list(weights.values()))
    scores = [problem.score(*fold) for fold in zip(together.rows, together.values, strict=True)]
    return Trial(scores, "seeds" if len(problem.folds) == 1 else "folds", together, files)


def _of_trial(path: Path, number: int) -> Path:
    """The same output of another trial of this search."""
    at = len(path.parts) - 1 - path.parts[::-1].index("trials")
    return Path(*path.parts[: at + 1], str(number), *path.parts[at + 2 :])


def _write_members(problem: Problem, folder: Path, files: Mapping[str, float]) -> None:
    of = [{"file": name, "weight": weight} for name, weight in files.items()]
    document = {"task": problem.task, "positive": problem.positive, "members": of}
    _write(folder / MEMBERS, document)


def _write_flavor(folder: Path, file: str) -> None:
    """`MLmodel` for the file of a single member: its library's flavor, which runs no pickle. It
    takes the numbers of columns.json. JSON is YAML too, and of a format that gates know.
    """
    flavor, class_name = _FLAVORS[Path(file).suffix]
    about = {"data": file, **({"model_class": class_name} if class_name else {})}
    loader = {"loader_module": f"mlflow.{flavor}", "data": file}
    _write(folder / "MLmodel", {"flavors": {flavor: about, "python_function": loader}})


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / COLUMNS).read_text(encoding="utf-8"))
    return document


def _write(file: Path, document: object) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def _facts(
    problem: Problem,
    job: Job,
    name: str,
    sampled: Mapping[str, Any],
    trial: Trial,
    members: Members,
    rows: NDArray[np.float32],
) -> dict[str, Any]:
    """What the folder says about the training, beside the seconds."""
    tested = {}
    if len(problem.test):
        answers = members.predict(rows[problem.test].astype(np.float64))
        tested = problem.score(problem.test, answers)
    plain = {of: value for of, value in sampled.items() if of != "members"}
    return {
        "seed": job.seed,
        "hyperparameters": {"family": name, **plain},
        FACT: {
            "metric": job.settings["metric"],
            "validation": problem.sentence,
            "over": trial.over,
            "folds": [dict(fold) for fold in trial.folds],
            "rows": {"fitted": len(problem.fitted), "test": len(problem.test)},
            "test": tested,
            "trained_on": content(
                {
                    column.name: problem.table.frame[column.name].iloc[problem.fitted]
                    for column in problem.table.columns
                },
                problem.labels_of(problem.fitted),
            ),
            "columns": [vars(column) for column in problem.table.columns],
            "guardrails": guardrails.report(
                problem.table,
                problem.labels,
                problem.task,
                problem.classes,
                problem.fitted,
                job.settings["metric"],
                rows,
                problem.shuffled,
            ),
        },
    }


if __name__ == "__main__":
    main()
