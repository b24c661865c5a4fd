"""Store each feature's contributions to a model's predictions (SHAP or permutation values)."""

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

# The contributions per row, for local reports only: the evidence has only the features' shares.
FILE = "contributions.json"
# Maximum number of features that are written, those with the largest shares.
MOST_FEATURES = 30
# The method for models without exact contributions, and its number of shuffles per feature.
PERMUTATION, REPEATS = "permutation importance", 5


@dataclass(frozen=True)
class Contributions:
    """The contributions of the features to the scores of some rows.

    With several classes, a row has one score per class. Permutation importances do not add up to a
    score: they are a single row of `values`.
    """

    values: NDArray[Any]  # (scores, features)
    rows: int  # number of explained rows
    method: str
    # Largest |score − sum of its contributions| relative to the scores: only rounding if the method
    # is exact. For permutation importances: the largest standard error relative to their sum.
    error: float
    names: Sequence[str] = ()  # the features, if they are not the model's columns

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

    It is the mean rise of `loss(rows)` when the feature's values are shuffled, but at least 0.
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
    """Inputs and contributions of the explained rows: contributions.json."""

    ids: Sequence[str]  # of the rows
    names: Sequence[str]  # of the features, largest share first
    values: NDArray[np.float64]  # (rows, features): the model's inputs; NaN if missing
    added: NDArray[np.float64]  # (rows, features): contributions to the score
    # Categorical feature → its categories; its `values` are indexes into them.
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write contributions.json with four significant digits."""
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
        """Read contributions.json; return None without it, raise ValueError if it is invalid."""
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
    """Return the contributions with the first rows of `ids` and `table`, which they explain.

    Returns None if rows have a score per class, or for permutation importances.
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
