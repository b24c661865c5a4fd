"""Evaluate models of AutoML jobs instead of a project's own train.py.

The job gets the training and validation rows as MLTables. Its model is evaluated only if it was
fitted on exactly those rows, because other rows might be test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.members import Members
from ml.toolkit.data.datasets import TABLE_TASKS, Dataset, Split
from ml.toolkit.training.boosting import contributions

# The key of the AutoML job's facts in settings.json.
FACT = "automl"
_FILE = "rows.parquet"
# The rolling-origin forecasts of an AutoML forecaster, in pandas JSON (`orient="split"`), which
# model folders allow.
FORECASTS = "forecasts.json"
# Rows per hashing step, to limit memory, since hashing copies them.
_HASHED_AT_ONCE = 50_000
_MLTABLE = f"""\
type: mltable
paths:
  - file: ./{_FILE}
transformations:
  - read_parquet
"""


class Winner:
    """The functions of `Predictor` for a folder with AutoML members."""

    @staticmethod
    def predict(model: Members, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the model's prediction for each row."""
        return model.predict(table)

    @staticmethod
    def contributions(folder: Path, table: NDArray[np.float64]) -> Contributions | str:
        """Return the SHAP values if the only member is a tree model, else why there are none."""
        files = Members(folder).files
        if len(files) == 1 and files[0].endswith(".txt"):
            import lightgbm

            return contributions(lightgbm.Booster(model_file=folder / files[0]), table)
        if len(files) == 1 and files[0].endswith(".json"):
            return _of_xgboost(folder / files[0], table)
        if len(files) > 1:
            return f"an ensemble of {len(files)} members has no exact contributions"
        return f"contributions of {files[0]} are not computed"


def _of_xgboost(file: Path, table: NDArray[np.float64]) -> Contributions:
    """Return exact TreeSHAP values of an XGBoost model, computed in float32.

    A row's values and the expected score add up to its raw score. With several classes, there is
    one row of values per class.
    """
    import xgboost

    booster = xgboost.Booster(model_file=file)
    kinds = booster.feature_types
    rows = xgboost.DMatrix(table.astype(np.float32), feature_types=kinds, enable_categorical=True)
    values = np.asarray(booster.predict(rows, pred_contribs=True), dtype=np.float64)
    values = values.reshape(-1, table.shape[1] + 1)
    raw = np.asarray(booster.predict(rows, output_margin=True), dtype=np.float64).reshape(-1)
    scale = max(float(np.abs(raw).max(initial=0.0)), 1.0)
    error = float(np.abs(values.sum(axis=1) - raw).max(initial=0.0)) / scale
    return Contributions(values[:, :-1], len(table), "TreeSHAP", error)


def write_table(dataset: Dataset, split: str, folder: Path) -> None:
    """Write the features and the target of a split as an MLTable with a typed Parquet file.

    Columns that are not `optional` are non-nullable.
    """
    import pandas as pd
    import pyarrow as pa

    rows = dataset.splits[split]
    folder.mkdir(parents=True, exist_ok=True)
    values = _values(dataset, rows) | {dataset.about.target: _targets(dataset, rows)}
    frame, optional = (
        pd.DataFrame(values),
        {column.name for column in dataset.features if column.optional},
    )
    fields = pa.Schema.from_pandas(frame, preserve_index=False)
    schema = pa.schema([field.with_nullable(field.name in optional) for field in fields])
    frame.to_parquet(folder / _FILE, index=False, schema=schema)
    (folder / "MLTable").write_text(_MLTABLE, encoding="utf-8")


