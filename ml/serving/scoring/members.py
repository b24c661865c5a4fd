"""Predict with a model folder of several libraries: the ensemble members that AutoML chose.

`members.json` states the task and the members:

    {"task": "binary", "positive": "Yes", "members": [{"file": "model.txt", "weight": 1.0}]}

A member's file is a text model of LightGBM (.txt), ONNX (.onnx) or a JSON model of XGBoost
(.json). The inputs of all are encoded by the folder's `columns.json`, in single precision. The
prediction is the weighted mean of the members' predictions. With `"meta": "meta.onnx"`, it is the
prediction of a meta-model, whose inputs are the members' predictions. A regression fitted to a
standardised target has `"target": {"mean": 71.5, "deviation": 12.0}`; its prediction y is converted
to y · deviation + mean.
A classifier's member may have a `calibration` of its probabilities p:

- `{"kind": "sigmoid", "slope": a, "intercept": b}`: the probability with the log odds
  a · log(p / (1 - p)) + b; for several classes a list of each, normalized to sum to 1
- `{"kind": "isotonic", "scores": [...], "shares": [...]}`: binary only; linear interpolation
  between these points
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.onnx import Onnx
from ml.serving.scoring.trees import Trees

FILE = "members.json"


class Member(Protocol):
    """A model of one library."""

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return predictions, (rows,) or (rows, classes)."""
        ...


class Members:
    """The model of a folder with `members.json`.

    Raises the exceptions of the libraries for malformed model files, and ValueError for a file of
    another format or outside the folder.
    """

    def __init__(self, folder: Path) -> None:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        self.task, self.positive = str(document["task"]), str(document["positive"])
        self.files = [str(member["file"]) for member in document["members"]]
        self._weights = [float(member["weight"]) for member in document["members"]]
        self._calibrations = [member.get("calibration") for member in document["members"]]
        self._members = [open_member(folder, name) for name in self.files]
        self._target = document.get("target")
        meta = document.get("meta")
        self._meta = None if meta is None else open_member(folder, str(meta))

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict each row: the probability of `positive`, a probability per class, or a number."""
        answer = self._together(self.answers(table))
        if self._target is None:
            return answer
        return answer * float(self._target["deviation"]) + float(self._target["mean"])

    def _together(self, answers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        if self._meta is not None:
            return self._as_asked(self._meta.predict(np.column_stack(answers)))
        if len(answers) == 1:
            return answers[0]
        mean: NDArray[np.float64] = np.average(answers, axis=0, weights=self._weights)
        return mean

    def answers(self, table: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return each member's predictions, calibrated but neither averaged nor scaled."""
        # Round to single precision, as in training: in double precision, a tree may separate two
        # numbers that were equal in training.
        with np.errstate(over="ignore"):
            table = table.astype(np.float32).astype(np.float64)
        of_members = zip(self._members, self._calibrations, strict=True)
        return [
            calibrated(calibration, self._as_asked(member.predict(table)))
            for member, calibration in of_members
        ]

    def _as_asked(self, answer: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.task == "regression":
            return answer
        # In single precision, a sum of probabilities may slightly exceed 1.
        answer = np.minimum(np.maximum(answer, 0.0), 1.0)  # np.clip takes five times as long
        return answer[:, 1] if self.task == "binary" and answer.ndim == 2 else answer


def calibrated(
    calibration: Mapping[str, Any] | None, answer: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the calibrated probabilities; raise ValueError for an unknown kind of calibration."""
    if calibration is None:
        return answer
    if calibration["kind"] == "sigmoid":
        slope, intercept = (np.asarray(calibration[name]) for name in ("slope", "intercept"))
        shares = 1 / (1 + np.exp(-(slope * log_odds(answer) + intercept)))
        return normalized(shares) if shares.ndim == 2 else np.asarray(shares)
    if calibration["kind"] == "isotonic":
        curve = np.interp(answer, calibration["scores"], calibration["shares"])
        return np.asarray(curve, dtype=np.float64)
    raise ValueError(f"a calibration of the kind {calibration['kind']}")


def normalized(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normalize each row to sum to 1."""
    parts: NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return parts


def log_odds(answer: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log odds of probabilities, clipped because 0 and 1 would be infinite."""
    inside = np.clip(answer, _CERTAIN, 1 - _CERTAIN)
    odds: NDArray[np.float64] = np.log(inside / (1 - inside))
    return odds


_CERTAIN = 1e-7


def is_of_members(folder: Path) -> bool:
    """Return True if the folder has a `members.json`: it is a model of an AutoML job."""
    return (folder / FILE).is_file()


def open_member(folder: Path, name: str) -> Member:
    """Load the member in file `name` of the folder; raises like `Members`."""
    if Path(name).name != name:  # the model's digest covers only files in the folder
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
    """A JSON model of XGBoost, with one thread per call."""

    def __init__(self, file: Path) -> None:
        import xgboost

        self._booster = xgboost.Booster({"nthread": 1}, model_file=file)

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        answer = self._booster.inplace_predict(table.astype(np.float32))  # avoids a DMatrix
        return np.asarray(answer, dtype=np.float64)
