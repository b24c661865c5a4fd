"""Ensembles of trials, by what each answered to rows that it did not fit.

The members of a vote are chosen as Caruana et al. 2004 ("Ensemble selection from libraries of
models") do it: again and again the trial that improves the mean most, which may be one that is in
it already. A stack is a model of the members' answers (Wolpert 1992, "Stacked generalization"). So
is a calibration of one trial's (`ml.automl.calibration`).
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
# Members of a stack: the best of each family before the second of any.
MOST_STACKED = 5
# A single validation set is split into this many parts, each predicted by models of the others.
PARTS = 5
_FILE = "answers.npz"
Predict = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Answers:
    """A trial's predictions for the rows of each fold, or by each seed, which it did not fit."""

    rows: Sequence[NDArray[np.int64]]
    values: Sequence[NDArray[np.float64]]
    labels: NDArray[Any]

    def save(self, folder: Path) -> None:
        """Write them into a folder."""
        rows = {f"rows_{at}": of for at, of in enumerate(self.rows)}
        values = {f"values_{at}": of for at, of in enumerate(self.values)}
        np.savez_compressed(folder / _FILE, **rows, **values)  # type: ignore[arg-type]

    @classmethod
    def load(cls, folder: Path, labels: NDArray[Any]) -> Answers:
        """Load the answers that `save` wrote to a folder."""
        with np.load(folder / _FILE, allow_pickle=False) as file:
            folds = range(len(file.files) // 2)
            rows = [file[f"rows_{at}"] for at in folds]
            return cls(rows, [file[f"values_{at}"] for at in folds], labels)

    @property
    def all(self) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """The answers of every fold, one below the other, and the labels of their rows."""
        return np.concatenate(self.values), self.labels[np.concatenate(self.rows)]


def crossed(
    answers: Answers, fit: Callable[[NDArray[np.float64], NDArray[Any]], Predict], seed: int
) -> Answers:
    """Return out-of-fold predictions of a model that is stacked on `answers`.

    Each fold is predicted by a model fitted to the other folds' answers; a single validation set is
    divided into `PARTS` for this. `fit` takes answers and their row numbers.
    """
    first = answers.rows[0]
    is_one_set = all(np.array_equal(first, row) for row in answers.rows)
    values = []
    for at, (rows, of) in enumerate(zip(answers.rows, answers.values, strict=True)):
        if is_one_set:
            part = np.random.default_rng(seed).permutation(len(rows)) % min(PARTS, len(rows))
            of_parts = [
                fit(of[part != number], rows[part != number])(of[part == number])
                for number in range(part.max() + 1)
            ]
            back = np.argsort(np.argsort(part, kind="stable"))
            values.append(np.concatenate(of_parts)[back])
        else:
            others = [number for number in range(len(answers.rows)) if number != at]
            of_others = np.concatenate([answers.values[number] for number in others])
            rows_of_others = np.concatenate([answers.rows[number] for number in others])
            # If folds are drawn repeatedly, other folds contain rows of this one.
            is_other = ~np.isin(rows_of_others, rows)
            values.append(fit(of_others[is_other], rows_of_others[is_other])(of))
    return Answers(answers.rows, values, answers.labels)


def mean(answers: Sequence[Answers], weights: Sequence[float]) -> Answers:
    """The weighted mean of answers to the same rows."""
    folds = zip(*(answer.values for answer in answers), strict=True)
    values = [np.average(fold, axis=0, weights=weights) for fold in folds]
    return Answers(answers[0].rows, values, answers[0].labels)


def beside(answers: Sequence[Answers]) -> Answers:
    """The answers to the same rows side by side, as a meta model takes them."""
    folds = zip(*(answer.values for answer in answers), strict=True)
    return Answers(answers[0].rows, [np.column_stack(fold) for fold in folds], answers[0].labels)


def choose(answers: Sequence[Answers], value: Callable[[Answers], float]) -> Mapping[int, float]:
    """The numbers of the members and their weights; `value` is higher for better answers."""
    picked: list[int] = []
    best: tuple[float, list[int]] = (-np.inf, [])
    for _ in range(ROUNDS):
        options = {
            at: value(mean([answers[of] for of in [*picked, at]], [1.0] * (len(picked) + 1)))
            for at in range(len(answers))
        }
        at = max(options, key=options.__getitem__)
        picked.append(at)
        if options[at] > best[0]:
            best = options[at], [*picked]
    counts = Counter(best[1])
    return {at: counts[at] / len(best[1]) for at in sorted(counts)}


def stacked(families: Sequence[str]) -> list[int]:
    """The numbers of the members of a stack, of trials by their families, the best first."""
    turn = [families[:at].count(family) for at, family in enumerate(families)]
    return sorted(sorted(range(len(families)), key=lambda at: (turn[at], at))[:MOST_STACKED])


def gather(folders: Mapping[Path, float], into: Path) -> list[dict[str, Any]]:
    """Copy the members' files and their columns into one folder; its entries of members.json."""
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
