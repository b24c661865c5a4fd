"""A table with a target: read under its schema, checked, and split for training and evaluation.

The schema is a YAML file that travels with the code: that of `ml.toolkit.tables` with a few lines
on top of it.

    file: table.csv              # in the folder of the data asset
    task: binary                 # binary, multiclass or regression
    primary_metric: auc          # that versions are compared by; ml.toolkit.metrics has them all
    target: Churn
    positive: "Yes"              # binary: the value of the target that is 1
    id: customerID               # optional: what tells rows apart; by default their content
    group: household             # optional: its rows stay in one split, and are drawn together
    time: signed_on              # optional: later rows are validation, the latest are the test
    slices: [Contract]           # columns whose values, or thirds, the gate `fairness` compares
    delimiter: ","
    header: true
    rows: [500, 1000000]
    columns:
      - {name: customerID, type: id, unique: true}
      - {name: Contract, type: category}
      - {name: TotalCharges, type: float, optional: true}
      - {name: Churn, type: category}

Columns of the types `float`, `integer` and `category` are features, except the target, the id and
the group; columns of the types `id`, `text` and `timestamp` are not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ml.toolkit.leakage import Check, not_later
from ml.toolkit.measurement import VALIDATION, Rows, metric_values
from ml.toolkit.metrics import METRICS, TASKS, Task
from ml.toolkit.tables import Column, DataRefused, TableSchema, read_table

TRAIN, TEST = "train", "test"
PARTS = (TRAIN, VALIDATION, TEST)
# Of each split: the rest trains.
SHARE = 0.2
# A category that is rarer than these is missing to the model.
MOST_CATEGORIES = 1000
FEATURES = frozenset({"float", "integer", "category"})
# What preprocessing.json calls the types.
_SERVED = {"float": "float", "integer": "integer", "category": "text"}

# A numeric column of more values is sliced into thirds.
MOST_SLICES = 10
Value = str | int | float | None
_FIELDS = frozenset(
    [
        *("task", "primary_metric", "target", "positive", "id", "group", "time", "slices"),
        *("file", "columns", "rows", "header", "delimiter", "skip_spaces"),
    ]
)


class SchemaRefused(ValueError):
    """A schema is not one of a table with a target.

    `field` is the one that is wrong, `known` the values that it may have, where they can be listed.
    """

    def __init__(self, field: str, found: str, expected: str, known: Iterable[str] = ()) -> None:
        self.field, self.found, self.known = field, found, tuple(known)
        self.expected = f"{expected}{', '.join(self.known)}"
        super().__init__(f"`{field}` is {found}, expected {self.expected}")


@dataclass(frozen=True)
class Target:
    """What is predicted, and how the rows are split, sliced and drawn; the head of the schema."""

    task: Task
    primary_metric: str
    target: str
    file: str = "table.csv"
    positive: str = ""
    id: str = ""
    group: str = ""
    time: str = ""
    slices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any], columns: Sequence[Column]) -> Target:
        """The head of a schema; SchemaRefused names the field that is wrong."""
        types = {column.name: column.type for column in columns}
        if unknown := sorted(raw.keys() - _FIELDS):
            raise SchemaRefused(unknown[0], "an unknown field", "one of ", sorted(_FIELDS))
        task = raw.get("task")
        if task not in TASKS or task == "ranking":
            raise SchemaRefused("task", repr(task), "binary, multiclass or regression")
        metric = raw.get("primary_metric")
        if metric not in METRICS[task]:
            raise SchemaRefused("primary_metric", repr(metric), "one of ", METRICS[task])
        for name in ("target", "id", "group", "time"):
            column = raw.get(name)
            if column not in types and (column is not None or name == "target"):
                raise SchemaRefused(name, repr(column), "one of ", types)
        slices = raw.get("slices")
        if not isinstance(slices, list) or not slices or not {*slices} <= {*types}:
            raise SchemaRefused("slices", repr(slices), "a list of one or more columns")
        if task == "binary" and not raw.get("positive"):
            raise SchemaRefused("positive", repr(raw.get("positive")), "a value of the target")
        if task == "regression" and types[raw["target"]] not in ("float", "integer"):
            found = f"`{raw['target']}`, of type {types[raw['target']]}"
            raise SchemaRefused("target", found, "a column of type float or integer")
        names = ("target", "file", "positive", "id", "group", "time")
        texts = {name: str(raw[name]) for name in names if raw.get(name) is not None}
        return cls(task=task, primary_metric=str(metric), slices=tuple(slices), **texts)


@dataclass(frozen=True)
class Part:
    """The rows of one split. `rows` are the features in the order of the schema, as a request sends
    them; `labels` are 0 and 1 (binary), texts (multiclass) or numbers (regression).
    """

    ids: Sequence[str]
    labels: NDArray[Any]
    rows: Sequence[Sequence[Value]]
    slices: Mapping[str, Sequence[str]]
    groups: Sequence[str] = ()
    times: Sequence[float] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def with_scores(self, scores: NDArray[Any] | Sequence[Any] = ()) -> Rows:
        """These rows with what a model answered to them, as `ml.toolkit.measurement` takes them."""
        return Rows(self.ids, self.labels, scores, self.slices, self.groups)


@dataclass(frozen=True)
class Dataset:
    """A checked table: its features, its splits, and the classes of a multiclass target."""

    about: Target
    features: tuple[Column, ...]
    classes: tuple[str, ...]
    parts: Mapping[str, Part] = field(repr=False)

    @property
    def train(self) -> Part:
        """The rows that a model learns from."""
        return self.parts[TRAIN]

    @property
    def validation(self) -> Part:
        """The rows that models are chosen by."""
        return self.parts[VALIDATION]

    @property
    def test(self) -> Part:
        """The rows that versions are promoted on."""
        return self.parts[TEST]

    @property
    def categorical(self) -> list[int]:
        """The numbers of the features that are categories, as LightGBM takes them."""
        return [at for at, column in enumerate(self.features) if column.type == "category"]

    def preprocessing(self) -> dict[str, Any]:
        """The content of preprocessing.json (`ml.serving.scoring.tabular`): the features, with the
        categories of the training rows, and the classes.
        """
        columns = []
        for at, column in enumerate(self.features):
            of: dict[str, Any] = {"name": column.name, "type": _SERVED[column.type]}
            if column.type == "category":
                counts = Counter(row[at] for row in self.train.rows if row[at] is not None)
                of["categories"] = sorted(
                    str(name) for name, _ in counts.most_common(MOST_CATEGORIES)
                )
            columns.append(of)
        return {"columns": columns, "classes": list(self.classes)}

    def codes(self, part: Part) -> NDArray[np.float64]:
        """The labels as LightGBM takes them: the number of the class, or the number itself."""
        if self.about.task == "multiclass":
            return np.searchsorted(np.array(self.classes), part.labels).astype(np.float64)
        return part.labels.astype(np.float64)

    def metrics(self, part: str, scores: NDArray[Any]) -> dict[str, float]:
        """Every metric of a model's scores of a part, as `PART_METRIC`."""
        rows = self.parts[part].with_scores(scores)
        values = metric_values(self.about.task, rows, self.classes)
        return {f"{part}_{name}": value for name, value in values.items()}

    def leakage(self) -> list[Check]:
        """That the rows of the test are later than training, where rows are split by time."""
        if not self.about.time:
            return []
        return [not_later(self.train.times, self.test.times, self.about.time)]

    def inputs(self) -> dict[str, tuple[Any, list[Value]]]:
        """The columns of all rows, for `evaluate`: what requests look like."""
        rows = [row for part in self.parts.values() for row in part.rows]
        return {
            column.name: (
                "categorical" if column.type == "category" else "numeric",
                [row[at] for row in rows],
            )
            for at, column in enumerate(self.features)
            if any(row[at] is not None for row in rows)
        }


