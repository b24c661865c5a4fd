"""The folder of a model that came out of a trial: formats that run no code, and `MLmodel`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.members import FILE as MEMBERS
from ml.toolkit.automl.cells import stop

# MLflow's flavor of a member's file, and the class of the library that it makes of it.
_FLAVORS = {
    ".txt": ("lightgbm", {"model_class": "lightgbm.basic.Booster"}),
    ".json": ("xgboost", {"model_class": "xgboost.core.Booster"}),
    ".onnx": ("onnx", {}),
}
# The loader of any folder with members: it takes the columns of a request, as Azure's models do.
_LOADER = "ml.serving.scoring.flavor"
# The versions of ONNX in which estimators are saved.
OPSETS = {"": 18, "ai.onnx.ml": 3}
# Tolerance between the fitted and the saved model: ONNX Runtime computes in single precision,
# scikit-learn partly in double.
ROUNDING = 1e-4


def write(
    folder: Path,
    answered: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    meta: str = "",
) -> None:
    """`members.json`, and `MLmodel` with a python_function whose loader is code of this repository
    and reads safe formats. A single member whose answer is the model's has the flavor of its
    library too, which takes the numbers of columns.json. JSON is YAML too, and of a format that
    gates know.
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
    """Write a document that every reader of JSON takes."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def distances(
    original: NDArray[np.float64], served: NDArray[np.float64], spread: float
) -> NDArray[np.float64]:
    """Return the distance of answers in units of the target's spread; infinite if incomparable."""
    if original.shape != served.shape:
        return np.full(len(original), np.inf)
    return np.nan_to_num(np.abs(original - served) / spread, nan=np.inf)


def compare(
    original: NDArray[np.float64], served: NDArray[np.float64], spread: float, *, in_steps: bool
) -> None:
    """End the trial where what serves answers otherwise than what was fitted: of any row, or of the
    mean row where answers are `in_steps` (see `Family`).
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