def as_searched(
    dataset: Dataset, columns: Columns, members: Members, search: Mapping[str, Any]
) -> Dataset:
    """Return the dataset with its features in the order of the model's columns.

    Exits if the model was fitted or validated on other rows, or if columns or target differ.
    """
    about = dataset.about
    question = (about.task, about.positive, dataset.classes)
    answers = (members.task, members.positive, columns.classes)
    if question != answers:
        stop("target-mismatch", f"it predicts {answers}", f"{question} of the schema")
    kinds = {name: kind == "text" for name, kind in columns.columns.items()}
    expected = {name: kind == "text" for name, kind in dataset.kinds.items()}
    if kinds != expected:
        differing = sorted(
            name for name in kinds | expected if kinds.get(name) != expected.get(name)
        )
        stop("column-mismatch", f"`{differing[0]}` differs", f"columns {', '.join(expected)}")
    fitted, validated = (
        content(_values(dataset, split), split.labels)
        for split in (dataset.train, dataset.validation)
    )
    if search.get("trained_on") != fitted or search.get("validated_on", "") not in ("", validated):
        purpose = "fitted on" if search.get("trained_on") != fitted else "validated on"
        stop(
            "row-mismatch",
            f"it was {purpose} other rows than those of `split`, perhaps test rows",
            "a search of the tables that `split` wrote",
        )
    numbers = [list(dataset.kinds).index(name) for name in columns.columns]
    features = tuple(dataset.features[number] for number in numbers)
    splits = {
        name: replace(split, rows=[[row[number] for number in numbers] for row in split.rows])
        for name, split in dataset.splits.items()
    }
    return replace(dataset, features=features, splits=splits)


def refits(search: Mapping[str, Any], metric: str) -> list[float]:
    """Return the metric of each refit in the AutoML trial; [] if `search` is empty.

    Exits if there are fewer than two values.
    """
    values = [fold.get(metric) for fold in search.get("folds", ())]
    if search and (len(values) < 2 or None in values):
        stop("no-refits", f"`{metric}` has under two values", "a metric of the task")
    return [float(value) for value in values]


def content(
    values: Mapping[str, Any], labels: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> str:
    """Return a digest of rows that ignores the order of rows and columns.

    `values` maps a column to its values, with NaN or None for missing ones; numbers are rounded to
    float32. `rows` selects row indices; `labels` are those of the selected rows.
    """
    import pandas as pd

    series = {name: pd.Series(values[name]) for name in sorted(values)}
    total, mixed = 0, 0
    for start in range(0, len(labels), _HASHED_AT_ONCE):
        part = slice(start, start + _HASHED_AT_ONCE)
        chosen: Any = part if rows is None else rows[part]
        columns: dict[str, Any] = {}
        for name, column in series.items():
            cells = column.iloc[chosen].reset_index(drop=True)
            is_number = pd.api.types.is_numeric_dtype(column)
            columns[name] = (
                cells.astype(np.float32) if is_number else cells.astype(object).fillna("")
            )
        of_part = labels[part]
        columns["\0label"] = of_part.astype(str if labels.dtype.kind in "OUS" else np.float64)
        hashes = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy(np.uint64)
        total = (total + int(hashes.sum())) % 2**64
        mixed ^= int(np.bitwise_xor.reduce(hashes))
    return f"{len(labels)}-{total:016x}-{mixed:016x}"


def _values(dataset: Dataset, split: Split) -> dict[str, Sequence[Any]]:
    of_column = zip(*split.rows, strict=True) if len(split) else [()] * len(dataset.features)
    values: dict[str, Sequence[Any]] = {}
    for (name, kind), column in zip(dataset.kinds.items(), of_column, strict=True):
        missing = None if kind == "text" else np.nan
        values[name] = [missing if value is None else value for value in column]
    return values


def _targets(dataset: Dataset, split: Split) -> Sequence[Any]:
    """Return the target values: class names as texts, or numbers."""
    about = dataset.about
    if TABLE_TASKS[about.task].types:
        return list(split.labels)
    if about.positive:
        return [about.positive if label else f"not {about.positive}" for label in split.labels]
    return [str(label) for label in split.labels]


def stop(
    code: str, actual: str, expected: str, hint: str = "run the search again, then this step"
) -> NoReturn:
    """Exit with an error: the AutoML model cannot be evaluated."""
    raise SystemExit(
        f"error[{code}]: the model of an AutoML job cannot be evaluated: {actual}\n"
        f"  expected: {expected}\n  hint: {hint}"
    )
