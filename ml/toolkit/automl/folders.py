"""Write the model folder of an AutoML trial: `MLmodel`, and formats that load without code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.members import FILE as MEMBERS
from ml.toolkit.automl.cells import stop

# Suffix of a member's file → MLflow flavor and its options.
_FLAVORS = {
    ".txt": ("lightgbm", {"model_class": "lightgbm.basic.Booster"}),
    ".json": ("xgboost", {"model_class": "xgboost.core.Booster"}),
    ".onnx": ("onnx", {}),
}
# The python_function loader of these folders; its input is the columns of a request.
_LOADER = "ml.serving.scoring.flavor"
# The ONNX opset versions of saved estimators.
OPSETS = {"": 18, "ai.onnx.ml": 3}
# Tolerance between the fitted and the saved model, because ONNX Runtime computes in float32 and
# scikit-learn partly in float64.
ROUNDING = 1e-4


def write(
    folder: Path,
    answered: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    meta: str = "",
) -> None:
    """Write `members.json` and `MLmodel` into `folder`.

    `answered` describes the predictions: task, positive class, target. `members` has the file and
    weight of each model of the ensemble. `meta` is the file of a stack's meta-model; "" for none.

    `MLmodel` has the flavor python_function with a loader of this repository, which reads safe
    formats only. A single member without post-processing also has its library's flavor; its input
    is a table encoded as columns.json says. `MLmodel` is written as JSON, which is valid YAML.
    """
    document = {**answered, "members": members}
    write_json(folder / MEMBERS, document | ({"meta": meta} if meta else {}))
    flavors: dict[str, Any] = {"python_function": {"loader_module": _LOADER}}
    if len(members) == 1 and not {*document, *members[0]} & {"target", "calibration"}:
        file = str(members[0]["file"])
        flavor, more = _FLAVORS[Path(file).suffix]
        flavors[flavor] = {"data": file, **more}
    write_json(folder / "MLmodel", {"flavors": flavors})


def write_json(file: Path, document: object) -> None:
    """Write a document as standard JSON, without NaN."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def distances(
    original: NDArray[np.float64], served: NDArray[np.float64], spread: float
) -> NDArray[np.float64]:
    """Return the absolute differences of predictions ÷ `spread`.

    NaN differences, and all differences of unequal shapes, become infinite.
    """
    if original.shape != served.shape:
        return np.full(len(original), np.inf)
    return np.nan_to_num(np.abs(original - served) / spread, nan=np.inf)


def compare(
    original: NDArray[np.float64], served: NDArray[np.float64], spread: float, *, in_steps: bool
) -> None:
    """Exit if the saved model's predictions differ from the fitted model's by over ROUNDING.

    The largest difference of a row counts, or the mean if predictions are step functions
    (`in_steps`, see `Family`).
    """
    differences = distances(original, served, spread)
    worst = float(differences.mean() if in_steps else differences.max(initial=0.0))
    if worst > ROUNDING:
        actual = f"the saved model's predictions differ by {worst:g}"
        stop(
            "conversion-mismatch",
            actual,
            f"at most {ROUNDING:g}",
            "add it to `blocked_training_algorithms`",
        )
