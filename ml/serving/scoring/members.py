"""A model folder of several libraries: the members that AutoML chose, and how they answer together.

`members.json` says what is answered and by whom:

    {"task": "binary", "positive": "Yes", "members": [{"file": "model.txt", "weight": 1.0}]}

A member's file is a text model of LightGBM (.txt), ONNX (.onnx) or a JSON model of XGBoost (.json).
All take the numbers of the folder's `columns.json`; the answer is the mean of theirs, by weight.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.onnx import Onnx
from ml.serving.scoring.trees import Trees

FILE = "members.json"


class Member(Protocol):
    """A model of one library."""

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Its answer to each row."""
        ...


class Members:
    """The model of a folder with `members.json`. Raises what the libraries raise for a file that is
    no model of theirs, and ValueError for a file that none of them reads or that lies elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        self.task, self.positive = str(document["task"]), str(document["positive"])
        self.files = [str(of["file"]) for of in document["members"]]
        self._weights: Sequence[float] = [float(of["weight"]) for of in document["members"]]
        self._members = [_open(folder, name) for name in self.files]

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each row the probability of `positive` (binary), one a class (multiclass), or a
        number.
        """
        answers = [self._answer(member, table) for member in self._members]
        if len(answers) == 1:
            return answers[0]
        mean: NDArray[np.float64] = np.average(answers, axis=0, weights=self._weights)
        return mean

    def _answer(self, member: Member, table: NDArray[np.float64]) -> NDArray[np.float64]:
        answer = member.predict(table)
        if self.task == "regression":
            return answer
        # In single precision a sum of shares may be a little more than 1.
        answer = np.clip(answer, 0.0, 1.0)
        return answer[:, 1] if self.task == "binary" and answer.ndim == 2 else answer


def is_of_members(folder: Path) -> bool:
    """Whether the folder's model is one of members."""
    return (folder / FILE).is_file()


def _open(folder: Path, name: str) -> Member:
    if Path(name).name != name:  # the model's digest is of the files in its folder
        raise ValueError(f"{FILE} names {name}, which is no file of its folder")
    file = folder / name
    if file.suffix == ".txt":
        return Trees(file)
    if file.suffix == ".onnx":
        return Onnx(file)
    if file.suffix == ".json":
        return _Boosted(file)
    raise ValueError(f"{file} is of no format that a member has")


class _Boosted:
    """Trees of XGBoost, one thread a call."""

    def __init__(self, file: Path) -> None:
        import xgboost

        self._booster = xgboost.Booster({"nthread": 1}, model_file=file)

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        import xgboost

        kinds = self._booster.feature_types
        rows = xgboost.DMatrix(
            table.astype(np.float32), feature_types=kinds, enable_categorical=True, nthread=1
        )
        return np.asarray(self._booster.predict(rows), dtype=np.float64)
