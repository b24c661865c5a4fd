"""A table with a target: read under its schema, checked, and split for training and evaluation.

The schema is a YAML file that travels with the code: that of `ml.toolkit.data.tables` with a few
lines on top of it.

    file: table.csv              # in the folder of the data asset
    task: binary                 # binary, multiclass or regression
    primary_metric: auc          # that versions are compared by; ml.measures.metrics has them all
    target: Churn
    positive: "Yes"              # binary: the value of the target that is 1
    threshold: 0.2               # optional, binary: rows with a higher score are predicted positive
    costs: {false_positive: 1, false_negative: 4}  # instead: the threshold of the least cost
    id: customerID               # optional: what tells rows apart; by default their content
    group: household             # optional: its rows stay in one split, and are drawn together
    time: signed_on              # optional: later rows are validation, the latest are the test
    folds: 5                     # optional: each row of training is also tested, out of fold
    text: note                   # optional: the one feature, a text that the model reads by words
    slices: [Contract]           # columns that `fairness` compares by values, or thirds, or missing
    delimiter: ","
    header: true
    rows: [500, 1000000]
    columns:
      - {name: customerID, type: id, unique: true}
      - {name: Contract, type: category}
      - {name: TotalCharges, type: float, optional: true}
      - {name: Churn, type: category}

Columns of the types `float`, `integer` and `category` are features, except the target, the id and
the group; columns of the types `id`, `text` and `timestamp` are not. Give a column that is not
known at the time of the prediction the type `text`. A column with `feature_set: NAME` is not in the
file: it is joined as it was known at `time`. With the field `text`, the column that it names, of
type `text`, is the only feature; a slice by it compares thirds of its number of words.

A hash of its id assigns each row: 60 % train, 20 % are validation, 20 % test. A row stays in its
split when others are added.

With `folds` a small table needs no rows for the test alone: a quarter is validation, the rest
trains, and the test is that rest again, cut into folds. `Dataset.by_fold` has a dataset for each
fold, whose test it is, and which trains on the others. The estimate is of the code and the
settings, not of the model that serves. `ml new` writes `folds` for tables of at most 3,000 rows.
`folds` excludes `time`. A version measured with folds is not compared with one measured without.
An AutoML job cannot fit its model again for each fold: its models are trained and measured as if
the schema had no `folds`.

A cell is missing when it is empty or says `NA`, `N/A`, `NaN`, `NULL`, `None` or `?`; in a request
`null` is missing too. Without `optional: true` the column refuses it: `empty-value` in a table,
status 400 in a request. With `optional: true` the model learns from the rows where it is missing,
if these are at least 20 (of a large table, 1 in 1,000). If they are fewer, training fills in 16
values of the column, evenly from the least to the greatest. A category that training did not see
is treated as missing.

`ml new --datastore` reads the schema from a sample, so `rows` are the sample's bounds: write there
what the whole table may hold. A run on this machine reads a copy in `.local/data/NAME/VERSION`.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ml.measures import reference, tasks
from ml.measures.leakage import not_later, plain
from ml.measures.measurement import NO_METRICS, VALIDATION, Rows, metric_values
from ml.measures.metrics import CustomMetric
from ml.measures.schema import Check, TrainingSet
from ml.serving.scoring.columns import Columns, Derive, Encoding, Kind, Row, Value, tokens
from ml.toolkit.data.feature_sets import FeatureJoin, join, seconds
from ml.toolkit.data.tables import (
    FEATURE_KINDS,
    MOST_SHOWN,
    Column,
    DataRefused,
    SchemaRefused,
    TableSchema,
    read_table,
)

TRAIN, TEST = "train", "test"
SPLITS = (TRAIN, VALIDATION, TEST)
# Share of the rows in each split other than training.
SHARE = 0.2
# Share of the validation split if the schema has folds.
SHARE_BESIDE_FOLDS = 0.25
MOST_FOLDS = 20
FEATURES = frozenset(FEATURE_KINDS)
# The tasks in which a column of a table is predicted.
TABLE_TASKS = {name: kind.target for name, kind in tasks.TASKS.items() if kind.target is not None}

# A numeric column of more values is sliced into thirds.
MOST_SLICES = 10
# Rows without a value of the column.
MISSING_SLICE = "missing"
_FIELDS = frozenset(
    [
        *("task", "primary_metric", "target", "positive", "id", "group", "time", "folds", "slices"),
        *("threshold", "costs", "text"),
        *("file", "columns", "rows", "header", "delimiter", "skip_spaces"),
    ]
)


@dataclass(frozen=True)
class Target:
    """The head of the schema: what is predicted, and how rows are split, sliced and resampled."""

    task: tasks.Task
    primary_metric: str
    target: str
    file: str = "table.csv"
    positive: str = ""
    id: str = ""
    group: str = ""
    time: str = ""
    slices: tuple[str, ...] = ()
    folds: int = 0
    threshold: float = 0.5
    text: str = ""

    @classmethod
    def parse(
        cls,
        raw: Mapping[str, Any],
        columns: Sequence[Column],
        custom: Mapping[str, CustomMetric] = NO_METRICS,
    ) -> Target:
        """Parse the head of a schema; `custom` are the custom metrics. Raises SchemaRefused."""
        types = {column.name: column.type for column in columns}
        optional = {column.name for column in columns if column.optional}
        if unknown := sorted(raw.keys() - _FIELDS):
            raise SchemaRefused(unknown[0], "an unknown field", "one of ", sorted(_FIELDS))
        task = str(raw.get("task"))
        kind = TABLE_TASKS.get(task)
        if kind is None:
            raise SchemaRefused("task", repr(raw.get("task")), "one of ", TABLE_TASKS)
        metric, metrics = raw.get("primary_metric"), tasks.metrics_of(task, custom)
        if metric not in [*metrics]:  # may be a list or a mapping
            raise SchemaRefused("primary_metric", repr(metric), "one of ", metrics)
        for name in ("target", "id", "group", "time", "text"):
            column = raw.get(name)
            if column not in [*types] and (column is not None or name == "target"):
                raise SchemaRefused(name, repr(column), "one of ", types)
            if column in optional and name not in ("target", "text"):
                actual = f"`{column}`, which is optional"
                raise SchemaRefused(name, actual, "a column with a value in every row")
        slices = raw.get("slices")
        if not isinstance(slices, list) or not slices:
            raise SchemaRefused("slices", repr(slices), "a list of one or more columns")
        for number, name in enumerate(slices):
            if name not in [*types]:
                raise SchemaRefused(number, repr(name), "one of ", types, ("slices",))
        positive = raw.get("positive")
        if isinstance(positive, bool):  # YAML reads yes, no, on, off, true and false as booleans
            raise SchemaRefused("positive", repr(positive), "a text in quotes")
        if kind.has_positive and positive in (None, ""):
            raise SchemaRefused("positive", repr(positive), "a value of the target")
        if kind.types and types[raw["target"]] not in kind.types:
            actual = f"`{raw['target']}`, of type {types[raw['target']]}"
            raise SchemaRefused("target", actual, f"a column of type {' or '.join(kind.types)}")
        if (text := raw.get("text")) is not None:
            if kind.types:
                expected = "no `text`: only classes are predicted from one"
                raise SchemaRefused("text", f"{text!r} of a {task} model", expected)
            if types[text] != "text" or text in [
                raw.get(name) for name in ("target", "id", "group")
            ]:
                actual = f"`{text}`, of type {types[text]}"
                raise SchemaRefused("text", actual, "a column of type text that is only a feature")
        folds = raw.get("folds", 0)
        if "folds" in raw and (type(folds) is not int or not 2 <= folds <= MOST_FOLDS):
            raise SchemaRefused("folds", repr(folds), f"a whole number from 2 to {MOST_FOLDS}")
        if folds and raw.get("time") is not None:
            expected = "no `folds` with `time`: a fold would be predicted by a model of later rows"
            raise SchemaRefused("folds", repr(folds), expected)
        threshold = _threshold(raw, kind.has_positive)
        names = ("target", "file", "positive", "id", "group", "time", "text")
        texts = {name: str(raw[name]) for name in names if raw.get(name) is not None}
        return cls(
            task=task,
            primary_metric=str(metric),
            slices=tuple(slices),
            folds=folds,
            threshold=threshold,
            **texts,
        )


def _threshold(raw: Mapping[str, Any], is_binary: bool) -> float:
    """Return the threshold of a schema. With costs it minimises the expected cost (Elkan 2001, The
    Foundations of Cost-Sensitive Learning): false_positive / (false_positive + false_negative).
    """
    stated = [name for name in ("threshold", "costs") if name in raw]
    if stated and (len(stated) > 1 or not is_binary):
        expected = "one of `threshold` and `costs`, of a binary task"
        raise SchemaRefused(stated[-1], repr(raw[stated[-1]]), expected)
    if stated == ["costs"]:
        costs, errors = raw["costs"], ("false_positive", "false_negative")
        numbers = [costs.get(name) for name in errors] if isinstance(costs, dict) else []
        if not numbers or {*costs} != {*errors} or not all(map(_is_positive, numbers)):
            expected = f"a number above 0 for each of {' and '.join(errors)}"
            raise SchemaRefused("costs", repr(costs), expected)
        return float(costs["false_positive"] / (costs["false_positive"] + costs["false_negative"]))
    threshold = raw.get("threshold", 0.5)
    if not (_is_positive(threshold) and threshold < 1):
        raise SchemaRefused("threshold", repr(threshold), "a number between 0 and 1")
    return float(threshold)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 < value < math.inf


@dataclass(frozen=True)
class Split:
    """The rows of one split. `rows` are the features in the order of the schema, `requests` those
    of the test as a client sends them; `labels` are 0 and 1 (binary), texts (multiclass) or numbers
    (regression).
    """

    ids: Sequence[str]
    labels: NDArray[Any]
    rows: Sequence[Sequence[Value]]
    slices: Mapping[str, Sequence[str]]
    groups: Sequence[str] = ()
    times: Sequence[float] = ()
    folds: Sequence[int] = ()
    requests: Sequence[Mapping[str, object]] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: Sequence[int] | NDArray[np.int64]) -> Split:
        """Return the split with only the rows of these numbers."""

        def select(values: Sequence[Any]) -> Sequence[Any]:
            return [values[row] for row in rows] if values else ()

        return Split(
            select(self.ids),
            self.labels[rows],
            select(self.rows),
            {name: select(values) for name, values in self.slices.items()},
            select(self.groups),
            select(self.times),
            select(self.folds),
            select(self.requests),
        )


@dataclass(frozen=True)
class Numbers:
    """Rows as a model takes them: `table` is (rows, names), `labels` are 0 and 1 (binary), the
    numbers of the classes (multiclass), or numbers (regression).
    """

    table: NDArray[np.float64]
    labels: NDArray[np.float64]


@dataclass(frozen=True)
class Dataset:
    """A checked table: its features, its splits, and the classes of a multiclass target."""

    about: Target
    features: tuple[Column, ...]
    classes: tuple[str, ...]
    splits: Mapping[str, Split] = field(repr=False)
    custom_metrics: Mapping[str, CustomMetric] = field(default_factory=dict, repr=False)
    training_set: TrainingSet | None = None
    joined: Mapping[str, reference.Columns] = field(default_factory=dict, repr=False)

    @property
    def train(self) -> Split:
        """Return the rows that a model learns from."""
        return self.splits[TRAIN]

    @property
    def validation(self) -> Split:
        """Return the rows by which models are selected."""
        return self.splits[VALIDATION]

    @property
    def test(self) -> Split:
        """Return the rows by which versions are promoted."""
        return self.splits[TEST]

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Return each feature's type, in the terms of a model's columns."""
        return {column.name: FEATURE_KINDS[column.type] for column in self.features}

    def by_fold(self) -> Iterator[tuple[NDArray[np.int64], Dataset]]:
        """Yield each fold's row numbers, and the dataset that trains on the others and tests on it.

        Ends the program if a fold has no row, or the others lack a label.
        """
        fold_of = np.asarray(self.train.folds)
        for fold in range(self.about.folds):
            rows, elsewhere = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            splits = {TRAIN: self.train.subset(elsewhere), TEST: self.train.subset(rows)}
            _check_fold(self.about, fold, self.train, splits)
            yield rows, replace(self, splits={**self.splits, **splits})

    def columns(self, derive: Derive, encoding: Encoding) -> Columns:
        """Return the columns fitted to the training rows; raises ValueError as `Columns.fit`."""
        required = {column.name for column in self.features if not column.optional}
        rows, classes = self.train.rows, self.classes
        return Columns.fit(self.kinds, rows, derive, encoding, classes, required)

    def numbers(self, split: str, columns: Columns) -> Numbers:
        """Return the rows of a split as numbers, to fit a model to."""
        rows = self.splits[split]
        labels = rows.labels
        labels = TABLE_TASKS[self.about.task].numbers(labels, self.classes)
        return Numbers(columns.fill(columns.matrix(rows.rows)), labels.astype(np.float64))

    def scored(self, split: str, scores: NDArray[Any] | Sequence[Any] = ()) -> Rows:
        """Return the rows of a split with a model's scores, as `evaluate` takes them.

        For metrics of the project's own, a missing value is NaN, or an empty text.
        """
        rows = self.splits[split]
        columns = zip(*rows.rows, strict=True) if len(rows) else [()] * len(self.features)
        values = {}
        for feature, column_values in zip(self.features, columns, strict=True):
            empty = "" if feature.type == "category" else math.nan
            values[feature.name] = [empty if value is None else value for value in column_values]
        return Rows(
            rows.ids,
            rows.labels,
            scores,
            rows.slices,
            rows.groups,
            columns=values,
            folds=rows.folds,
            requests=rows.requests,
            threshold=self.about.threshold,
        )

    def metrics(self, split: str, scores: NDArray[Any]) -> dict[str, float]:
        """Return every metric of a model's scores of a split, as `SPLIT_METRIC`."""
        rows = self.scored(split, scores)
        values = metric_values(self.about.task, rows, self.classes, self.custom_metrics)
        return {f"{split}_{name}": value for name, value in values.items()}

    def leakage(self) -> list[Check]:
        """Check that all test rows are later than training; [] unless rows are split by time."""
        if not self.about.time:
            return []
        return [not_later(self.train.times, self.test.times, self.about.time)]

    def inputs(self) -> dict[str, tuple[Any, list[Value]]]:
        """Return the kind and the values of each column, over all rows, for `evaluate`."""
        rows = [row for split in self.splits.values() for row in split.rows]
        return {
            column.name: (
                self._input_kind(column),
                [row[position] for row in rows],
            )
            for position, column in enumerate(self.features)
            if any(row[position] is not None for row in rows)
        }

    def _input_kind(self, column: Column) -> str:
        if column.name == self.about.text:
            return "text"
        return "categorical" if column.type == "category" else "numeric"


