"""Encodes rows as a model's numeric inputs, in the same way for training, evaluation and serving.

All three parse each value with `read_cell` or `read_json`, derive columns with the project's own
function, and encode the row with the `columns.json` of the model folder:

    {"columns": [{"name": "Contract", "type": "text", "required": true},
                 {"name": "age", "type": "float"}],
     "inputs": [{"name": "Contract", "categories": ["month", "year"],
                 "imputation_values": ["month", …]},
                {"name": "age"}],
     "encoding": "codes", "classes": []}

`columns` are the columns of a table or request; `inputs` are the columns that `derive` returns. A
`required` column (not `optional` in the schema) needs a value in every row; a table or request
without it is refused. A text outside the `categories`, and None or NaN from `derive`, are missing
values:

- If enough training rows lack a value, the model learns the meaning of a missing value.
- Otherwise a model cannot learn it, and LightGBM would treat it as 0 or another category. So it is
  replaced by `imputation_values` of training. Trees are fitted to one of these (`Columns.fill`)
  and predict the mean over all of them (`Columns.predict_imputed`); a linear model or a network
  uses their mean.

The encodings:

- `codes`: a number unchanged, a text as its category code (its index in `categories`), a missing
  value as NaN. For trees and AutoML.
- `one-hot`: (number - `mean`) / `deviation`, 0 if missing, with a further column that flags missing
  values if the model learns them; a column per category. For linear models and networks.
- `tokens`: a text as a sequence of word numbers, padded with 0, for a sequence network:
  `{"name": "note", "tokens": ["late", "fee"], "length": 64}`. 1 is any unknown word, words after
  `length` are cut, and a missing text has no words.
- `words`: a text as TF-IDF of its words, as in AutoML. For the linear model beside `tokens`.

AutoML has further inputs, the same in both encodings, whose columns `Input` computes:

    {"name": "age", "fill": 37.5}                          replaces a missing number
    {"name": "paid", "date": "iso", "origin": 738000, "parts": ["month", "hour", "days"]}
    {"name": "note", "words": ["late", "late fee"], "idf": [1.2, 3.4]}
    {"name": "shop", "means": {"a": [0.2]}, "missing": [0.1], "other": [0.1], "of": [""]}

A date is "iso", "month-first" or "day-first"; `days` counts days since `origin`. The words of a
text are weighted by TF-IDF and scaled to length 1. `means` maps a value to the mean of the target
in training, one for each class in `of`; `other` is used for unseen values.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from itertools import compress, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.messages import BadRequest

FILE = "columns.json"
Value = str | int | float | None
Row = dict[str, Value]
Derive = Callable[[Row], Row]
Kind = Literal["float", "integer", "text"]
Encoding = Literal["codes", "one-hot", "tokens", "words"]
# Texts that represent a missing value; a request may also send null.
MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"})
# Stricter than int() and float(), which accept 1_000, inf and digits of other scripts.
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Integers have 64 bits.
_LARGEST = 2**63
# Maximum number of categories by encoding; rarer ones are unknown.
_MOST_CATEGORIES: Mapping[Encoding, int] = {"codes": 1000, "one-hot": 50}
# Maximum vocabulary of `tokens` and `words`. Rarer words, and words in fewer than `_FEWEST_TEXTS`
# texts, are unknown. `tokens` cuts texts at a number of words that covers `_SHARE_READ` of the
# training texts, at most `_LONGEST`.
_MOST_WORDS: Mapping[Encoding, int] = {"tokens": 20_000, "words": 500}
_FEWEST_TEXTS, _LONGEST, _SHARE_READ = 2, 256, 0.95
UNKNOWN, FIRST_WORD = 1, 2
_EXPECTED: Mapping[Kind, str] = {
    "float": "a number",
    "integer": "a whole number of 64 bits",
    "text": "a text",
}


def read_cell(kind: Kind, cell: str) -> Value:
    """Parse a table's cell; return None for a missing value. Raises ValueError for another kind."""
    cell = cell.strip()
    if cell in MISSING:
        return None
    if kind == "text":
        return cell
    if (_INTEGER if kind == "integer" else _NUMBER).fullmatch(cell):
        value = int(cell) if kind == "integer" else float(cell)
        if abs(value) < _LARGEST if kind == "integer" else math.isfinite(value):
            return value + 0  # turn -0 into 0: JSON has no integer -0
    raise ValueError(f"{cell!r}, expected {_EXPECTED[kind]}")


