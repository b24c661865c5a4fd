"""Train and evaluate models of one table, for the train.py and evaluate.py of a project.

The project provides `derive` and the encoding (columns.py), the model (model.py), custom metrics
(metrics.py) and the schema of the table; this module runs the steps in order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ml.measures import measurement
from ml.measures.contributions import Contributions, explained_rows, permuted
from ml.measures.evaluation import EvaluationRefused
from ml.measures.measurement import VALIDATION, Features, Training, metric_values
from ml.measures.metrics import CustomMetric
from ml.measures.schema import Check, Metrics, TrainingSet, read, stated
from ml.serving.scoring.columns import Columns, Derive, Encoding
from ml.serving.scoring.members import Members, is_of_members
from ml.toolkit.data.datasets import TABLE_TASKS, TEST, TRAIN, Dataset, Numbers, read_dataset
from ml.toolkit.data.feature_sets import FeatureJoin
from ml.toolkit.training import searched
from ml.toolkit.training.model_folder import seal, unseal
from ml.toolkit.training.segments import checkpointed
from ml.toolkit.training.timing import Latency, latency
from ml.toolkit.training.tracking import tracking
from ml.toolkit.training.words import word_importance

# Number of explained rows: contributions are slow, and more rows hardly change them.
EXPLAINED = 500
# Number of single-row predictions for the latency of a trial.
TIMED = 50
# Seed offsets of the refits that measure the metric's variation with the seed.
REFITS = (1, 2)
# Maximum number of rows to fit a linear model to: more change it little, and take minutes.
LINEAR_ROWS = 50_000
NO_SOURCES: Mapping[str, Path] = MappingProxyType({})
# Help text of `--sources`. The options are literals in each function, because `ml check` parses
# them from the code.
SOURCES = "the folders of the feature sets' sources, in the order of the project's sets"
# Files that do not affect the trained model.
_BESIDE = frozenset({"evaluate.py", "metrics.py", "endpoint", "tests"})


class Predictor(Protocol):
    """The functions of a trained model that an evaluation needs."""

    @property
    def contributions(self) -> Callable[[Path, NDArray[np.float64]], Contributions | str] | str:
        """A function (model folder, rows) → SHAP values, or the reason why there is none.

        With a reason, the evaluation measures permutation importances.
        """

    def predict(self, model: Any, table: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return the model's prediction for each row."""


class Model(Predictor, Protocol):
    """The functions of a project's model.py."""

    @property
    def SETTINGS(self) -> Mapping[str, Any]:
        """The hyperparameters and their defaults; each is an argument of train.py."""

    def fit(
        self,
        columns: Columns,
        train: Numbers,
        validation: Numbers,
        settings: dict[str, Any],
        seed: int,
        /,
    ) -> Any:
        """Return a model fitted to the training rows; validation rows may stop training early."""

    def save(self, model: Any, folder: Path, /) -> None:
        """Write the model's files into the folder."""

    def load(self, folder: Path, /) -> Any:
        """Return the model in a folder."""


