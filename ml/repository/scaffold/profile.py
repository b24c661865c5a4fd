"""Profile a table: infer its column types, task, splits, slices and primary metric.

All results are first guesses, which `ml new` writes into files for a person to correct.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml.core import repository
from ml.core.errors import Place, Problem, UserError, nearest
from ml.core.terminal import printable
from ml.measures import leakage
from ml.measures.measurement import Rows, constant_answer, metric_values
from ml.measures.metrics import Metric
from ml.measures.schema import Check
from ml.measures.tasks import TASKS, TargetColumn, Task
from ml.repository.scaffold.cells import line_of, read_cells
from ml.serving.scoring.columns import MISSING
from ml.toolkit.data.datasets import FEATURES, TABLE_TASKS
from ml.toolkit.data.tables import (
    Column,
    ColumnType,
    is_number,
    is_whole_number,
)

if TYPE_CHECKING:
    import pandas as pd

# A split by time has a fifth of the rows in validation and in test; the gates require 100 in both.
FEWEST_ROWS = 600
# Small tables without a time column use cross-validation: three quarters of the rows are tested out
# of fold, and the gates require 30 rows in validation. Above the maximum, a fifth of the rows (600)
# is enough: the interval of two equal models' AUC difference is as wide as the margin of
# `non-inferiority`.
FEWEST_ROWS_OF_FOLDS, MOST_ROWS_OF_FOLDS = 150, 3000
FOLDS = 5
# A target of whole numbers with more distinct values means regression, not classes.
MOST_CLASSES = 20
# A text column with more distinct values, or more than one for two rows, is no category.
MOST_CATEGORIES = 200
# In a column with at least this share of numbers, words are probably typing errors or codes for
# "unknown". The share is higher for few distinct numbers: a storey may be 1, 2, 3 or G.
MOSTLY_NUMBERS, MOSTLY_FEW_NUMBERS = 0.5, 0.8
# Maximum distinct values of a slice column.
MOST_SLICES = 10
FEWEST_IN_SLICE, FEWEST_IN_SLICE_OF_FOLDS = 100, 40
# Maximum rows that are checked for target leakage.
MOST_CHECKED = 20_000
# Words in the names of columns with attributes that anti-discrimination law usually protects (EU
# Charter of Fundamental Rights, article 21; US Equal Credit Opportunity Act), and of columns that
# do not define groups.
_PROTECTED = frozenset(
    [
        *("sex", "gender", "race", "ethnicity", "ethnic", "age", "senior", "nationality"),
        *("disability", "disabled", "religion", "marital", "married", "maritalstatus"),
    ]
)
_NO_GROUP = frozenset(("phone", "telephone", "mobile", "fax", "email", "mail", "url", "address"))
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# The number of sample requests: enough for a canary to compare prediction distributions.
SAMPLES = 100
# `ml new --kind sequence`: a model that reads one text column as a sequence of words.
SEQUENCE = "sequence"
# The fields of Choices that are names of columns.
_COLUMNS = frozenset(("target", "id", "group", "time", "slice", "text"))
_ID = ("id", "key", "uuid", "guid", "number", "index", "nr", "nummer")
# Minimum share of distinct values, and minimum rank correlation with time or with the row order,
# at which whole numbers look like ids.
MOSTLY_DISTINCT, ASCENDING = 0.95, 0.95
# A positive class below this share is rare: few scores exceed the threshold of 0.5.
RARE_POSITIVE = 0.2
# Numbers with leading zeros, such as 003, are codes: `_PADDED`.
_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{4}\b", re.ASCII)
_PADDED = re.compile(r"[+-]?0\d", re.ASCII)
# Numbers with commas: 8398,03 and 8.398,03; 8,398 and 8,398.03.
_COMMA = re.compile(r"[+-]?((\d+|\d{1,3}(\.\d{3})+),\d+|\d{1,3}(,\d{3})+(\.\d+)?)", re.ASCII)
# Numbers whose dots may be thousands separators: 31.949 and 1.234.567, but not 0.949.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", re.ASCII)
_POSITIVE = frozenset({"1", "yes", "true", "y", "t"})


@dataclass(frozen=True)
class Choices:
    """The user's choices about the table; "" means that the value is inferred."""

    target: str
    task: str = ""
    primary_metric: str = ""
    positive: str = ""
    id: str = ""
    group: str = ""
    time: str = ""
    slice: str = ""
    kind: str = ""  # SEQUENCE, or "" for a project with numeric and categorical features
    text: str = ""  # the text column of a SEQUENCE project