def read_dataset(folder: Path, schema: Path) -> Dataset:
    """The table in the folder of a data asset (or that file itself), split.

    Rows are split by a hash of the id (or the group), so that a row stays where it is when others
    are added; by time where the schema names such a column. Ends the program with the problems,
    each with file and line, when the schema or the data is wrong.
    """
    try:
        raw = yaml.safe_load(schema.read_text(encoding="utf-8"))
        columns = TableSchema.parse(raw)
        about = Target.parse(raw, columns.columns)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"error[wrong-schema]: {schema}: {error}") from None
    table, findings = read_table(folder if folder.is_file() else folder / about.file, columns)
    if findings:
        raise SystemExit(str(DataRefused(findings)))
    return _dataset(about, columns.columns, table.rows)


def _dataset(about: Target, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Dataset:
    column_of = {column.name: column for column in columns}
    values = {
        column.name: [column.parse(row[at]) for row in cells] for at, column in enumerate(columns)
    }
    aside = {about.target, about.id, about.group, about.time}
    features = tuple(
        column for column in columns if column.type in FEATURES and column.name not in aside
    )
    labels = _labels(about, column_of[about.target], values[about.target])
    contents = [] if about.id else [_hash(row) for row in cells]
    ids = [str(of) for of in values[about.id]] if about.id else list(_numbered(contents))
    groups = [str(of) for of in values[about.group]] if about.group else []
    times = [_seconds(str(of)) for of in values[about.time]] if about.time else []
    split = _by_time(times) if times else [_by_hash(name) for name in groups or contents or ids]
    rows = list(zip(*(values[column.name] for column in features), strict=True))
    slices = {name: _slices(values[name]) for name in about.slices}
    parts = {}
    for part in PARTS:
        at = [number for number, name in enumerate(split) if name == part]
        parts[part] = Part(
            [ids[number] for number in at],
            labels[at],
            [list(rows[number]) for number in at],
            {name: [of[number] for number in at] for name, of in slices.items()},
            [groups[number] for number in at] if groups else (),
            [times[number] for number in at] if times else (),
        )
    classes: tuple[str, ...] = ()
    if about.task == "multiclass":
        classes = tuple(np.unique(labels).tolist())
    return Dataset(about, features, classes, parts)


def _labels(about: Target, column: Column, values: Sequence[Value]) -> NDArray[Any]:
    if about.task == "regression":
        return np.array(values, dtype=np.float64)
    texts = [str(of) for of in values]
    if about.task == "multiclass":
        return np.array(texts)
    return np.array([of == about.positive for of in texts], dtype=np.int64)


def _slices(values: Sequence[Value]) -> list[str]:
    """Where each row belongs: its value, or its third where there are many numbers."""
    numbers = [of for of in values if isinstance(of, int | float)]
    if len({*numbers}) <= MOST_SLICES:
        return ["" if of is None else str(of) for of in values]
    low, high = np.quantile(numbers, [1 / 3, 2 / 3], method="nearest").tolist()
    names = (f"below {low:g}", f"{low:g} to {high:g}", f"above {high:g}")
    return [
        "" if not isinstance(of, int | float) else names[0 if of < low else 1 if of <= high else 2]
        for of in values
    ]


def _hash(row: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(row).encode()).hexdigest()[:16]


def _numbered(contents: Sequence[str]) -> Iterator[str]:
    """The same, with a number for one that occurs again."""
    times: Counter[str] = Counter()
    for name in contents:
        times[name] += 1
        yield name if times[name] == 1 else f"{name}-{times[name]}"


def _by_hash(name: str) -> str:
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return TEST if place < SHARE else VALIDATION if place < 2 * SHARE else TRAIN


def _seconds(time: str) -> float:
    """Of an ISO 8601 time since 1970; one without a zone is taken as UTC."""
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _by_time(times: Sequence[float]) -> list[str]:
    """Rows of one time stay in one split."""
    ordered = sorted(times)
    test = ordered[round(len(ordered) * (1 - SHARE))]
    validation = ordered[round(len(ordered) * (1 - 2 * SHARE))]
    return [TEST if at >= test else VALIDATION if at >= validation else TRAIN for at in times]