@dataclass(frozen=True)
class Tabular:
    """The definition of a one-table project: schema, model, encoding, metrics, feature sets."""

    schema: Path
    model: Model
    derive: Derive
    encoding: Encoding
    metrics: Mapping[str, CustomMetric] = field(default_factory=dict)
    features: FeatureJoin | None = None

    def read(
        self,
        folder: Path,
        sources: Mapping[str, Path] = NO_SOURCES,
        *,
        others: bool = False,
        folds: bool = True,
    ) -> Dataset:
        """Return the table with the columns of feature sets, split as by `read_dataset`."""
        return read_dataset(
            folder,
            self.schema,
            self.metrics,
            others=others,
            features=self.features,
            sources=sources,
            folds=folds,
        )

    def data(self, options: dict[str, Any], *, others: bool = False, folds: bool = True) -> Dataset:
        """Read the table given by `--data` and `--sources`; remove both from `options`.

        Exits if the number of sources differs from the number of feature sets.
        """
        names = self.features.names if self.features is not None else ()
        sources = options.pop("sources")
        if sources is not None and len(sources) != len(names):
            raise SystemExit(
                f"error[wrong-sources]: --sources has {len(sources)} folders\n"
                f"  expected: one for each of {len(names)} feature sets: {', '.join(names)}\n"
                "  hint: leave out --sources to read the local ones"
            )
        by_name = {} if sources is None else dict(zip(names, sources, strict=True))
        return self.read(options.pop("data"), by_name, others=others, folds=folds)

    def fit(self, dataset: Dataset, settings: Mapping[str, Any], seed: int) -> tuple[Columns, Any]:
        """Return the encoder fitted to the training rows, and the fitted model."""
        with self._exit_on_value_error("correct `derive` in columns.py"):
            columns = dataset.columns(self.derive, self.encoding)
            train, validation = (dataset.numbers(split, columns) for split in (TRAIN, VALIDATION))
        return columns, self.model.fit(columns, train, validation, dict(settings), seed)

    def scores(
        self, dataset: Dataset, split: str, columns: Columns, fitted: Any
    ) -> NDArray[np.float64]:
        """Return the model's predictions for the rows of a split."""
        table = self.matrix(dataset, split, columns)
        return columns.predict_imputed(partial(self.model.predict, fitted), table)

    def matrix(self, dataset: Dataset, split: str, columns: Columns) -> NDArray[np.float64]:
        """Return the encoded rows of a split, (rows, columns)."""
        hint = "train it again, or evaluate it in a checkout of the commit that trained it"
        with self._exit_on_value_error(hint):
            return columns.matrix(dataset.splits[split].rows)

    @contextmanager
    def _exit_on_value_error(self, hint: str) -> Iterator[None]:
        """Turn a ValueError into an exit with `wrong-columns`, the line of `derive`, and a hint."""
        try:
            yield
        except ValueError as error:
            lines = traceback.extract_tb((error.__cause__ or error).__traceback__)
            code = getattr(self.derive, "__code__", None)
            place = "".join(
                f", {Path(line.filename).name}:{line.lineno}"
                for line in lines
                if code is not None and line.filename == code.co_filename
            )
            raise SystemExit(f"error[wrong-columns]: {error}{place}\n  hint: {hint}") from error

    def training_fingerprint(self, dataset: Dataset) -> dict[str, Any]:
        """Return the digest of the project's code, the columns, the target and the split.

        With settings, seed and data, they determine the trained model.
        """
        folder, digest = self.schema.parent.parent, hashlib.sha256()
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder)
            if name.parts[0] not in _BESIDE:
                digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        about = dataset.about
        return {
            "code": digest.hexdigest(),
            "columns": dataset.kinds,
            "target": [about.task, about.target, about.positive],
            "split": {name: getattr(about, name) for name in ("id", "group", "time", "folds")},
        }