@dataclass(frozen=True)
class Profile:
    """Everything about a table that the project's files need."""

    task: Task
    primary_metric: str
    head: Mapping[str, object]  # fields of the schema besides its columns
    columns: tuple[Column, ...]
    classes: int  # number of classes; 0 unless multiclass
    baseline: float  # primary metric of a constant prediction; forecasting: of seasonal naive
    spread: float  # largest minus smallest target; classification: 1; forecasting: 0
    samples: Sequence[Sequence[Any]]  # sample requests: the features of a row, or a series
    doubts: Sequence[str] = ()  # sentences about guesses that may be wrong
    leaks: Sequence[str] = ()  # sentences about columns that predict the target too well

    @property
    def goal(self) -> str:
        """Return `maximize` or `minimize`."""
        return self.metric.goal

    @property
    def metric(self) -> Metric:
        """Return the primary metric."""
        return TASKS[self.task].metrics[self.primary_metric]

    @property
    def features(self) -> tuple[Column, ...]:
        """Return the columns that are features of the model; () for forecasting."""
        if "horizon" in self.head:
            return ()  # a person lists a forecast's features in the schema's `known`
        if text := self.head.get("text"):
            return tuple(column for column in self.columns if column.name == text)
        used = {self.head.get(name) for name in ("target", "id", "group", "time")}
        return tuple(
            column for column in self.columns if column.type in FEATURES and column.name not in used
        )

    @property
    def excluded_columns(self) -> tuple[Column, ...]:
        """Return the columns that are neither features nor the target, time or series' names."""
        used: list[object] = [self.head["target"]]
        if "horizon" in self.head:
            used += [self.head["time"], *self.head["series"]]  # type: ignore[misc]
        return tuple(
            column
            for column in self.columns
            if column not in self.features and column.name not in used
        )


