"""Read a table with a target, check it against its schema, and split it.

The schema is a YAML file in the repository. It extends the schema of `ml.toolkit.data.tables`:

    file: table.csv              # in the folder of the data asset
    task: binary                 # binary, multiclass or regression
    primary_metric: auc          # compares versions; see ml.measures.metrics for all metrics
    target: Churn
    positive: "Yes"              # binary: the value of the target that is 1
    threshold: 0.2               # optional, binary: rows with a higher score are predicted positive
    costs: {false_positive: 1, false_negative: 4}  # instead of threshold: minimise expected cost
    id: customerID               # optional: the row's id; by default a hash of its content
    group: household             # optional: a group's rows share a split and a bootstrap draw
    time: signed_on              # optional: later rows are validation, the latest are the test
    folds: 5                     # optional: cross-validation; out-of-fold predictions as the test
    text: note                   # optional: the only feature, a text split into words
    slices: [Contract]           # columns for `fairness`: by value, by thirds, or missing
    delimiter: ","
    header: true
    rows: [500, 1000000]
    columns:
      - {name: customerID, type: id, unique: true}
      - {name: Contract, type: category}
      - {name: TotalCharges, type: float, optional: true}
      - {name: Churn, type: category}

Columns of the types `float`, `integer` and `category` are features, except the target, the id and
the group; columns of the types `id`, `text` and `timestamp` are not. Give a column that is unknown
at prediction time the type `text`. A column with `feature_set: NAME` is not in the file; it comes
from a point-in-time join at `time`. The field `text` names a column of type `text` as the only
feature; a slice by it compares thirds of its number of words.

A hash of the id assigns each row to a split: 60 % training, 20 % validation, 20 % test. Adding rows
does not move others.

With `folds`, a small table needs no separate test rows. A quarter is validation; the rest is both
training and, by cross-validation, the test. `Dataset.by_fold` yields a dataset per fold, which
trains on the other folds. The estimate is of the code and the settings, not of the served model.
`ml new` writes `folds` for tables of at most 3,000 rows. `folds` excludes `time`. Versions measured
with folds are not compared with versions measured without. AutoML jobs ignore `folds`, because
their models cannot be refitted per fold.

A cell is missing if it is empty or one of `NA`, `N/A`, `NaN`, `NULL`, `None` and `?`; in a request,
`null` is missing too. Without `optional: true`, a missing value is an error: `empty-value` in a
table, status 400 in a request. With `optional: true`, the model learns from the rows with a missing
value if there are at least 20 (in a large table, 1 in 1,000). Otherwise the value is imputed by 16
evenly spaced quantiles of the column, over which predictions are averaged. A category unknown to
training counts as missing.

`ml new --datastore` infers the schema from a sample: set `rows` to the bounds of the whole table. A
local run reads a copy in `.local/data/NAME/VERSION`.
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
# Share of the rows in validation and in the test, each.
SHARE = 0.2
# Share of the validation split if the schema has folds.
SHARE_BESIDE_FOLDS = 0.25
MOST_FOLDS = 20
FEATURES = frozenset(FEATURE_KINDS)
# The tasks that predict a column of a table.
TABLE_TASKS = {name: kind.target for name, kind in tasks.TASKS.items() if kind.target is not None}

# A numeric column with more distinct values is sliced into thirds.
MOST_SLICES = 10
# The slice of rows without a value.
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
    """The task part of the schema; the module's docstring explains the fields."""

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
        """Parse a schema's task part; `custom` has the project's metrics. Raises SchemaRefused."""
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
                expected = "no `text`, which only binary and multiclass tasks support"
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
        threshold = _decision_threshold(raw, kind.has_positive)
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


