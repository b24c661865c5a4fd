"""Fit the featurization to training rows, as the document of `ml.serving.scoring.columns`.

This module encodes each distinct text with `Input`, as serving does, so the numbers are identical.
The exception is target encoding: training rows get cross-fitted means of other rows, as in
scikit-learn's TargetEncoder, to avoid target leakage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.tables import MOST_CATEGORIES, Choices, Column, Table
from ml.automl.validation import Rows
from ml.serving.scoring.columns import (
    PARTS,
    Columns,
    Input,
    days,
    imputation_values,
    read_date,
    words,
)
from ml.toolkit.automl.cells import stop

if TYPE_CHECKING:
    import pandas as pd

# Maximum words of a text column that become features, and training rows required per word.
MOST_WORDS, ROWS_OF_WORD = 200, 10
# The code of a missing value.
_MISSING = -1


def fit(
    table: Table, labels: NDArray[Any], rows: Rows, classes: Sequence[str], choices: Choices
) -> dict[str, Any]:
    """Fit the encoding of each column to `rows`; return the content of `columns.json`.

    `labels` has the class numbers or the regression's target, for all rows of the table. `classes`
    has the names of the classes of a multiclass task; else it is empty.
    """
    inputs = []
    for column in table.columns:
        entry: dict[str, Any] = {"name": column.name}
        if column.feature == "number" and (fill := choices.fills.get(column.name)):
            entry["fill"] = _fill(column.name, table.frame[column.name].to_numpy()[rows], fill)
        elif column.feature == "category":
            counts = table.frame[column.name].iloc[rows].value_counts()
            common = counts[counts > 0].head(MOST_CATEGORIES).index
            entry["categories"] = sorted(map(str, common))
        elif column.feature == "date":
            entry |= _date(table, column, rows, column.name == choices.time)
        elif column.feature == "words":
            entry |= _words(table, column, rows)
        elif column.feature == "mean":
            entry |= _means(table, column, labels, rows, classes)
        if column.feature in ("number", "category", "date") and "fill" not in entry:
            entry |= _typical(entry, table.frame[column.name].iloc[rows])
        # Skip text columns in which every word is too rare to be a feature.
        if column.used and all(entry.get(kind, True) for kind in ("words", "parts")):
            inputs.append(entry)
    if not inputs:
        expected = "a number, a category, or a text with words that several rows share"
        stop("no-feature", "no column is informative in the training rows", expected, "add columns")
    return {
        "columns": [
            {"name": column.name, "type": column.kind, "required": column.required}
            for column in table.columns
        ],
        "inputs": inputs,
        "encoding": "codes",
        "classes": list(classes),
    }


def _typical(entry: Mapping[str, Any], values: pd.Series[Any]) -> dict[str, Any]:
    """Return the fields of an input's entry that say how missing values are imputed."""
    column, present = Input(entry), values.dropna()
    different = present.unique()
    if present.dtype == "category":
        texts = [text for text in different if not any(map(math.isnan, column.numbers(text)))]
        present, different = present[present.isin(texts)], np.array(texts, dtype=object)
    return imputation_values(column.name, different, len(values) - len(present), len(values))


def _fill(name: str, values: NDArray[Any], settings: Mapping[str, Any]) -> float:
    """Return the number that replaces missing ones, by the imputer in `transformer_params`."""
    from sklearn.impute import SimpleImputer

    fill = settings.get("fill_value") or 0.0
    try:
        number = float(fill)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        stop(
            "bad-imputer", f"`{name}` has `fill_value: {fill}`", "a finite number", "fill_value: 0"
        )
    imputer = SimpleImputer(
        strategy=settings.get("strategy", "mean"),
        fill_value=number,
        keep_empty_features=True,
    )
    return float(imputer.fit(values.reshape(-1, 1).astype(np.float64)).statistics_[0])


def _date(table: Table, column: Column, rows: Rows, orders: bool) -> dict[str, Any]:
    """Return the encoding of a date column: the calendar parts that vary in these rows, and days.

    If the column `orders` the folds, the year and the days are left out, since their values in
    validation rows are always outside the training range.
    """
    values = table.frame[column.name].iloc[rows].dropna().unique()
    times = [time for text in values if (time := read_date(str(text), column.order))]
    parts = [name for name, value in PARTS.items() if len({value(time) for time in times}) > 1]
    parts = [name for name in parts if not (orders and name == "year")]
    if times and not orders:
        parts.append("days")
    origin = min(map(days, times), default=0.0)
    return {"date": column.order, "origin": float(np.floor(origin)), "parts": parts}


