"""Build ensembles of trials from their out-of-fold predictions.

A vote selects its members greedily with replacement (Caruana et al. 2004, "Ensemble selection from
libraries of models"). A stack is a model of the members' predictions (Wolpert 1992, "Stacked
generalization"). `ml.automl.calibration` also fits a model to predictions, of one trial.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import FILE as COLUMNS
from ml.serving.scoring.members import FILE as MEMBERS

VOTING, STACK = "voting_ensemble", "stack_ensemble"
NAMES = frozenset({VOTING, STACK})
ROUNDS = 12
# Maximum members of a stack; the best trial of each family precedes all second best ones.
MOST_STACKED = 5
# A single validation set is split into this many parts for cross-fitting.
PARTS = 5
_FILE = "out_of_fold.npz"
Predict = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class OutOfFoldPredictions:
    """A trial's predictions for validation rows, one array per fold or, with one fold, per seed."""

    rows: Sequence[NDArray[np.int64]]  # row numbers
    values: Sequence[NDArray[np.float64]]  # predictions for these rows
    labels: NDArray[Any]  # labels of all rows of the table

    def save(self, folder: Path) -> None:
        """Write the predictions into a folder."""
        rows = {f"rows_{fold}": array for fold, array in enumerate(self.rows)}
        values = {f"values_{fold}": array for fold, array in enumerate(self.values)}
        np.savez_compressed(folder / _FILE, **rows, **values)  # type: ignore[arg-type]

    @classmethod
    def load(cls, folder: Path, labels: NDArray[Any]) -> OutOfFoldPredictions:
        """Load the predictions that `save` wrote to a folder."""
        with np.load(folder / _FILE, allow_pickle=False) as file:
            folds = range(len(file.files) // 2)
            rows = [file[f"rows_{fold}"] for fold in folds]
            return cls(rows, [file[f"values_{fold}"] for fold in folds], labels)

    @property
    def all(self) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return the predictions of all folds, concatenated, and the labels of their rows."""
        return np.concatenate(self.values), self.labels[np.concatenate(self.rows)]


def cross_fitted(
    out_of_fold: OutOfFoldPredictions,
    fit: Callable[[NDArray[np.float64], NDArray[Any]], Predict],
    seed: int,
) -> OutOfFoldPredictions:
    """Return out-of-fold predictions of a second model, whose inputs are `out_of_fold`.

    Each fold is predicted by a model fitted to the other folds; a single validation set is divided
    into PARTS. `fit` takes predictions and their row numbers, and returns a predict function.
    """
    first = out_of_fold.rows[0]
    is_one_set = all(np.array_equal(first, row) for row in out_of_fold.rows)
    values = []
    for fold, (rows, block) in enumerate(zip(out_of_fold.rows, out_of_fold.values, strict=True)):
        if is_one_set:
            part = np.random.default_rng(seed).permutation(len(rows)) % min(PARTS, len(rows))
            of_parts = [
                fit(block[part != number], rows[part != number])(block[part == number])
                for number in range(part.max() + 1)
            ]
            back = np.argsort(np.argsort(part, kind="stable"))
            values.append(np.concatenate(of_parts)[back])
        else:
            others = [number for number in range(len(out_of_fold.rows)) if number != fold]
            of_others = np.concatenate([out_of_fold.values[number] for number in others])
            rows_of_others = np.concatenate([out_of_fold.rows[number] for number in others])
            # With repeated cross-validation, other folds may contain rows of this fold.
            not_in_fold = ~np.isin(rows_of_others, rows)
            values.append(fit(of_others[not_in_fold], rows_of_others[not_in_fold])(block))
    return OutOfFoldPredictions(out_of_fold.rows, values, out_of_fold.labels)


def mean(
    out_of_fold: Sequence[OutOfFoldPredictions], weights: Sequence[float]
) -> OutOfFoldPredictions:
    """Return the weighted mean of several trials' predictions for the same rows."""
    folds = zip(*(member.values for member in out_of_fold), strict=True)
    values = [np.average(fold, axis=0, weights=weights) for fold in folds]
    return OutOfFoldPredictions(out_of_fold[0].rows, values, out_of_fold[0].labels)


def stack_inputs(out_of_fold: Sequence[OutOfFoldPredictions]) -> OutOfFoldPredictions:
    """Return several trials' predictions as columns, which are the inputs of a meta-model."""
    folds = zip(*(member.values for member in out_of_fold), strict=True)
    return OutOfFoldPredictions(
        out_of_fold[0].rows, [np.column_stack(fold) for fold in folds], out_of_fold[0].labels
    )


def choose(
    out_of_fold: Sequence[OutOfFoldPredictions], value: Callable[[OutOfFoldPredictions], float]
) -> Mapping[int, float]:
    """Select the members of a vote; return the index of each → its weight.

    `value` is higher for better predictions. The weights sum to 1.
    """
    picked: list[int] = []
    best: tuple[float, list[int]] = (-np.inf, [])
    for _ in range(ROUNDS):
        options = {
            i: value(mean([out_of_fold[j] for j in [*picked, i]], [1.0] * (len(picked) + 1)))
            for i in range(len(out_of_fold))
        }
        trial = max(options, key=options.__getitem__)
        picked.append(trial)
        if options[trial] > best[0]:
            best = options[trial], [*picked]
    counts = Counter(best[1])
    return {trial: counts[trial] / len(best[1]) for trial in sorted(counts)}


def stacked(families: Sequence[str]) -> list[int]:
    """Return the indices of a stack's members; `families` are the trials' families, best first."""
    turn = [families[:index].count(family) for index, family in enumerate(families)]
    return sorted(sorted(range(len(families)), key=lambda i: (turn[i], i))[:MOST_STACKED])


def gather(folders: Mapping[Path, float], into: Path) -> list[dict[str, Any]]:
    """Copy the members' model files and columns.json into a folder; return members.json entries.

    `folders` maps the members' model folders to their weights.
    """
    into.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    columns = {(folder / COLUMNS).read_bytes() for folder in folders}
    assert len(columns) == 1, "the members were fitted on the same rows"
    (into / COLUMNS).write_bytes(columns.pop())
    for number, (folder, weight) in enumerate(folders.items()):
        for member in json.loads((folder / MEMBERS).read_text(encoding="utf-8"))["members"]:
            name = f"member-{number}{Path(member['file']).suffix}"
            shutil.copyfile(folder / member["file"], into / name)
            entries.append({**member, "file": name, "weight": weight * float(member["weight"])})
    return entries