def _decision_threshold(raw: Mapping[str, Any], is_binary: bool) -> float:
    """Return the decision threshold of a schema, by default 0.5; raise SchemaRefused if invalid.

    With costs, it minimises the expected cost: false_positive / (false_positive + false_negative)
    (Elkan 2001, The Foundations of Cost-Sensitive Learning).
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
    """The rows of one split; each field has one item per row, or is ().

    `labels` are 0 and 1 (binary), texts (multiclass) or numbers (regression). `rows` are the
    features in the order of the schema, `requests` the test rows as a client sends them. `times`
    are in seconds since 1970.
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
        """Return a split of the rows with the indices `rows`."""

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
    """Encoded rows, to fit a model."""

    table: NDArray[np.float64]  # (rows, columns)
    labels: NDArray[np.float64]  # 0 and 1 (binary), class indices (multiclass) or numbers


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
        """The rows for fitting models."""
        return self.splits[TRAIN]

    @property
    def validation(self) -> Split:
        """The rows for model selection."""
        return self.splits[VALIDATION]

    @property
    def test(self) -> Split:
        """The test rows, on which the gates compare versions."""
        return self.splits[TEST]

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Feature → its kind in requests (see FEATURE_KINDS)."""
        return {column.name: FEATURE_KINDS[column.type] for column in self.features}

    def by_fold(self) -> Iterator[tuple[NDArray[np.int64], Dataset]]:
        """Yield (row indices, dataset) per fold; the dataset tests on the fold, trains on the rest.

        The indices refer to the training split. Exits if a fold is empty, or the others lack a
        label.
        """
        fold_of = np.asarray(self.train.folds)
        for fold in range(self.about.folds):
            rows, elsewhere = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
            splits = {TRAIN: self.train.subset(elsewhere), TEST: self.train.subset(rows)}
            _check_fold(self.about, fold, self.train, splits)
            yield rows, replace(self, splits={**self.splits, **splits})

    def columns(self, derive: Derive, encoding: Encoding) -> Columns:
        """Return the encoder fitted to the training rows; raise ValueError as `Columns.fit`."""
        required = {column.name for column in self.features if not column.optional}
        rows, classes = self.train.rows, self.classes
        return Columns.fit(self.kinds, rows, derive, encoding, classes, required)

    def numbers(self, split: str, columns: Columns) -> Numbers:
        """Return the encoded rows of a split, to fit a model."""
        rows = self.splits[split]
        labels = rows.labels
        labels = TABLE_TASKS[self.about.task].numbers(labels, self.classes)
        return Numbers(columns.fill(columns.matrix(rows.rows)), labels.astype(np.float64))

    def scored(self, split: str, scores: NDArray[Any] | Sequence[Any] = ()) -> Rows:
        """Return the rows of a split and a model's scores as `Rows` for `evaluate`.

        In the columns for custom metrics, a missing value is NaN, or "" in a category.
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
        """Return all metrics of a split by the name `<split>_<metric>`, such as `test_auc`."""
        rows = self.scored(split, scores)
        values = metric_values(self.about.task, rows, self.classes, self.custom_metrics)
        return {f"{split}_{name}": value for name, value in values.items()}

    def leakage(self) -> list[Check]:
        """Check that all test rows are later than training; [] unless rows are split by time."""
        if not self.about.time:
            return []
        return [not_later(self.train.times, self.test.times, self.about.time)]

    def inputs(self) -> dict[str, tuple[Any, list[Value]]]:
        """Return feature → (kind, values of all rows) for `evaluate`, without empty features."""
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
    """Read and split the table in `folder`, the folder of a data asset or the file itself.

    others: ignore columns of the file that the schema does not name.
    features, sources: see `ml.toolkit.data.feature_sets.join`.
    folds: False ignores `folds` of the schema.

    Prints every problem with file and line and exits if the schema or the data is invalid.
    """
    try:
        raw = yaml.safe_load(schema.read_text(encoding="utf-8"))
        columns = TableSchema.parse(raw)
        about = Target.parse(raw, columns.columns, custom_metrics)
        about = about if folds else replace(about, folds=0)
        # A text feature is parsed like a category, so that tables and requests agree on missing.
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
    """Return a row's cells in the order of `columns`, including the joined features as texts."""
    values = {name: "" if value is None else str(value) for name, value in joined.items()}
    return [values[column.name] if column.feature_set else row[column.name] for column in columns]


def _dataset(about: Target, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Dataset:
    """Return the dataset of checked cells; raise SchemaRefused if no label is positive."""
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
    # With folds, the served model does not predict the test rows, so requests use validation.
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
    """Return the request for a row, as for `ml.serving.scoring.table`.

    Texts are unprocessed cells, with their spaces and markers of missing values.
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
    """Return each row's slice: its value, the third of its number, or MISSING_SLICE."""
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
    """Return a hash of a row's values; `1`, `1.0` and ` 1` have the same hash."""
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
    """Return each row's split, with folds: the quarter with the lowest hashes is validation."""
    ordered = sorted({*names}, key=lambda name: hashlib.sha256(name.encode()).digest())
    validation = {*ordered[: math.ceil(SHARE_BESIDE_FOLDS * len(ordered))]}
    return [VALIDATION if name in validation else TRAIN for name in names]


def _fold(name: str, folds: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[8:16]) % folds


def _check_fold(about: Target, fold: int, train: Split, splits: Mapping[str, Split]) -> None:
    """Exit if a fold is empty or the other folds lack a label."""
    target = TABLE_TASKS[about.task]
    wrong = "" if len(splits[TEST]) else "has no row"
    if (target.has_classes or target.has_positive) and not wrong:
        rare = sorted({*train.labels.tolist()} - {*splits[TRAIN].labels.tolist()}, key=str)
        wrong = f"has every row with the target {rare[0]}" if rare else ""
    if wrong:
        raise SystemExit(
            f"error[invalid-fold]: fold {fold + 1} of {about.folds} {wrong}\n"
            "  expected: rows in each fold, and every label in the others\n"
            "  hint: set fewer `folds` in the schema, or merge rare labels"
        )


def _by_hash(name: str) -> str:
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return TEST if place < SHARE else VALIDATION if place < 2 * SHARE else TRAIN


def _by_time(times: Sequence[float]) -> list[str]:
    """Return each row's split by time; rows with the same time share a split."""
    ordered = sorted(times)
    test = ordered[round(len(ordered) * (1 - SHARE))]
    validation = ordered[round(len(ordered) * (1 - 2 * SHARE))]
    return [TEST if time >= test else VALIDATION if time >= validation else TRAIN for time in times]