def train(project: Tabular, arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; read and split the data; fit, log and save one model."""
    parser = argparse.ArgumentParser(description="Train one model.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--sources", type=Path, nargs="*", help=SOURCES)
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="the folder that a restart goes on from")
    parser.add_argument("--seed", type=int, default=0)
    for name, usual in project.model.SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    settings = vars(parser.parse_args(arguments))
    dataset = project.data(settings)
    names = ("model", "checkpoints", "seed")
    folder, checkpoints, seed = (settings.pop(name) for name in names)
    with tracking() as tracker:
        tracker.parameters({**settings, "seed": seed})
        facts: dict[str, Any] = {}
        if dataset.training_set is not None:
            facts["training_set"] = stated(dataset.training_set)
            tracker.tags({"training_set": json.dumps(facts["training_set"])})
        began = time.perf_counter()
        with checkpointed(checkpoints):
            columns, fitted = project.fit(dataset, settings, seed)
        scores = project.scores(dataset, VALIDATION, columns, fitted)
        metrics = _metrics(dataset, scores)
        inputs, rows = _inputs(dataset, VALIDATION, columns), dataset.scored(VALIDATION, scores)
        measurement.warn(
            measurement.feature_and_model_checks(inputs, rows, VALIDATION, dataset.classes)
        )
        seconds = time.perf_counter() - began
        tracker.metrics({**metrics, "training_seconds": seconds})
        columns.save(folder)
        project.model.save(fitted, folder)
        tracker.metrics(_row_latency(project, dataset, columns, folder).as_metrics())
        facts |= {"seed": seed, "seconds": seconds, "hyperparameters": settings}
        digest = seal(folder, {**facts, "maker": project.training_fingerprint(dataset)})
    print(f"model {folder} {digest}: {metrics}")


def _row_latency(project: Tabular, dataset: Dataset, columns: Columns, folder: Path) -> Latency:
    """Measure the latency of one-row predictions on the validation rows, with the saved model."""
    table = project.matrix(dataset, VALIDATION, columns)[:TIMED]
    loaded = project.model.load(folder)
    rows = [table[start : start + 1] for start in range(len(table))]
    predict = partial(project.model.predict, loaded)
    return latency(lambda row: columns.predict_imputed(predict, row), rows)


def split(project: Tabular, arguments: Sequence[str] | None = None) -> None:
    """Parse the command line; write training and validation rows as MLTables for an AutoML job.

    `folds` of the schema is ignored (see `ml.toolkit.data.datasets`).
    """
    parser = argparse.ArgumentParser(description="Write the rows that an AutoML job may see.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--sources", type=Path, nargs="*", help=SOURCES)
    for split in (TRAIN, VALIDATION):
        parser.add_argument(f"--{split}", type=Path, required=True, help="the MLTable to write")
    options = vars(parser.parse_args(arguments))
    dataset = project.data(options, folds=False)
    for split in (TRAIN, VALIDATION):
        searched.write_table(dataset, split, options[split])


def evaluate(
    project: Tabular,
    arguments: Sequence[str] | None = None,
    *,
    model: str,
    unit: str = "",
    baseline: Metrics | None = None,
    baseline_from: str = "",
    leakage: Sequence[Check] = (),
) -> None:
    """Parse the command line; evaluate a model and write its evaluation.

    `model` is the endpoint's name; the other arguments are those of
    `ml.measures.measurement.evaluate`. For a model of an AutoML job, `folds` is ignored, and the
    refits are those of its trial.

    With `folds`, the test rows are the training rows with out-of-fold predictions. Exits if the
    project's code, columns, target or split changed since the training, because the refits would
    then evaluate another model.
    """
    parser = argparse.ArgumentParser(description="Measure a model.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--sources", type=Path, nargs="*", help=SOURCES)
    parser.add_argument("--model", type=Path, required=True, help="the folder that train wrote")
    parser.add_argument("--evaluation", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    # A champion may be evaluated on the data of a candidate with another column.
    is_searched = is_of_members(options.model)
    dataset = project.data(vars(options), others=True, folds=not is_searched)
    facts, digest = unseal(options.model)
    trained_on, joined = facts.pop("training_set", None), dataset.training_set
    if trained_on is not None:
        evaluated = "" if joined is None else joined.digest
        joined = replace(read(TrainingSet, trained_on), evaluated=evaluated)
    elif not is_searched:  # rows of a search are compared below
        joined = None
    columns = Columns.load(options.model, project.derive)
    if is_searched:
        members = Members(options.model)
        search = facts.pop(searched.FACT, {})
        dataset = searched.as_searched(dataset, columns, members, search)
        model_of: Predictor = searched.Winner()
        fitted: Any = members
    else:
        search, model_of, fitted = {}, project.model, project.model.load(options.model)
    about, settings, seed = dataset.about, facts["hyperparameters"], facts["seed"]
    if not search:
        _check_fingerprint(facts.pop("maker", {}), project.training_fingerprint(dataset))

    def scores(split: str) -> NDArray[np.float64]:
        table = project.matrix(dataset, split, columns)
        return columns.predict_imputed(partial(model_of.predict, fitted), table)

    splits = {VALIDATION: scores(VALIDATION)}
    if about.folds:
        splits[TEST] = _out_of_fold(project, dataset, settings, seed)
    else:
        splits[TEST] = scores(TEST)
    linear = _linear(project, dataset, seed)
    refits = searched.refits(search, about.primary_metric) or [
        _metrics(dataset, project.scores(dataset, VALIDATION, *fit))[
            f"{VALIDATION}_{about.primary_metric}"
        ]
        for fit in (project.fit(dataset, settings, seed + offset) for offset in REFITS)
    ]
    rows_of_test = columns.matrix(dataset.test.rows)
    explain = getattr(model_of, "contributions", "model.py has no function `contributions`")
    exact = (
        explain if isinstance(explain, str) else explain(options.model, rows_of_test[:EXPLAINED])
    )
    contributions = exact
    if isinstance(exact, str):  # the reason why no exact method explains the model
        part = dataset.test.subset(range(min(EXPLAINED, len(dataset.test))))
        right = TABLE_TASKS[about.task].numbers(part.labels, dataset.classes)
        if dataset.classes:
            right = np.eye(len(dataset.classes))[right]

        def error_of(rows: NDArray[np.float64]) -> float:
            answers = columns.predict_imputed(partial(model_of.predict, fitted), rows)
            return float(np.abs(answers - right).mean())

        if about.text and columns.words:
            contributions = word_importance(
                error_of, rows_of_test[: len(part)], part.labels, columns
            )
        else:
            contributions = permuted(
                lambda rows: error_of(columns.matrix(rows)), part.rows, list(dataset.kinds)
            )
    with tracking() as tracker:
        try:
            evaluation = measurement.evaluate(
                options.evaluation,
                {name: dataset.scored(name, scores) for name, scores in splits.items()},
                Training(
                    dataset.scored(TRAIN),
                    refits=refits,
                    training_set=joined,
                    **({"over": search["over"]} if search else {}),
                    **facts,
                ),
                Features(columns.names, rows_of_test, inputs=_inputs(dataset, TEST, columns)),
                contributions,
                task=about.task,
                primary_metric=about.primary_metric,
                model=model,
                digest=digest,
                unit=unit,
                resampled=about.group,
                classes=dataset.classes,
                leakage=[*dataset.leakage(), *leakage],
                inputs=dataset.inputs(),
                joined=dataset.joined,
                baseline=baseline,
                baseline_from=baseline_from,
                custom_metrics=project.metrics,
                linear=linear,
            )
        except (EvaluationRefused, ValueError) as error:
            raise SystemExit(f"error[no-evaluation]: {error}") from error
        tracker.metrics(evaluation.values())
    if isinstance(exact, Contributions):
        explained = explained_rows(
            exact, columns.names, dataset.test.ids, rows_of_test, columns.categories
        )
        if explained is not None:
            explained.write(options.evaluation)
    print(evaluation.text())


def _metrics(dataset: Dataset, scores: NDArray[np.float64]) -> dict[str, float]:
    try:
        return dataset.metrics(VALIDATION, scores)
    except ValueError as error:
        raise SystemExit(f"error[no-metric]: {error}") from error


def _inputs(dataset: Dataset, split: str, columns: Columns) -> Features:
    """Return the model's inputs of a split, with category codes instead of one-hot columns."""
    coded = columns.coded()
    return Features(coded.names, coded.matrix(dataset.splits[split].rows), coded.categorical)


def _linear(project: Tabular, dataset: Dataset, seed: int) -> dict[str, float]:
    """Return the test metrics of a linear model, or {} if it cannot be fitted (one class)."""
    linear = Linear(dataset.about.task, len(dataset.classes))
    # `Linear` implements only `fit` and `predict` of `Model`, because it is never saved.
    encoding: Encoding = "words" if dataset.about.text else "one-hot"
    baseline = replace(project, model=cast(Model, linear), encoding=encoding)
    try:
        if dataset.about.folds:
            scores = _out_of_fold(baseline, dataset, {}, seed)
        else:
            scores = baseline.scores(dataset, TEST, *baseline.fit(dataset, {}, seed))
    except (SystemExit, ValueError) as error:
        print(f"no {linear.name} beside the model: {error}", file=sys.stderr)
        return {}
    return metric_values(
        dataset.about.task, dataset.scored(TEST, scores), dataset.classes, project.metrics
    )


class Linear:
    """Logistic or ridge regression by scikit-learn, with its default regularisation.

    It is fitted on one-hot, scaled columns and reported; no gate uses it.
    """

    def __init__(self, task: str, classes: int) -> None:
        """Set the task (binary, multiclass, regression) and, for multiclass, the class count."""
        self.name = "ridge regression" if task == "regression" else "logistic regression"
        self._task, self._classes = task, classes

    def fit(
        self,
        columns: Columns,
        train: Numbers,
        validation: Numbers,
        settings: dict[str, Any],
        seed: int,
    ) -> Any:
        """Return a scaler and an estimator, fitted on at most LINEAR_ROWS evenly spaced rows."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        step = -(-len(train.table) // LINEAR_ROWS)
        estimator = Ridge() if self._task == "regression" else LogisticRegression(max_iter=1000)
        return make_pipeline(StandardScaler(), estimator).fit(
            train.table[::step], train.labels[::step]
        )

    def predict(self, model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return probabilities of 1 (rows,), of each class (rows, classes), or numbers (rows,)."""
        if self._task == "regression":
            return np.asarray(model.predict(table))
        probabilities = np.zeros((len(table), self._classes if self._task == "multiclass" else 2))
        probabilities[:, model.classes_.astype(int)] = model.predict_proba(table)
        return probabilities[:, 1] if self._task == "binary" else probabilities


def _check_fingerprint(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Exit if `folds` is used and the code, columns, target or split changed since training.

    `before` and `now` are results of `Tabular.training_fingerprint`.
    """
    folds = [settings.get("split", {}).get("folds", 0) for settings in (before, now)]
    differing = [name for name, settings in now.items() if before.get(name) != settings]
    if folds == [0, 0] or not differing:
        return
    raise SystemExit(
        f"error[code-mismatch]: changed since the training of the model: {', '.join(differing)}; "
        "`folds` fits it again to evaluate it, which would give another model\n"
        "  expected: a model of this code and this schema\n"
        "  hint: train it again, or evaluate it in a checkout of the commit that trained it"
    )


def _out_of_fold(
    project: Tabular, dataset: Dataset, settings: Mapping[str, Any], seed: int
) -> NDArray[np.float64]:
    """Return out-of-fold predictions of the training rows, by a refit per fold."""
    scores: NDArray[np.float64] | None = None
    for rows, fold in dataset.by_fold():
        of_fold = np.asarray(project.scores(fold, TEST, *project.fit(fold, settings, seed)))
        if scores is None:
            scores = np.full((len(dataset.test), *of_fold.shape[1:]), np.nan)
        scores[rows] = of_fold
    assert scores is not None
    return scores