def read_dataset(
    folder: Path,
    schema: Path,
    custom_metrics: Mapping[str, CustomMetric] = NO_METRICS,
    *,
    others: bool = False,
    features: FeatureJoin | None = None,
    sources: Mapping[str, Path] = MappingProxyType({}),
    folds: bool = True,
) -> Dataset:
    """Read and split the table in the folder of a data asset (or that file itself).

    `others` is that of `read_table`; `features` and `sources` are those of
    `ml.toolkit.data.feature_sets.join`. Without `folds` it is split as if the schema had none.

    Rows are split by a hash of the id (or the group), so that a row stays in its split when others
    are added; by time if the schema names such a column. Ends the program with the problems, each
    with file and line, if the schema or the data is wrong.
    """
    try:
        raw = yaml.safe_load(schema.read_text(encoding="utf-8"))
        columns = TableSchema.parse(raw)
        about = Target.parse(raw, columns.columns, custom_metrics)
        about = about if folds else replace(about, folds=0)
        # Parse cells as requests are parsed, so that the same ones count as missing.
        typed = [
            replace(column, type="category") if column.name == about.text else column
            for column in columns.columns
        ]
        columns = replace(columns, columns=tuple(typed))
        in_file = _in_file(columns, about, features)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"error[wrong-schema]: {schema}: {error}") from None
    path = folder if folder.is_file() else folder / about.file
    table, findings = read_table(path, in_file, others=others)
    if findings:
        raise SystemExit(str(DataRefused(findings)))
    rows, training_set, values_of = table.rows, None, dict[str, reference.Columns]()
    if features is not None:
        joined, training_set, values_of = join(table, about.time, features, sources)
        names = [column.name for column in in_file.columns]
        rows = [
            _cells(columns.columns, dict(zip(names, row, strict=True)), values)
            for row, values in zip(table.rows, joined, strict=True)
        ]
    try:
        dataset = _dataset(about, columns.columns, rows)
    except SchemaRefused as error:
        raise SystemExit(f"error[wrong-schema]: {schema}: {error}") from None
    return replace(
        dataset, custom_metrics=custom_metrics, training_set=training_set, joined=values_of
    )