def profile(path: Path, choices: Choices) -> Profile:
    """Profile a CSV file with a header; raise UserError if it does not suit a project."""
    frame, form = read_cells(path)
    names = list(frame.columns)
    for option, name in vars(choices).items():
        if option in _COLUMNS and name and name not in names:
            close = nearest(name, names)
            actual = f"{repository.shown(path)} has no column `{name}` for --{option}"
            hint = f"did you mean `{close[0]}`?" if close else ""
            raise UserError(Problem("no-such-column", actual, f"one of: {', '.join(names)}", hint))
    folds = 0 if choices.time or len(frame) > MOST_ROWS_OF_FOLDS else FOLDS
    if len(frame) < (FEWEST_ROWS if choices.time else FEWEST_ROWS_OF_FOLDS):
        enough = f"at least {FEWEST_ROWS}: validation and test are a fifth each, and the gates ask"
        expected = f"{enough} for 100 rows in both"
        if not choices.time:
            expected = (
                f"at least {FEWEST_ROWS_OF_FOLDS}: three quarters are tested out of fold, and the "
                "gates require 100 rows of them"
            )
        actual = f"{repository.shown(path)} has {len(frame)} rows"
        raise UserError(Problem("too-few-rows", actual, expected))
    columns = [column_of(name, frame[name]) for name in names]
    text = _text(path, choices, columns, frame) if choices.kind else ""
    target = frame[choices.target]
    for option in ("target", "id", "group", "time"):
        name = getattr(choices, option)
        empty = frame[name][frame[name].isin(MISSING)] if name else ()
        if len(empty):
            written = sorted({*empty} - {""})
            actual = (
                f"{len(empty)} of {len(frame)} rows have no `{name}`; the first is on this line"
            )
            place = Place(
                repository.shown(path), line_of(path, form, int(frame[name].isin(MISSING).argmax()))
            )
            hint = f"fill them in, or leave out --{option}"
            if option == "target":
                hint = "remove those rows: nothing can be learnt from them"
            if written:
                actual += f": a cell of {' or '.join(map(_quoted, written))} counts as missing"
                hint += f"; a value that is called {_quoted(written[0])} needs another name"
            raise UserError(Problem(f"empty-{option}", actual, "a value in every row", hint, place))
    task = _task(choices, target)
    kind, about = TASKS[task], TABLE_TASKS[task]
    if text and about.types:
        actual = f"--kind {SEQUENCE} predicts classes, and `{choices.target}` has numbers"
        expected = f"two values (binary), or 3 to {MOST_CATEGORIES} (multiclass)"
        hint = "name another --target, or leave out --kind"
        raise UserError(Problem("wrong-target", actual, expected, hint))
    metric = choices.primary_metric or kind.primary
    if metric not in kind.metrics:
        expected = f"one of: {', '.join(kind.metrics)}"
        raise UserError(
            Problem("no-such-metric", f"--metric {metric} of a {task} model", hint=expected)
        )
    columns = [_as(column, choices, about, text) for column in columns]
    positive = (choices.positive or _positive(target)) if about.has_positive else ""
    if positive and positive not in {*target}:
        values = ", ".join(sorted({*target}))
        raise UserError(
            Problem("no-such-value", f"--positive {positive}", hint=f"one of: {values}")
        )
    own_id = choices.id or next((column.name for column in columns if column.type == "id"), "")
    head: dict[str, object] = {"file": "table.csv", "task": task, "primary_metric": metric}
    head["target"] = choices.target
    optional = {"positive": positive, "id": own_id, "group": choices.group, "time": choices.time}
    optional["text"] = text
    head |= {name: value for name, value in optional.items() if value}
    if folds:
        head["folds"] = folds
    # With FEWEST_ROWS there is an AutoML job, too; its models are evaluated without folds.
    fewest = FEWEST_IN_SLICE_OF_FOLDS if folds and len(frame) < FEWEST_ROWS else FEWEST_IN_SLICE
    excluded = {choices.target, own_id, choices.group}
    head["slices"] = [choices.slice]
    head |= form
    head["header"] = True
    head["rows"] = [len(frame) // 2, len(frame) * 100]
    labels = about.labels(target.to_list(), positive)
    classes = sorted({*target}) if about.has_classes else []
    result = Profile(
        task,
        metric,
        head,
        tuple(columns),
        len(classes),
        _same_answer(task, metric, labels, classes),
        float(labels.max() - labels.min()) if about.types else 1.0,
        (),
    )
    indices = [list(frame.columns).index(column.name) for column in result.features]
    if not indices:
        actual = "no column is a number or a category"
        raise UserError(Problem("no-feature", actual, "a feature", "add a column to the table"))
    step = max(1, len(frame) // SAMPLES)
    samples = [
        [column.parse(row[number]) for number, column in zip(indices, result.features, strict=True)]
        for row in frame.iloc[::step].head(SAMPLES).itertuples(index=False, name=None)
    ]
    doubts = [*_copies(frame)]
    for column in result.columns:
        name = column.name
        dots = thousands(name, frame[name], form["delimiter"])
        doubts += [dots] if dots else _doubts(column, frame[name])
    if positive and (share := float(labels.mean())) < RARE_POSITIVE:
        doubts.append(
            f"{_quoted(positive)} is the positive class of {100 * share:.1f} % of the rows: few "
            "scores exceed the threshold of 0.5, so set `costs` or `threshold` in the schema"
        )
    times = [column.name for column in columns if column.type == "timestamp"]
    doubts += _like_ids(frame, result.features, times)
    if times and not choices.time and len(frame) >= FEWEST_ROWS:
        doubts.append(
            f"{_quoted(times[0])} has times: add --time {printable(times[0])} if the model will "
            "predict later rows"
        )
    checks = [] if text else _leaks(frame, result.features, labels)
    checks = [check for check in checks if leakage.warning(check)]
    if not choices.slice:
        excluded |= {check.of or "" for check in checks}
        head["slices"] = _slices(frame, columns, excluded, fewest, text)
    leaks = [printable(leakage.warning(check)) for check in checks]
    return replace(result, samples=samples, doubts=doubts, leaks=leaks)


def column_of(name: str, cells: pd.Series[str]) -> Column:
    """Return the column with the type inferred from its cells."""
    present = cells[~cells.isin(MISSING)]
    optional, unique = len(present) < len(cells), present.nunique() == len(cells)
    values = present.unique().tolist()
    kind: ColumnType = "text"
    if not values:
        return Column(name, "text", optional=True)
    is_code = any(map(_PADDED.match, values))
    if all(map(is_whole_number, values)) and not is_code:
        kind = "id" if unique and _is_id(name) else "integer"
    elif all(map(is_number, values)) and not is_code:
        kind = "float"
    elif all(map(_is_time, values)):
        kind = "timestamp"
    elif unique and not any(" " in value for value in values):
        kind = "id"
    elif len(values) <= MOST_CATEGORIES and 2 * len(values) <= len(cells):
        kind = "category"
    return Column(name, kind, unique=kind == "id", optional=optional)


def thousands(name: str, cells: pd.Series[str], delimiter: object) -> str:
    """Return a note if dots in a column may be thousands separators; else "".

    They may be if three digits follow each dot, since decimals would vary in length. Unless
    semicolons as delimiters suggest a decimal comma, there must also be numbers without a dot, all
    below 1000.
    """
    values = cells[~cells.isin(MISSING)].unique().tolist()
    dotted = [value for value in values if "." in value]
    others = [value for value in values if "." not in value]
    if (
        not dotted
        or not all(map(_THOUSANDS.fullmatch, dotted))
        or not all(map(is_whole_number, others))
        or (delimiter != ";" and (not others or max(abs(int(cell)) for cell in others) >= 1000))
    ):
        return ""
    return (
        f"{_quoted(name)} has numbers whose dots look like thousands separators, and are read as "
        f"decimal points ({_quoted(dotted[0])}): write {dotted[0].replace('.', '')} into the table "
        "if they are"
    )


def _is_id(name: str) -> bool:
    """Return whether a column's name looks like the name of an id."""
    return name.casefold().endswith(_ID) or (_WORD.findall(name) or [""])[-1].casefold() == "no"


def _like_ids(
    frame: pd.DataFrame, features: Sequence[Column], times: Sequence[str]
) -> Iterator[str]:
    """Yield a note for each feature that looks like an id.

    It has distinct whole numbers, and a name like an id's or values in the order of time or rows.
    """
    import pandas as pd

    rows = pd.Series(range(len(frame)), dtype=float)
    for column in features:
        cells = frame[column.name]
        present = cells[~cells.isin(MISSING)]
        distinct = present.nunique() / len(present)
        if column.type != "integer" or distinct < MOSTLY_DISTINCT:
            continue
        ranks = pd.to_numeric(present).rank()
        orders = [rows]
        orders += [frame[name].mask(frame[name].isin(MISSING)).rank() for name in times]
        if _is_id(column.name) or any(abs(ranks.corr(order)) >= ASCENDING for order in orders):
            option = "--id" if distinct == 1 else "--group, since rows repeat"
            yield (
                f"{_quoted(column.name)} looks like an id and is a feature: {100 * distinct:.3g} % "
                f"of its values differ; name it with {option}, or give it the type `text`"
            )


def _copies(frame: pd.DataFrame) -> Iterator[str]:
    """Yield a note about duplicate rows; none if most rows are, as in tables of few values."""
    copies = int(frame.duplicated().sum())
    if 0 < 2 * copies <= len(frame):
        rows = (
            "1 row is a copy of another" if copies == 1 else f"{copies:,} rows are copies of others"
        )
        yield (
            f"{rows} in every column: training and the metrics count such rows again; remove "
            "copies from the table unless each is an observation of its own"
        )


def _doubts(column: Column, cells: pd.Series[str]) -> Iterator[str]:
    """Yield notes on a column's values that a person may want to correct before training."""
    counts = cells[~cells.isin(MISSING)].value_counts()
    total, name = int(counts.sum()), _quoted(column.name)
    if column.type in ("category", "id", "text") and all(map(_DATE.match, counts.index)) and total:
        yield (
            f"{name} is of type {column.type} since its dates ({_quoted(counts.index[0])}) are not "
            "in ISO 8601: write 2026-01-31 into the table if they are to be times"
        )
        return
    if column.type not in ("category", "id", "text"):
        return
    kind = "an id" if column.type == "id" else f"a {column.type}"
    numbers = counts[[is_number(value) for value in counts.index]]
    commas = counts[[bool(_COMMA.fullmatch(value)) for value in counts.index]]
    if len(commas) and numbers.sum() + commas.sum() >= MOSTLY_NUMBERS * total:
        yield (
            f"{name} is {kind} since its numbers have commas ({_quoted(commas.index[0])}): write "
            "them as 1234.5 into the table if they are to be numbers"
        )
        return
    words = counts.drop(numbers.index)
    share = MOSTLY_NUMBERS if len(numbers) > MOST_CLASSES else MOSTLY_FEW_NUMBERS
    if len(words) and numbers.sum() >= share * total:
        listed = ", ".join(f"{_quoted(word)} {count:,} times" for word, count in words[:3].items())
        yield (
            f"{name} is {kind} since {words.sum():,} of {total:,} values "
            f"are no numbers ({listed}{', …' if len(words) > 3 else ''}): empty those cells if it "
            "is to be a number"
        )
    spellings: dict[str, list[str]] = {}
    for value in words.index:
        alike = unicodedata.normalize("NFKC", value).casefold()
        spellings.setdefault(alike, []).append(value)
    doubled = [values for values in spellings.values() if len(values) > 1]
    if column.type == "category" and doubled:
        listed = "; ".join(" and ".join(map(_quoted, values)) for values in doubled[:3])
        yield (
            f"{name} has values that differ in case or Unicode form alone ({listed}"
            f"{'; …' if len(doubled) > 3 else ''}): each is a category of its own, unless the "
            "table or columns.py spells them alike"
        )


def _leaks(frame: pd.DataFrame, features: Sequence[Column], labels: Any) -> list[Check]:
    """Return the checks for target leakage: features that predict it too well, alone or together.

    Returns [] if the checked rows have only one label.
    """
    import pandas as pd

    step = -(-len(frame) // MOST_CHECKED)
    names = [column.name for column in features]
    codes = [number for number, column in enumerate(features) if column.type == "category"]
    columns = []
    for number, name in enumerate(names):
        cells = frame[name].iloc[::step]
        cells = cells.mask(cells.isin(MISSING))
        is_code = number in codes
        numbers = pd.Series(pd.factorize(cells)[0]).replace(-1, math.nan) if is_code else cells
        columns.append(pd.to_numeric(numbers, errors="coerce").to_numpy(dtype=float))
    table = np.column_stack(columns)
    try:
        alone = leakage.features(table, labels[::step], names, codes)
        return [*alone, *leakage.joint_checks(table, labels[::step], names)]
    except ValueError:  # the checked rows have only one label
        return []


def _quoted(value: object) -> str:
    """Return a value for a sentence: in backticks, escaped, at most 40 characters."""
    return f"`{printable(str(value))[:40]}`"


def _is_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _text(path: Path, choices: Choices, columns: Sequence[Column], frame: pd.DataFrame) -> str:
    """Return the text column of a SEQUENCE project: the choice, or that with the longest texts.

    Raises UserError if there is none, or if the choice has another role.
    """
    used = {choices.target, choices.id, choices.group, choices.time}
    if choices.text:
        if choices.text in used:
            actual = f"`{choices.text}` is passed to --text and to another option"
            raise UserError(Problem("option-conflict", actual, "a column that is only the text"))
        return choices.text
    lengths = {
        column.name: float(frame[column.name].str.split().str.len().mean())
        for column in columns
        if column.type == "text" and column.name not in used
    }
    longest = max(lengths, key=lambda name: lengths[name], default="")
    if not longest or lengths[longest] <= 1:
        actual = f"{repository.shown(path)} has no column of texts"
        expected = "a column with several words in a row"
        raise UserError(Problem("no-feature", actual, expected, "name it with --text COLUMN"))
    return longest


def _as(column: Column, choices: Choices, about: TargetColumn, text: str) -> Column:
    """Return the column with the type that its role requires: text, target, id or time."""
    if column.name == text:
        return replace(column, type="text", unique=False)
    if column.name == choices.target and not about.types:
        return replace(column, type="category", unique=False)
    if column.name == choices.id:
        return replace(column, type="id", unique=True)
    if column.name == choices.time:
        return replace(column, type="timestamp")
    return column


def _task(choices: Choices, target: pd.Series[str]) -> Task:
    values = {*target}
    numeric = all(map(is_number, values))
    task: Task = "multiclass"
    if choices.task:
        if choices.task not in TABLE_TASKS:
            tasks = " or ".join(TABLE_TASKS)
            raise UserError(Problem("no-such-task", f"--task {choices.task}", tasks))
        task = choices.task
    elif len(values) == 2:
        task = "binary"
    elif numeric and (len(values) > MOST_CLASSES or not all(map(is_whole_number, values))):
        task = "regression"
    if not TABLE_TASKS[task].fits(len(values), numeric):
        kind = "numbers" if numeric else "texts"
        actual = f"`{choices.target}` has {len(values)} different {kind}"
        several = f"3 to {MOST_CATEGORIES} (multiclass)"
        expected = f"two values (binary), {several} or numbers (regression)"
        hint = "choose one with --task"
        if len(values) == 1:
            actual = f"`{choices.target}` has a single value, `{min(values)}`"
            hint = "add rows with another value, or choose another --target"
        raise UserError(Problem("wrong-target", actual, expected, hint))
    return task


def _positive(target: pd.Series[str]) -> str:
    """Return the positive class: the value in _POSITIVE, such as `yes`, else the rarest one."""
    counts = target.value_counts()
    affirmative = [str(name) for name in counts.index if str(name).casefold() in _POSITIVE]
    return affirmative[0] if len(affirmative) == 1 else str(counts.index[-1])


def _slices(
    frame: pd.DataFrame, columns: Sequence[Column], excluded: set[str], fewest: int, text: str
) -> list[str]:
    """Return the names of the slice columns.

    These are the columns with usually protected attributes. Without any, it is one column: among
    those of few values, the one whose second most frequent value has the most rows; else the first
    numeric column, cut into thirds; else the text column. `fewest` is the minimum number of rows of
    the second most frequent value. Names with a dot are skipped, since gates.yml cannot contain
    them. Raises UserError if no column is suitable.
    """
    usable = [
        column
        for column in columns
        if column.name not in excluded
        and column.type in FEATURES
        and "." not in column.name
        and not _words(column.name) & _NO_GROUP
    ]
    by_size: dict[str, int] = {}
    protected: list[str] = []
    for column in usable:
        counts = frame[column.name][~frame[column.name].isin(MISSING)].value_counts()
        is_compared = len(counts) > 1 and counts.iloc[1] >= fewest  # gates ignore small slices
        is_cut = column.type != "category" and len(counts) > MOST_SLICES
        if is_compared and len(counts) <= MOST_SLICES:
            by_size[column.name] = int(counts.iloc[1])
        if _is_protected(column.name) and (is_compared or is_cut):
            protected.append(column.name)
    names = [column.name for column in usable if column.type != "category"]
    numbers = sorted(names, key=_is_id)  # ids last
    if protected:
        return protected
    if by_size:
        return [max(by_size, key=lambda name: by_size[name])]
    if not numbers and text and "." not in text:
        return [text]  # sliced by its length
    if not numbers:
        actual = "no column is suitable for slices"
        expected = f"a column with at most {MOST_SLICES} distinct values, or a numeric column"
        raise UserError(Problem("no-slice", actual, expected, "name one with --slice COLUMN"))
    return numbers[:1]


def _is_protected(name: str) -> bool:
    words = _words(name)
    return bool(words & _PROTECTED) or {"personal", "status"} <= words


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case: `SeniorCitizen` → {senior, citizen}."""
    return {word.casefold() for word in _WORD.findall(name)}


def _same_answer(task: Task, metric: str, labels: Any, classes: Sequence[str]) -> float:
    """Return the primary metric of the best constant prediction for these labels."""
    answer = constant_answer(task, metric, labels, len(labels), classes)
    ids = [str(number) for number in range(len(labels))]
    return metric_values(task, Rows(ids, labels, answer), classes)[metric]
