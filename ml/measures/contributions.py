"""Store what each feature contributes to a model's predictions, as its library computed it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.schema import Contribution

# The contributions per row, written beside evaluation.json for reports on this machine. They are
# not evidence: evidence has only the shares.
FILE = "contributions.json"
# The most features that are written: those with the largest shares.
MOST_FEATURES = 30
# The method of a model without exact contributions, and how often each feature is shuffled.
PERMUTATION, REPEATS = "permutation importance", 5


@dataclass(frozen=True)
class Contributions:
    """The contributions of the features to the scores of some rows.

    `values` is scores × features; `rows` is the number of rows, each of which has one score, or one
    per class. `error` is the largest difference between a score and the sum of its contributions,
    relative to the scores: 0 except for rounding if the `method` is exact. Permutation importances
    do not add up to a score: their `values` are one row, and `error` is the largest standard error
    of one, relative to their sum. `names` are the features, if they differ from the model's
    columns.
    """

    values: NDArray[Any]
    rows: int
    method: str
    error: float
    names: Sequence[str] = ()

    def shares(self, names: Sequence[str]) -> tuple[Contribution, ...]:
        """Return each feature's share of the mean absolute contribution, largest first.

        The shares sum to 1. Raises ValueError if the number of columns differs from `names`.
        """
        weight = np.abs(np.asarray(self.values, dtype=np.float64)).mean(axis=0)
        share = weight / max(float(weight.sum()), 1e-12)
        order = np.argsort(-share, kind="stable")
        of_names = dict(zip(range(len(share)), names, strict=True))
        return tuple(Contribution(of_names[index], float(share[index])) for index in order.tolist())


def permuted(
    loss: Callable[[list[list[Any]]], float], rows: Sequence[Sequence[Any]], names: Sequence[str]
) -> Contributions:
    """Return the permutation importance of each feature (Breiman, Machine Learning 45, 2001).

    It is the mean rise of the loss when the feature's values are shuffled, 0 if it falls, as in
    scikit-learn.
    """
    generator, table = np.random.default_rng(0), np.array(rows, dtype=object)
    rises = np.full((REPEATS, len(names)), -loss(table.tolist()))
    for repeat, number in np.ndindex(*rises.shape):
        shuffled = table.copy()
        shuffled[:, number] = generator.permutation(table[:, number])
        rises[repeat, number] += loss(shuffled.tolist())
    means = np.maximum(rises.mean(axis=0), 0.0)
    largest = float(rises.std(axis=0, ddof=1).max()) / math.sqrt(REPEATS)
    error = largest / max(float(means.sum()), 1e-12)
    return Contributions(means[None, :], len(rows), PERMUTATION, error, names)


@dataclass(frozen=True)
class ExplainedRows:
    """What each feature added to the score of each row."""

    ids: Sequence[str]  # of the rows
    names: Sequence[str]  # of the features, largest share first
    values: NDArray[np.float64]  # (rows, features): the model's inputs; NaN if missing
    added: NDArray[np.float64]  # (rows, features): contributions to the score
    # Categorical feature → its categories; its `values` are indexes into them.
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write contributions.json, in four digits."""
        document = {
            "ids": list(self.ids),
            "names": list(self.names),
            "values": [[_digits(value) for value in row] for row in self.values],
            "contributions": [[_digits(value) for value in row] for row in self.added],
            "categories": {name: list(texts) for name, texts in self.categories.items()},
        }
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> ExplainedRows | None:
        """Read the rows of a folder; None without the file, ValueError for another format."""
        try:
            document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        try:
            ids, names = ([str(entry) for entry in document[key]] for key in ("ids", "names"))
            values, added = (
                np.array(document[key], dtype=np.float64).reshape(-1, len(names))
                for key in ("values", "contributions")
            )
            categories = {
                str(name): [*map(str, texts)] for name, texts in document["categories"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{FILE}: {error!r}") from error
        if not len(ids) == len(values) == len(added) or not np.isfinite(added).all():
            raise ValueError(f"{FILE}: not the same rows in each, or not finite")
        return cls(ids, names, values, added, categories)


def explained_rows(
    contributions: Contributions,
    names: Sequence[str],
    ids: Sequence[str],
    table: NDArray[Any],
    categories: Mapping[str, Sequence[str]],
) -> ExplainedRows | None:
    """Return the contributions with their rows, the first ones of `ids` and `table`.

    Returns None for several classes, since such a row has a score per class.
    """
    if len(contributions.values) != contributions.rows:
        return None
    order = [names.index(str(item.feature)) for item in contributions.shares(names)][:MOST_FEATURES]
    features = [names[index] for index in order]
    return ExplainedRows(
        ids[: contributions.rows],
        features,
        np.asarray(table, dtype=np.float64)[: contributions.rows, order],
        np.asarray(contributions.values, dtype=np.float64)[:, order],
        {name: categories[name] for name in features if name in categories},
    )


def _digits(number: float) -> float | None:
    return float(f"{number:.4g}") if math.isfinite(number) else None