def read_json(kind: Kind, value: object) -> Value:
    """Convert a request's value as `read_cell` does a cell; raise ValueError for another kind."""
    if value is None or (isinstance(value, str) and value.strip() in MISSING):
        return None
    if kind == "text":
        if isinstance(value, bool):  # as in files
            return "true" if value else "false"
        if isinstance(value, str):
            return read_cell(kind, value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "float" and abs(value) <= _FINITE:
            return float(value) + 0.0
        if kind == "integer" and -_LARGEST < value < _LARGEST and value == int(value):
            return int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and kind != "text"
    actual = str(value)[:40] if is_number else type(value).__name__
    raise ValueError(f"{actual}, expected {_EXPECTED[kind]}")


_FINITE = float(np.finfo(np.float64).max)
_NUMBERS = frozenset({int, float})
# Number of imputation values per input; each costs one call of the model.
_IMPUTATIONS = 16
# A model learns missing values if at least this many training rows, and this share of them, lack
# one: the minimum size of a tree's leaf, and enough for LightGBM's sampling of large tables.
_FEWEST, _SMALLEST_SHARE = 20, 0.001
Predict = Callable[[NDArray[Any]], NDArray[Any]]


class Columns:
    """Converts rows to a model's inputs, with `columns.json` and the project's `derive`."""

    def __init__(self, document: Mapping[str, Any], derive: Derive) -> None:
        self._document, self._derive = document, derive
        self.columns: dict[str, Kind] = {
            str(column["name"]): column["type"] for column in document["columns"]
        }
        self.classes = tuple(str(name) for name in document["classes"])
        self._inputs = [Input(spec) for spec in document["inputs"]]
        self._is_one_hot = document["encoding"] == "one-hot"
        self.names = tuple(
            name
            for spec in self._inputs
            for name in (spec.one_hot_names if self._is_one_hot else spec.names)
        )
        # Indices of the columns that hold category codes.
        self.categorical = category_columns(self._inputs) if not self._is_one_hot else []
        self._coded = [(spec.name, spec.codes) for spec in self._inputs]
        self._is_plain = all(spec.is_plain for spec in self._inputs)
        # If all inputs are numbers, one call gets them all.
        all_numbers = len(self._coded) > 1 and all(codes is None for _, codes in self._coded)
        self._numbers = itemgetter(*(name for name, _ in self._coded)) if all_numbers else None
        self._order = list(self.columns)
        self._kinds = list(self.columns.values())
        self._required = [bool(column.get("required")) for column in document["columns"]]
        # (_IMPUTATIONS, names): NaN for columns whose missing values the model learns.
        self._imputation_values = np.hstack(
            [np.empty((_IMPUTATIONS, 0)), *(spec.imputation_values for spec in self._inputs)]
        )

    @property
    def categories(self) -> dict[str, list[str]]:
        """Map each input with category codes to its categories."""
        inputs = (self._inputs[number] for number in self.categorical)
        return {spec.name: list(spec.categories or ()) for spec in inputs}

    @property
    def vocabulary(self) -> int:
        """Return the vocabulary size of `tokens`, including padding and the unknown word."""
        return FIRST_WORD + len(self.words)

    @property
    def words(self) -> list[str]:
        """Return the vocabulary of `tokens`, in the order of the words' numbers."""
        return [str(word) for spec in self._document["inputs"] for word in spec.get("tokens", ())]

    @classmethod
    def fit(
        cls,
        columns: Mapping[str, Kind],
        rows: Sequence[Sequence[Value]],
        derive: Derive,
        encoding: Encoding,
        classes: Sequence[str] = (),
        required: Container[str] = (),
        *,
        imputes: bool = False,
    ) -> Columns:
        """Fit the encoding to training rows; columns in `required` have a value in every row.

        For a model that `imputes` missing values itself, no `imputation_values` are stored.
        Raises ValueError if `derive` fails, or returns varying columns or infinite numbers.
        """
        derived = _derived(derive, list(columns), rows)
        names = list(derived[0]) if derived else []
        if any(row.keys() != derived[0].keys() for row in derived):
            raise ValueError("derive() gives rows different columns")
        inputs = [_fitted(name, [row[name] for row in derived], encoding) for name in names]
        for entry in inputs if imputes else ():
            entry.pop("imputation_values", None)
        document = {
            "columns": [
                {"name": name, "type": kind, "required": name in required}
                for name, kind in columns.items()
            ],
            "inputs": inputs,
            "encoding": encoding,
            "classes": list(classes),
        }
        return cls(document, derive)

    @classmethod
    def load(cls, folder: Path, derive: Derive) -> Columns:
        """Load the columns of a model folder."""
        return cls(json.loads((folder / FILE).read_text(encoding="utf-8")), derive)

    def save(self, folder: Path) -> None:
        """Write `columns.json` into a model folder."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._document, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def read(self, names: Sequence[object], rows: Sequence[object]) -> list[list[Value]]:
        """Return the rows of a request with the values in the order of the columns.

        `names` are the request's columns in any order; unknown ones are ignored. Raises BadRequest
        for a missing column, a row whose length differs from `names`, a value of another kind,
        and a missing value of a required column.
        """
        order = None if names == self._order else self._order_of(names)
        width = len(names)
        return [self._values(row, width, order) for row in rows]

    def matrix(self, rows: Sequence[Sequence[Value]]) -> NDArray[np.float64]:
        """Encode rows from `read` as the model's inputs (rows, names).

        Raises ValueError if `derive` fails, returns other columns than in training, or a number
        that is not finite.
        """
        encode = self._one_hot if self._is_one_hot else self._codes if self._is_plain else self._all
        derived = _derived(self._derive, self._order, rows)
        try:
            table = np.array([encode(row) for row in derived], dtype=np.float64)
        except KeyError as error:
            raise ValueError(f"derive() gives no column {error}") from None
        table = table.reshape(len(rows), len(self.names))
        wrong = ~np.isfinite(table) if self._is_one_hot else np.isinf(table)
        if np.count_nonzero(wrong):  # for one row, twice as fast as any()
            index = int(np.argwhere(wrong)[0][1])
            raise ValueError(f"`{self.names[index]}` is not finite")
        return table

    def coded(self) -> Columns:
        """Return the same columns in the encoding `codes`; `tokens` become a word count."""
        inputs = [
            {"name": spec["name"], "count": spec["length"]} if "tokens" in spec else spec
            for spec in self._document["inputs"]
        ]
        return Columns({**self._document, "inputs": inputs, "encoding": "codes"}, self._derive)

    def predict_imputed(self, predict: Predict, table: NDArray[Any]) -> NDArray[Any]:
        """Return the predictions for rows of `matrix`, (rows,) or (rows, classes).

        For a row with a missing value that the model has not learnt, it is the mean of the
        predictions with each imputation value.
        """
        predictions, rows = predict(table), self._rows_to_impute(table)
        if len(rows):
            predictions, missing = np.array(predictions, dtype=np.float64), table[rows]
            imputed = (
                np.where(np.isnan(missing), fill, missing) for fill in self._imputation_values
            )
            sums = sum(predict(copy.astype(table.dtype)) for copy in imputed)
            predictions[rows] = sums / _IMPUTATIONS
        return predictions

    def fill(self, table: NDArray[Any]) -> NDArray[Any]:
        """Replace missing values that the model cannot learn by imputation values, in place."""
        rows = self._rows_to_impute(table)
        if len(rows):
            imputed = self._imputation_values[rows % _IMPUTATIONS]
            table[rows] = np.where(np.isnan(table[rows]), imputed, table[rows])
        return table

    def _rows_to_impute(self, table: NDArray[Any]) -> NDArray[np.intp]:
        """Return the indices of the rows with a missing value that has imputation values."""
        missing = np.isnan(table)
        if not np.count_nonzero(missing):
            return np.empty(0, np.intp)
        return np.flatnonzero((missing & ~np.isnan(self._imputation_values[0])).any(axis=1))

    def _order_of(self, names: object) -> list[int]:
        """Return the index in `names` of each column; raise BadRequest if one is missing."""
        if (
            not isinstance(names, list)
            or not all(isinstance(name, str) for name in names)
            or len(names) != len({*names})
        ):
            raise BadRequest("columns", "not a list of names", ", ".join(self._order)[:500])
        missing = [name for name in self._order if name not in names]
        if missing:
            unknown = [name for name in names if name not in self.columns]
            parts = {"missing": missing, "unknown": unknown}
            actual = "; ".join(
                f"{what}: {', '.join(columns)[:200]}" for what, columns in parts.items() if columns
            )
            raise BadRequest("columns", actual, ", ".join(self._order)[:500])
        return [names.index(name) for name in self._order]

    def _values(self, row: object, width: int, order: Sequence[int] | None) -> list[Value]:
        if not isinstance(row, list) or len(row) != width:
            kind = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise BadRequest("data", kind, f"rows of {width} values")
        if order is not None:
            row = [row[index] for index in order]
        try:
            # Fast path: most values are numbers of their column's type, without a function call.
            values = [
                value
                if type(value) is int and kind == "integer" and -_LARGEST < value < _LARGEST
                else value + 0.0
                if type(value) is float and kind == "float" and -_FINITE <= value <= _FINITE
                else read_json(kind, value)
                for kind, value in zip(self._kinds, row, strict=True)
            ]
            if None not in values or None not in compress(values, self._required):
                return values
            raise ValueError
        except ValueError:
            stated = zip(self._order, self._kinds, self._required, row, strict=True)
            for name, kind, required, value in stated:
                try:
                    if read_json(kind, value) is None and required:
                        expected = f"{_EXPECTED[kind]}: the column is not `optional`"
                        raise ValueError(f"no value (empty-value), expected {expected}")
                except ValueError as error:
                    actual, _, expected = str(error).partition(", expected ")
                    raise BadRequest(name[:80], actual, expected) from None
            raise

    def _codes(self, row: Row) -> list[Any]:
        """Encode a row: numbers unchanged, texts as category codes, NaN if missing or unknown."""
        if self._numbers is not None and {*map(type, numbers := self._numbers(row))} <= _NUMBERS:
            return list(numbers)
        return [
            codes.get(row[name], math.nan)
            if codes is not None
            else math.nan
            if (value := row[name]) is None or isinstance(value, str)
            else value
            for name, codes in self._coded
        ]

    def _all(self, row: Row) -> list[float]:
        return [part for spec in self._inputs for part in spec.numbers(row[spec.name])]

    def _one_hot(self, row: Row) -> list[float]:
        return [part for spec in self._inputs for part in spec.one_hot(row[spec.name])]


def _derived(derive: Derive, names: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[Row]:
    try:
        return [derive(dict(zip(names, row, strict=True))) for row in rows]
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"derive() does not take these values: {what}") from error


def imputation_values(name: str, values: NDArray[Any], missing: int, rows: int) -> dict[str, Any]:
    """Return {"imputation_values": [...]} for an input with these training values.

    Of `rows` training rows, `missing` have no value. The imputation values are evenly spaced among
    the sorted distinct values and shuffled, so that two inputs are independent. {} if the model can
    learn missing values.
    """
    if missing >= max(_FEWEST, _SMALLEST_SHARE * rows) or not len(values):
        return {}
    ordered = np.unique(values)
    order = np.random.default_rng([*name.encode()]).permutation(_IMPUTATIONS)
    chosen = ordered[(2 * order + 1) * len(ordered) // (2 * _IMPUTATIONS)]
    return {"imputation_values": chosen.tolist()}


def category_columns(inputs: Sequence[Input]) -> list[int]:
    """Return the indices of the columns of `inputs` that hold category codes."""
    starts = np.cumsum([0, *(len(spec.names) for spec in inputs)])
    pairs = zip(inputs, starts[:-1].tolist(), strict=True)
    return [start for spec, start in pairs if spec.categories is not None]


# The possible `parts` of a date, besides `days`.
PARTS: Mapping[str, Callable[[datetime], float]] = {
    "year": lambda moment: moment.year,
    "month": lambda moment: moment.month,
    "day": lambda moment: moment.day,
    "weekday": lambda moment: moment.weekday(),
    "hour": lambda moment: moment.hour,
}
# In dates with dots, the month is always second.
_DATE = re.compile(r"(\d\d?)([/.])(\d\d?)\2(\d{4})(?:[ T](\d\d?):(\d\d)(?::(\d\d))?)?", re.ASCII)
# scikit-learn's token_pattern: words of two letters or more.
_WORDS = re.compile(r"\b\w\w+\b")
# Words; single characters in Chinese and Japanese, which have no spaces.
_TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def read_date(text: str, order: str) -> datetime | None:
    """Parse a text as a naive time, in UTC if it has a zone; return None if it is not a time.

    `order` is "iso", "month-first" or "day-first".
    """
    try:
        if order == "iso":
            time = datetime.fromisoformat(text)
            return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
        if (match := _DATE.fullmatch(text)) and (order, match[2]) != ("month-first", "."):
            first, second, year, *clock = (int(part or 0) for part in match.group(1, 3, 4, 5, 6, 7))
            month, day = (first, second) if order == "month-first" else (second, first)
            return datetime(year, month, day, clock[0], clock[1], clock[2])
    except (ValueError, OverflowError):
        pass
    return None


def days(time: datetime) -> float:
    """Return the proleptic Gregorian ordinal of a time, with the fraction of the day."""
    seconds = time.hour * 3600 + time.minute * 60 + time.second
    return time.toordinal() + seconds / 86400


def words(text: str) -> list[str]:
    """Return the words and the bigrams of a text, in lower case."""
    single = _WORDS.findall(text.lower())
    return single + [f"{a} {b}" for a, b in pairwise(single)]


def tokens(value: Value) -> list[str]:
    """Return the words of a text in order, in lower case; [] for a missing text."""
    if not isinstance(value, str):
        return []
    return _TOKENS.findall(unicodedata.normalize("NFKC", value).lower())


class Input:
    """One entry of `inputs`, which converts a value to the numbers of one or several columns."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.name = str(spec["name"])
        self._spec = spec
        self._fill: float = spec.get("fill", math.nan)
        self._terms = {str(term): i for i, term in enumerate(spec.get("words", ()))}
        self._tokens = {str(word): i for i, word in enumerate(spec.get("tokens", ()), FIRST_WORD)}
        computed = {
            **{"date": self._date, "words": self._text, "means": self._mean_of},
            **{"tokens": self._numbered, "count": self._counted},
        }
        kind = next((encoding for encoding in computed if encoding in spec), "")
        self._compute: Callable[[Value], list[float]] | None = computed.get(kind)
        self.is_plain = self._compute is None and "fill" not in spec
        listed = spec.get("categories")
        self.categories: list[str] | None = (
            None if listed is None else [str(text) for text in listed]
        )
        self.codes: dict[Value, float] | None = None
        if self.categories is not None:
            coded = [(text, float(code)) for code, text in enumerate(self.categories)]
            # JSON's true may be True or TRUE in the training file.
            flags = [
                (text.lower(), code) for text, code in coded if text.lower() in ("true", "false")
            ]
            self.codes = dict([*flags, *coded])
        self._mean, self._deviation = spec.get("mean", 0.0), spec.get("deviation", 1.0)
        self._says_missing = bool(spec.get("missing", False))
        # In one-hot, the encoding of an unknown category: the shares of the imputation values.
        counts = Counter(spec.get("imputation_values", ()))
        self._shares = [counts[text] / _IMPUTATIONS for text in self.categories or ()]

    @property
    def names(self) -> list[str]:
        """Return the names of the input's columns."""
        spec = dict(self._spec)
        if "length" in spec:
            spec["length"] = [str(i + 1) for i in range(spec["length"])]
        parts = next((spec[key] for key in ("parts", "words", "of", "length") if key in spec), [""])
        return [f"{self.name}: {part}" if part else self.name for part in parts]

    def numbers(self, value: Value) -> list[float]:
        """Return a value's numbers, one per column; NaN if missing or unknown."""
        if self._compute is not None:
            return self._compute(value)
        if self.codes is not None:
            return [self.codes.get(value, math.nan)]
        return [self._fill if value is None or isinstance(value, str) else value]

    @property
    def imputation_values(self) -> NDArray[np.float64]:
        """Return replacements of a missing value, (_IMPUTATIONS, names); NaN if it is learnt."""
        values = self._spec.get("imputation_values", [None] * _IMPUTATIONS)
        return np.array([self.numbers(value) for value in values], dtype=np.float64)

    def _date(self, value: Value) -> list[float]:
        time = read_date(value, self._spec["date"]) if isinstance(value, str) else None
        parts = self._spec["parts"]
        if time is None:
            return [math.nan] * len(parts)
        since = days(time) - self._spec["origin"]
        return [since if part == "days" else PARTS[part](time) for part in parts]

    def _text(self, value: Value) -> list[float]:
        row = [0.0] * len(self._terms)
        counts = Counter(words(value)) if isinstance(value, str) else Counter[str]()
        terms = sorted(
            (self._terms[term], count) for term, count in counts.items() if term in self._terms
        )
        weights = [(index, count * self._spec["idf"][index]) for index, count in terms]
        length = math.sqrt(math.fsum(weight * weight for _, weight in weights))
        for index, weight in weights:
            row[index] = weight / length
        return row

    def _numbered(self, value: Value) -> list[float]:
        numbers = [
            self._tokens.get(word, UNKNOWN) for word in tokens(value)[: self._spec["length"]]
        ]
        return [*map(float, numbers), *[0.0] * (self._spec["length"] - len(numbers))]

    def _counted(self, value: Value) -> list[float]:
        return [float(min(len(tokens(value)), self._spec["count"]))]

    def _mean_of(self, value: Value) -> list[float]:
        if value is None:
            means: list[float] = self._spec["missing"]
            return means
        of_value: list[float] = self._spec["means"].get(value, self._spec["other"])
        return of_value

    @property
    def one_hot_names(self) -> list[str]:
        """Return the names of the input's one-hot columns."""
        if self._compute is not None:
            return self.names
        if self.categories is not None:
            return [f"{self.name}={text}" for text in self.categories]
        return [self.name, *([f"{self.name} is missing"] if self._says_missing else [])]

    def one_hot(self, value: Value) -> list[float]:
        """Return a value's numbers in the one-hot encoding, one per column."""
        if self._compute is not None:
            return [0.0 if math.isnan(column) else column for column in self._compute(value)]
        if self.categories is not None:
            code = (self.codes or {}).get(value)
            if code is None:
                return self._shares
            return [float(code == index) for index in range(len(self.categories))]
        if value is None or isinstance(value, str) or math.isnan(value):
            return [0.0, *([1.0] if self._says_missing else [])]
        number = (float(value) - self._mean) / self._deviation
        return [number, *([0.0] if self._says_missing else [])]


def _fitted(name: str, values: Sequence[Value], encoding: Encoding) -> dict[str, Any]:
    """Fit an entry of `inputs` to a column's training values; raise ValueError for mixed types."""
    # NaN is a missing value, too.
    present = [value for value in values if value is not None and value == value]
    if texts := [value for value in present if isinstance(value, str)]:
        if len(texts) != len(present):
            raise ValueError(f"`{name}` has texts and numbers")
        if encoding in _MOST_WORDS:
            return _fitted_text(name, texts, encoding)
        common = dict(Counter(texts).most_common(_MOST_CATEGORIES[encoding]))
        missing = len(values) - sum(common.values())
        sample = imputation_values(name, np.array([*common], dtype=object), missing, len(values))
        return {"name": name, "categories": sorted(common), **sample}
    numbers = np.array(present, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"`{name}` is not finite in every row")
    sample = imputation_values(name, numbers, len(values) - len(numbers), len(values))
    if encoding == "codes" or not len(numbers):
        return {"name": name, **sample}
    # Scale first, because sums and squares of large numbers overflow.
    scale = float(np.abs(numbers).max()) or 1.0
    return {
        "name": name,
        "mean": float((numbers / scale).mean()) * scale,
        "deviation": float((numbers / scale).std()) * scale or 1.0,
        "missing": not sample,
    }


def _fitted_text(name: str, texts: Sequence[str], encoding: Encoding) -> dict[str, Any]:
    """Fit an entry of `inputs` to training texts, in the encoding `tokens` or `words`.

    The vocabulary is ordered by document frequency, the most frequent word first.
    """
    read = [tokens(text) if encoding == "tokens" else words(text) for text in texts]
    counts = Counter(word for row in read for word in {*row})
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[: _MOST_WORDS[encoding]]
    vocabulary = {word: count for word, count in ordered if count >= _FEWEST_TEXTS}
    if encoding == "words":
        # scikit-learn's smooth idf.
        idf = [math.log((1 + len(texts)) / (1 + count)) + 1 for count in vocabulary.values()]
        return {"name": name, "words": [*vocabulary], "idf": idf}
    length = int(np.quantile([*map(len, read)], _SHARE_READ, method="higher"))
    return {"name": name, "tokens": [*vocabulary], "length": min(max(length, 1), _LONGEST)}