def _words(table: Table, column: Column, rows: Rows) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = table.frame[column.name].iloc[rows].dropna().astype(str).to_numpy()
    vectorizer = TfidfVectorizer(
        analyzer=words, min_df=2, max_features=max(1, min(MOST_WORDS, len(rows) // ROWS_OF_WORD))
    )
    try:
        vectorizer.fit(texts)
    except ValueError:  # no word occurs in two texts
        return {"words": [], "idf": []}
    vocabulary = vectorizer.get_feature_names_out().tolist()
    return {"words": vocabulary, "idf": vectorizer.idf_.tolist()}


def _codes(table: Table, column: str, rows: Rows) -> NDArray[np.int64]:
    """Return the category codes of a column in `rows`; -1 if missing."""
    codes: NDArray[np.int64] = table.frame[column].cat.codes.to_numpy()[rows].astype(np.int64)
    return codes


def _encoder(others: Any = 5) -> Any:
    """Return scikit-learn's target encoder for numeric targets; `others` is its `cv`."""
    from sklearn.preprocessing import TargetEncoder

    return TargetEncoder(target_type="continuous", smooth="auto", cv=others)


def _targets(labels: NDArray[Any], classes: int) -> list[NDArray[np.float64]]:
    """Return the targets to average: the labels, or an indicator (0, 1) of each of `classes`.

    A class without rows has an indicator, too.
    """
    targets = [labels == number for number in range(classes)] or [labels]
    return [target.astype(np.float64, copy=False) for target in targets]


def _cross_fitted(
    codes: NDArray[np.int64], labels: NDArray[Any], classes: int
) -> NDArray[np.float32]:
    """Return cross-fitted target means (rows, classes or 1); all classes use the same folds."""
    from sklearn.model_selection import KFold, PredefinedSplit, StratifiedKFold

    kind = KFold if labels.dtype.kind == "f" else StratifiedKFold
    others: Any = kind(5, shuffle=True, random_state=0)
    table = codes.reshape(-1, 1)
    if classes:
        part = np.empty(len(labels), np.int8)
        for number, (_, rows) in enumerate(others.split(table, labels)):
            part[rows] = number
        others = PredefinedSplit(part)
    numbers = np.empty((len(labels), max(1, classes)), np.float32)
    for index, target in enumerate(_targets(labels, classes)):
        numbers[:, index] = _encoder(others).fit_transform(table, target)[:, 0]
    return numbers


def _means(
    table: Table, column: Column, labels: NDArray[Any], rows: Rows, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the entry of a target encoding: smoothed means of each category.

    The smoothing is scikit-learn's "auto", an empirical Bayes estimate (Micci-Barreca 2001).
    """
    codes = _codes(table, column.name, rows)
    targets = _targets(labels[rows], len(classes))
    encoders = [_encoder().fit(codes.reshape(-1, 1), target) for target in targets]
    of_codes = np.column_stack([encoder.encodings_[0] for encoder in encoders])
    overall = [float(encoder.target_mean_) for encoder in encoders]
    texts = table.frame[column.name].cat.categories
    pairs = zip(encoders[0].categories_[0].tolist(), of_codes.tolist(), strict=True)
    by_code = {int(code): means for code, means in pairs}
    missing = by_code.pop(_MISSING, overall)
    means = {str(texts[code]): value for code, value in by_code.items()}
    return {"means": means, "missing": missing, "other": overall, "of": list(classes) or [""]}


def matrix(
    table: Table,
    document: Mapping[str, Any],
    rows: Rows,
    fitted: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """Return the encoded rows (rows, features), as `Columns.matrix` does, in single precision.

    Pass the labels of all rows as `fitted` if the document was fitted to these rows: their target
    means are then cross-fitted.
    """
    inputs = [Input(entry) for entry in document["inputs"]]
    starts = np.cumsum([0, *(len(part.names) for part in inputs)])
    # Compute these before the result is allocated, since scikit-learn needs much memory.
    cross_fitted = {
        index: _cross_fitted(
            _codes(table, column.name, rows), fitted[rows], len(document["classes"])
        )
        for index, column in enumerate(inputs)
        if fitted is not None and "means" in document["inputs"][index]
    }
    numbers = np.empty((len(rows), int(starts[-1])), dtype=np.float32)
    for index, column in enumerate(inputs):
        part = slice(starts[index], starts[index + 1])
        values, fill = table.frame[column.name], document["inputs"][index].get("fill")
        if index in cross_fitted:
            numbers[:, part] = cross_fitted.pop(index)
        elif str(values.dtype) == "category":
            codes = values.cat.codes.to_numpy()[rows]
            numbers[:, part] = _of_texts(column, values.cat.categories, codes)[codes]
        else:
            numbers[:, starts[index]] = values.to_numpy()[rows]
        if fill is not None:
            numbers[np.isnan(numbers[:, starts[index]]), starts[index]] = fill
    return numbers


def _of_texts(column: Input, texts: Any, codes: NDArray[Any]) -> NDArray[np.float32]:
    """Encode each text that occurs in `codes` as in serving; the last row is for missing texts."""
    numbers = np.empty((len(texts) + 1, len(column.names)), dtype=np.float32)
    for place in np.flatnonzero(np.bincount(codes.astype(np.int64) + 1)).tolist():
        text = None if place == 0 else str(texts[place - 1])
        numbers[place - 1] = column.numbers(text)
    return numbers


def columns(document: Mapping[str, Any]) -> Columns:
    """Return the encoder that serving uses, from the content of `columns.json`."""
    return Columns(document, lambda row: row)