def _in_file(schema: TableSchema, about: Target, features: FeatureJoin | None) -> TableSchema:
    """Return the schema without feature-set columns; raise SchemaRefused if nothing joins them."""
    joined = [column for column in schema.columns if column.feature_set]
    feature_names = features.names if features is not None else ()
    for column in joined:
        if column.feature_set not in feature_names:
            raise SchemaRefused("feature_set", repr(column.feature_set), "one of ", feature_names)
    if feature_names and not about.time:
        raise SchemaRefused("time", "absent", "the column of the time to join features at")
    return replace(
        schema, columns=tuple(column for column in schema.columns if column not in joined)
    )


def _cells(columns: Sequence[Column], row: Mapping[str, str], joined: Row) -> list[str]:
    """Return the cells of a row in the order of all columns, with the joined features."""
    values = {name: "" if value is None else str(value) for name, value in joined.items()}
    return [values[column.name] if column.feature_set else row[column.name] for column in columns]


def _dataset(about: Target, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Dataset:
    """Return the dataset of checked cells; raise SchemaRefused if no row is positive."""
    values = {
        column.name: [column.parse(row[position]) for row in cells]
        for position, column in enumerate(columns)
    }
    excluded = {about.target, about.id, about.group, about.time}
    features = tuple(
        column
        for column in columns
        if column.type in FEATURES
        and column.name not in excluded
        and about.text in ("", column.name)
    )
    kind = TABLE_TASKS[about.task]
    labels = kind.labels(values[about.target], about.positive)
    if kind.has_positive and not labels.any():
        actual = sorted({str(value) for value in values[about.target]})[:MOST_SHOWN]
        raise SchemaRefused(
            "positive", repr(about.positive), f"a value of `{about.target}`: ", actual
        )
    contents = [] if about.id else [_hash(row) for row in zip(*values.values(), strict=True)]
    ids = [str(value) for value in values[about.id]] if about.id else list(_numbered(contents))
    groups = [str(value) for value in values[about.group]] if about.group else []
    times = [seconds(str(value)) for value in values[about.time]] if about.time else []
    names = groups or contents or ids
    every = Split(
        ids,
        labels,
        [list(row) for row in zip(*(values[column.name] for column in features), strict=True)],
        {
            name: _slices([*map(_length, values[name])] if name == about.text else values[name])
            for name in about.slices
        },
        groups,
        times,
        [_fold(name, about.folds) for name in names] if about.folds else (),
    )
    if about.folds:
        split_of_row = _beside_folds(names)
    else:
        split_of_row = _by_time(times) if times else [_by_hash(name) for name in names]
    splits = {
        split: every.subset([number for number, name in enumerate(split_of_row) if name == split])
        for split in SPLITS
    }
    if about.folds:
        splits[TEST] = splits[TRAIN]
        splits[VALIDATION] = replace(splits[VALIDATION], folds=())
    # With folds, other models than the served one predict the test rows.
    examined = VALIDATION if about.folds else TEST
    requests = [
        _request(columns, features, cells[number])
        for number, name in enumerate(split_of_row)
        if name == examined
    ]
    splits[examined] = replace(splits[examined], requests=requests)
    classes: tuple[str, ...] = ()
    if kind.has_classes:
        classes = tuple(np.unique(labels).tolist())
    return Dataset(about, features, classes, splits)


def _request(
    columns: Sequence[Column], features: Sequence[Column], cells: Sequence[str]
) -> dict[str, object]:
    """Return a row as a client of `ml.serving.scoring.table` sends it: its numbers, and its texts
    with the spaces and the words for missing values that the table has.
    """
    row = {
        column.name: cell if column.type == "category" else column.parse(cell)
        for column, cell in zip(columns, cells, strict=True)
    }
    names = [column.name for column in features]
    return {"input_data": {"columns": names, "data": [[row[name] for name in names]]}}


def _length(text: Value) -> int:
    """Return the number of words of a text."""
    return len(tokens(text))


def _slices(values: Sequence[Value]) -> list[str]:
    """Return the slice of each row: its value, its third of many numbers, or MISSING_SLICE."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len({*numbers}) <= MOST_SLICES:
        return [MISSING_SLICE if value is None else str(value) for value in values]
    low, high = np.quantile(numbers, [1 / 3, 2 / 3], method="nearest").tolist()
    names = (f"below {low:g}", f"{low:g} to {high:g}", f"above {high:g}")
    return [
        names[0 if value < low else 1 if value <= high else 2]
        if isinstance(value, int | float)
        else MISSING_SLICE
        for value in values
    ]


def _hash(row: Sequence[Value]) -> str:
    """Hash the values of a row; `1`, `1.0` and ` 1` hash equally."""
    written = [
        int(value) if isinstance(value, float) and value.is_integer() else value for value in row
    ]
    cells = ["" if value is None else plain(str(value)) for value in written]
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()[:16]


def _numbered(contents: Sequence[str]) -> Iterator[str]:
    """Yield the names; repeated ones get a number as suffix, so that all are unique."""
    times: Counter[str] = Counter()
    for name in contents:
        times[name] += 1
        yield name if times[name] == 1 else f"{name}-{times[name]}"


def _beside_folds(names: Sequence[str]) -> list[str]:
    """Return the split of each row: the quarter with the lowest hashes is validation."""
    ordered = sorted({*names}, key=lambda name: hashlib.sha256(name.encode()).digest())
    validation = {*ordered[: math.ceil(SHARE_BESIDE_FOLDS * len(ordered))]}
    return [VALIDATION if name in validation else TRAIN for name in names]


def _fold(name: str, folds: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[8:16]) % folds


def _check_fold(about: Target, fold: int, train: Split, splits: Mapping[str, Split]) -> None:
    """End the program if a fold has no row, or the others do not have every label."""
    target = TABLE_TASKS[about.task]
    wrong = "" if len(splits[TEST]) else "has no row"
    if (target.has_classes or target.has_positive) and not wrong:
        rare = sorted({*train.labels.tolist()} - {*splits[TRAIN].labels.tolist()}, key=str)
        wrong = f"has every row with the target {rare[0]}" if rare else ""
    if wrong:
        raise SystemExit(
            f"error[invalid-fold]: fold {fold + 1} of {about.folds} {wrong}\n"
            "  expected: rows in each fold, and every label in the others\n"
            "  hint: set fewer `folds` in the schema, or put rare labels together"
        )


def _by_hash(name: str) -> str:
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return TEST if place < SHARE else VALIDATION if place < 2 * SHARE else TRAIN


def _by_time(times: Sequence[float]) -> list[str]:
    """Return the split of each row; rows of the same time stay in one split."""
    ordered = sorted(times)
    test = ordered[round(len(ordered) * (1 - SHARE))]
    validation = ordered[round(len(ordered) * (1 - 2 * SHARE))]
    return [TEST if time >= test else VALIDATION if time >= validation else TRAIN for time in times]
