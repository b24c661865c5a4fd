"""The best model of an AutoML job of Azure's, turned into a folder that loads without running code.

    python -m ml.automl.conversion --model DIR --data DIR --target NAME --converted DIR

Azure's is an MLflow model with a pickle, which runs code where it is loaded: so it is a step of a
pipeline on the node that made it, with the packages that made it. What comes out is what an AutoML
job of this machine leaves: one ONNX file that takes the numbers of `columns.json`. It is compared
with the original on the rows that are given, and refused where answers differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import tables
from ml.automl.tables import stop
from ml.measures.tasks import Task
from ml.serving.scoring.columns import FILE as COLUMNS
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.members import FILE as MEMBERS
from ml.serving.scoring.members import Members
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, content

if TYPE_CHECKING:
    import pandas as pd

ONNX = "model.onnx"
# Of the answers to the given rows, as ONNX Runtime computes in single precision.
ROUNDING = 1e-4
# The share of rows that may lie on another side of a split of some tree by that precision. What is
# evaluated and served is the converted model alone.
MOST_APART = 0.01
# More of a column are as rare as an id; what is not among them is to the model as if missing.
MOST_CATEGORIES = 1000
_OPSETS = {"": 18, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class Original:
    """A fitted estimator of scikit-learn's interface, and the columns that it takes, in order."""

    estimator: Any
    columns: Sequence[str]

    @property
    def classes(self) -> list[str]:
        """The classes as texts; [] of a regression."""
        return [str(of) for of in getattr(self.estimator, "classes_", ())]

    def predict(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        """A probability a class, or a number."""
        given = rows[list(self.columns)]
        if self.classes:
            return np.asarray(self.estimator.predict_proba(given), dtype=np.float64)
        return np.asarray(self.estimator.predict(given), dtype=np.float64).reshape(-1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Load, convert, compare, write; ends with an error for what cannot be converted."""
    parser = argparse.ArgumentParser(description="Convert a model of Azure's AutoML.")
    parser.add_argument("--model", type=Path, required=True, help="the MLflow model")
    parser.add_argument(
        "--data", type=Path, required=True, help="the MLTable that it was fitted on"
    )
    parser.add_argument("--target", required=True, help="the column that it answers")
    parser.add_argument("--positive", default="", help="of two classes, the one whose probability")
    parser.add_argument("--converted", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    original = load(options.model)
    rows = tables.read(options.data, options.target).dropna(subset=[options.target])
    if missing := [name for name in original.columns if name not in rows]:
        stop("other-columns", f"the model takes `{missing[0]}`", f"a table with it: {options.data}")
    digest = convert(original, rows, options.target, options.positive, options.converted)
    print(f"model {options.converted} {digest}: as {options.model} on {len(rows)} rows")


def load(folder: Path) -> Original:
    """The estimator of an MLflow model and its columns. Runs the code of its pickle."""
    try:
        import mlflow.sklearn
        from mlflow.models import Model

        schema = Model.load(str(folder)).get_input_schema()
        estimator = mlflow.sklearn.load_model(str(folder))
    except Exception as error:  # whatever a pickle raises, such as a package that is not there
        stop(
            "not-loaded",
            f"{folder}: {type(error).__name__}: {error}",
            "an MLflow model of scikit-learn's interface, and the packages that made it",
            "run this step in the environment of the job that made the model",
        )
    names = schema.input_names() if schema is not None and schema.has_input_names() else []
    names = names or [str(of) for of in getattr(estimator, "feature_names_in_", ())]
    if not names:
        stop(
            "no-columns", f"{folder} does not say which columns it takes", "a signature in MLmodel"
        )
    return Original(estimator, names)


def convert(
    original: Original, rows: pd.DataFrame, target: str, positive: str, folder: Path
) -> str:
    """Write the folder and return its digest. Ends the program where there is no conversion, or
    where its answers to the rows are others.
    """
    classes, frame = original.classes, rows[list(original.columns)].reset_index(drop=True)
    task: Task = ("binary" if len(classes) == 2 else "multiclass") if classes else "regression"
    if task == "binary" and positive not in ("", classes[1]):
        found = f"`--positive {positive}`, where the model gives the probability of `{classes[1]}`"
        stop("other-class", found, f"`{classes[1]}`, the class that sorts last")
    document = _document(frame, classes if len(classes) > 2 else [])
    graph = _with_numbers(_graph(original.estimator, frame), document)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ONNX).write_bytes(graph.SerializeToString())
    _write(folder / COLUMNS, document)
    _write(
        folder / MEMBERS,
        {
            "task": task,
            "positive": classes[1] if task == "binary" else "",
            "members": [{"file": ONNX, "weight": 1.0}],
        },
    )
    table = Columns.load(folder, dict).matrix(_values(frame, document))
    served, answers = Members(folder).predict(table), original.predict(frame)
    if task == "binary":
        answers = answers[:, 1]
    apart = _apart(answers, served, task)
    differing = int((~(apart <= ROUNDING)).sum())
    if differing > MOST_APART * len(frame):
        stop(
            "not-the-same",
            f"the converted model answers {differing} of {len(frame)} rows otherwise, up to "
            f"{apart.max():.2g} apart",
            f"answers within {ROUNDING:g} of the original's, but for one row in a hundred",
            "the served model would be another; a written waiver of the gate `format` lets the "
            "original pass",
        )
    labels = rows[target].to_numpy()
    if task == "binary":
        labels = (rows[target].astype(str) == classes[1]).to_numpy(np.int64)
    elif task == "multiclass":
        labels = rows[target].astype(str).to_numpy()
    facts = {
        "seed": 0,
        "seconds": 0.0,
        "hyperparameters": {"family": type(_last(original.estimator)).__name__},
        FACT: {
            "converted": True,
            "apart": float(apart.max()),
            "differing": differing,
            "rows": {"fitted": len(rows), "test": 0},
            "trained_on": content({str(name): frame[name] for name in frame}, labels),
        },
    }
    return seal(folder, facts)


def _last(estimator: Any) -> Any:
    """The estimator at the end of a pipeline."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def _is_text(values: pd.Series[Any]) -> bool:
    from pandas.api import types

    return not types.is_numeric_dtype(values) or types.is_bool_dtype(values)


def _document(frame: pd.DataFrame, classes: Sequence[str]) -> dict[str, Any]:
    """`columns.json`: a text is its place among the categories of these rows, sorted."""
    from pandas.api import types

    columns, inputs = [], []
    for name in frame:
        entry: dict[str, Any] = {"name": str(name)}
        kind = "integer" if types.is_integer_dtype(frame[name]) else "float"
        if _is_text(frame[name]):
            kind, counts = "text", frame[name].dropna().astype(str).value_counts()
            entry["categories"] = sorted(map(str, counts.head(MOST_CATEGORIES).index))
        columns.append({"name": str(name), "type": kind})
        inputs.append(entry)
    return {
        "columns": columns,
        "inputs": inputs,
        "encoding": "codes",
        "classes": list(classes),
    }


def _values(frame: pd.DataFrame, document: Mapping[str, Any]) -> list[list[Any]]:
    """The rows as requests have them: None for what is missing."""
    columns = []
    for column in document["columns"]:
        values = frame[column["name"]]
        texts = column["type"] == "text"
        columns.append(
            [
                None if gap else str(of) if texts else of
                for of, gap in zip(values, values.isna(), strict=True)
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _graph(estimator: Any, frame: pd.DataFrame) -> Any:
    """The estimator as ONNX with an input a column: texts, or numbers in single precision."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    _register()
    types = [
        (str(name), (StringTensorType if _is_text(frame[name]) else FloatTensorType)([None, 1]))
        for name in frame
    ]
    is_classifier = hasattr(estimator, "classes_")
    try:
        return to_onnx(
            estimator,
            initial_types=types,
            options={id(_last(estimator)): {"zipmap": False}} if is_classifier else None,
            target_opset=_OPSETS,
        )
    except Exception as error:  # each converter raises its own
        said = str(error).strip().partition("\n")[0][:300]
        stop(
            "not-convertible",
            f"{type(_last(estimator)).__name__}: {type(error).__name__}: {said}",
            "steps that skl2onnx or onnxmltools convert to ONNX",
            "block what it names (`blocked_training_algorithms`, `blocked_transformers`) and set "
            "`enable_onnx_compatible_models: true`, or waive the gate `format` for the original",
        )


def _register() -> None:
    """Let skl2onnx convert LightGBM's and XGBoost's estimators, where they are installed."""
    from importlib.util import find_spec

    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    classifier = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    if find_spec("lightgbm"):
        from lightgbm import LGBMClassifier, LGBMRegressor
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

        shapes = calculate_linear_classifier_output_shapes
        update_registered_converter(
            LGBMClassifier, "LightGbmLGBMClassifier", shapes, convert_lightgbm, options=classifier
        )
        shapes = calculate_linear_regressor_output_shapes
        update_registered_converter(
            LGBMRegressor,
            "LightGbmLGBMRegressor",
            shapes,
            convert_lightgbm,
            options={"split": None},
        )
    if find_spec("xgboost"):
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
        from xgboost import XGBClassifier, XGBRegressor

        shapes = calculate_linear_classifier_output_shapes
        update_registered_converter(
            XGBClassifier, "XGBoostXGBClassifier", shapes, convert_xgboost, options=classifier
        )
        shapes = calculate_linear_regressor_output_shapes
        update_registered_converter(XGBRegressor, "XGBoostXGBRegressor", shapes, convert_xgboost)


def _with_numbers(model: Any, document: Mapping[str, Any]) -> Any:
    """The graph behind one input `table`, the numbers of columns.json: a place among categories
    becomes the text again, "" what is missing.
    """
    from onnx import TensorProto, compose, helper, numpy_helper

    def constant(name: str, value: Any) -> Any:
        return numpy_helper.from_array(np.asarray(value), name)

    nodes, constants, outputs = [], [], []
    for at, entry in enumerate(document["inputs"]):
        name = f"column {at}"
        constants.append(constant(f"{name} at", np.array([at], dtype=np.int64)))
        column = f"{name} number"
        nodes.append(helper.make_node("Gather", ["table", f"{name} at"], [column], axis=1))
        kind = TensorProto.FLOAT
        if "categories" in entry:
            categories: Sequence[str] = entry["categories"]
            constants.append(constant(f"{name} none", np.array([-1.0], dtype=np.float32)))
            nodes += [
                helper.make_node("IsNaN", [column], [f"{name} gap"]),
                helper.make_node("Where", [f"{name} gap", f"{name} none", column], [f"{name} set"]),
                helper.make_node("Cast", [f"{name} set"], [f"{name} place"], to=TensorProto.INT64),
                helper.make_node(
                    "LabelEncoder",
                    [f"{name} place"],
                    [f"{name} text"],
                    domain="ai.onnx.ml",
                    keys_int64s=list(range(len(categories))) or [0],
                    values_strings=[of.encode() for of in categories] or [b""],
                    default_string="",
                ),
            ]
            column, kind = f"{name} text", TensorProto.STRING
        outputs.append(helper.make_tensor_value_info(column, kind, [None, 1]))
    given = helper.make_tensor_value_info(
        "table", TensorProto.FLOAT, [None, len(document["inputs"])]
    )
    graph = helper.make_graph(nodes, "columns", [given], outputs, constants)
    # A converter states the oldest version that has what it wrote; LabelEncoder of texts is newer.
    versions = {of.domain: of.version for of in model.opset_import}
    versions |= {name: max(of, versions.get(name, 0)) for name, of in _OPSETS.items()}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    before = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    of_names = {
        entry["name"]: of.name for entry, of in zip(document["inputs"], outputs, strict=True)
    }
    taken = {of.name for of in model.graph.input}
    return compose.merge_models(
        before,
        compose.add_prefix(model, "model ", rename_outputs=False),
        io_map=[(of_names[name], f"model {name}") for name in of_names if name in taken],
        outputs=[of.name for of in model.graph.output],
    )


def _apart(
    answers: NDArray[np.float64], served: NDArray[np.float64], task: Task
) -> NDArray[np.float64]:
    """How far the answers to each row lie apart, numbers by their spread; infinite where the shapes
    differ.
    """
    if answers.shape != served.shape:
        return np.full(len(answers), np.inf)
    spread = (float(np.ptp(answers)) if task == "regression" else 0.0) or 1.0
    apart: NDArray[np.float64] = np.abs(answers - served).reshape(len(answers), -1).max(axis=1)
    return apart / spread


def _write(file: Path, document: object) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
