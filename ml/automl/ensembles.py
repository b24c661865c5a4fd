"""Ensembles of trials, by what each answered to rows that it did not fit.

Members are chosen as Caruana et al. 2004 ("Ensemble selection from libraries of models") do it:
again and again the trial that improves the mean most, which may be one that is in it already.
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

VOTING = "voting_ensemble"
NAMES = frozenset({VOTING})
ROUNDS = 12
_FILE = "answers.npz"


@dataclass(frozen=True)
class Answers:
    """What a trial answered to the rows of each fold, or by each seed, which it did not fit."""

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
        """Those that were saved in a folder."""
        with np.load(folder / _FILE, allow_pickle=False) as file:
            folds = range(len(file.files) // 2)
            rows = [file[f"rows_{at}"] for at in folds]
            return cls(rows, [file[f"values_{at}"] for at in folds], labels)


def mean(answers: Sequence[Answers], weights: Sequence[float]) -> Answers:
    """The weighted mean of answers to the same rows."""
    folds = zip(*(of.values for of in answers), strict=True)
    values = [np.average(of, axis=0, weights=weights) for of in folds]
    return Answers(answers[0].rows, values, answers[0].labels)


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


def gather(folders: Mapping[Path, float], into: Path) -> dict[str, float]:
    """Copy the members' files and their columns into one folder; their names and weights there."""
    into.mkdir(parents=True, exist_ok=True)
    files: dict[str, float] = {}
    columns = {(folder / COLUMNS).read_bytes() for folder in folders}
    assert len(columns) == 1, "the members were fitted on the same rows"
    (into / COLUMNS).write_bytes(columns.pop())
    for number, (folder, weight) in enumerate(folders.items()):
        for member in json.loads((folder / MEMBERS).read_text(encoding="utf-8"))["members"]:
            name = f"member-{number}{Path(member['file']).suffix}"
            shutil.copyfile(folder / member["file"], into / name)
            files[name] = weight * float(member["weight"])
    return files
