"""Convert the best model of an Azure AutoML job to a folder that loads without running code.

    python -m ml.toolkit.automl.conversion --model DIR --data DIR --target NAME --converted DIR

Azure's model is an MLflow model with a pickle, which runs code when it is loaded. So the conversion
is a pipeline step in the environment of the AutoML job. The result has the format of a local AutoML
job: one ONNX file whose inputs are the numbers of `columns.json`. The conversion fails if the
predictions for the given rows differ from the original's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml.measures.tasks import Task
from ml.serving.scoring.columns import Columns, Kind, Value, read_json
from ml.serving.scoring.members import Members
from ml.toolkit.automl import folders, reading
from ml.toolkit.automl.cells import stop, written
from ml.toolkit.automl.folders import OPSETS
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, content

if TYPE_CHECKING:
    import pandas as pd

ONNX = "model.onnx"
# Tolerated share of rows with other predictions, since float32 may change the branch of a tree.
# Only the converted model is evaluated and served.
MOST_APART = 0.01


def main(arguments: Sequence[str] | None = None) -> None:
    """Load, convert, compare and write the model; exit with an error if it is not convertible."""
    parser = argparse.ArgumentParser(description="Convert a model of Azure's AutoML.")
    parser.add_argument("--model", type=Path, required=True, help="the MLflow model")
    parser.add_argument(
        "--data", type=Path, required=True, help="the MLTable that it was fitted on"
    )
    parser.add_argument("--target", required=True, help="the target column")
    parser.add_argument("--positive", default="", help="binary: the positive class")
    parser.add_argument("--converted", type=Path, required=True, help="the output folder")
    options = parser.parse_args(arguments)
    estimator, names = load(options.model)
    is_class = hasattr(estimator, "classes_")
    rows = reading.read(options.data, options.target, is_class=is_class)
    rows = rows.dropna(subset=[options.target])
    rows = rows.reset_index(drop=True)
    if missing := [name for name in names if name not in rows]:
        stop(
            "column-mismatch",
            f"{options.data} has no `{missing[0]}`",
            "every input column",
            "add it",
        )
    sample = rows[names], rows[options.target], options.positive
    required = reading.required(options.data)
    digest = convert(estimator, *sample, options.converted, required)
    print(f"model {options.converted} {digest}: as {options.model} on {len(rows)} rows")


def load(folder: Path) -> tuple[Any, list[str]]:
    """Return the estimator of an MLflow model and its input columns in order.

    Runs the code of its pickle. Exits if the model cannot be loaded or names no columns.
    """
    try:
        import mlflow.sklearn
        from mlflow.models import Model

        schema = Model.load(str(folder)).get_input_schema()
        estimator = mlflow.sklearn.load_model(str(folder))
    except Exception as error:  # whatever a pickle raises, such as a package that is not there
        stop(
            "load-failed",
            f"{folder}: {type(error).__name__}: {error}",
            "an MLflow model of the sklearn flavor, and the packages that trained it",
            "run this step in the environment of the job that trained the model",
        )
    if schema is not None and schema.has_input_names():
        return estimator, list(schema.input_names())
    names = [str(item) for item in getattr(estimator, "feature_names_in_", ())]
    if not names:
        hint = "log the model with `signature=`, then run this again"
        stop("no-columns", f"{folder} has no model signature", "input columns in MLmodel", hint)
    return estimator, names


def convert(
    estimator: Any,
    frame: pd.DataFrame,
    target: pd.Series[Any],
    positive: str,
    folder: Path,
    required: frozenset[str] = frozenset(),
) -> str:
    """Write the converted model to `folder`; return the folder's digest.

    `frame` and `target` are the rows that the model was trained on, `positive` the positive class
    ("" for any), `required` the columns without missing values. Exits if a step is not convertible
    or the predictions differ.
    """
    import pandas as pd

    classes = written(pd.Index(getattr(estimator, "classes_", ())))
    task: Task = ("binary" if len(classes) == 2 else "multiclass") if classes else "regression"
    if task == "binary" and positive not in ("", classes[1]):
        actual = f"`--positive {positive}`: the model predicts the probability of `{classes[1]}`"
        stop("class-mismatch", actual, "the class that sorts last", f"--positive {classes[1]}")
    kinds = {str(name): _kind(frame[name]) for name in frame}
    values = _values(frame, kinds)
    try:
        names = classes if len(classes) > 2 else []
        columns = Columns.fit(kinds, values, dict, "codes", names, required, imputes=True)
    except ValueError as error:
        stop("not-numbers", str(error), "finite numbers", "correct these values")
    graph = _with_numbers(_graph(estimator, kinds), kinds, columns)
    columns.save(folder)
    (folder / ONNX).write_bytes(graph.SerializeToString())
    positive = classes[1] if task == "binary" else ""
    members = [{"file": ONNX, "weight": 1.0}]
    folders.write(folder, {"task": task, "positive": positive}, members)
    served = Members(folder).predict(columns.matrix(values)).reshape(len(frame), -1)
    answers = np.asarray(estimator.predict_proba(frame) if classes else estimator.predict(frame))
    answers = (answers[:, 1] if task == "binary" else answers).reshape(len(frame), -1)
    spread = (float(np.ptp(answers)) if task == "regression" else 0.0) or 1.0
    distances = folders.distances(answers, served, spread).reshape(len(frame), -1).max(axis=1)
    differing = int((distances > folders.ROUNDING).sum())
    if differing > MOST_APART * len(frame):
        stop(
            "conversion-mismatch",
            f"the converted model's predictions differ in {differing} of {len(frame)} rows, "
            f"by up to {distances.max():.2g}",
            f"at most {folders.ROUNDING:g} in 99 % of the rows",
            "block the algorithm that ONNX rounds, or serve the original with a waiver of the "
            "gate `format`",
        )
    labels = target.to_numpy()
    if task == "binary":
        labels = (target.astype(str) == classes[1]).to_numpy(np.int64)
    elif task == "multiclass":
        labels = target.astype(str).to_numpy()
    facts = {
        "seed": 0,
        "seconds": 0.0,
        "hyperparameters": {"family": type(_last(estimator)).__name__},
        FACT: {
            "converted": True,
            "distance": float(distances.max()),
            "differing": differing,
            "rows": {"fitted": len(frame), "test": 0},
            "trained_on": content({str(name): frame[name] for name in frame}, labels),
        },
    }
    return seal(folder, facts)


def _last(estimator: Any) -> Any:
    """Return the last step of a scikit-learn pipeline, or `estimator` if it is none."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def _kind(values: pd.Series[Any]) -> Kind:
    from pandas.api import types

    if not types.is_numeric_dtype(values) or types.is_bool_dtype(values):
        return "text"
    return "integer" if types.is_integer_dtype(values) else "float"


def _values(frame: pd.DataFrame, kinds: Mapping[str, Kind]) -> list[list[Value]]:
    """Return the rows as a request has them, with None for missing values."""
    columns = []
    for name, kind in kinds.items():
        cells: Any = frame[name].astype(str if kind == "text" else object).astype(object)
        values = cells.where(frame[name].notna(), None).tolist()
        # The server strips texts and treats some, such as `NA`, as missing.
        columns.append([read_json(kind, value) for value in values] if kind == "text" else values)
    return [list(row) for row in zip(*columns, strict=True)]


def _graph(estimator: Any, kinds: Mapping[str, Kind]) -> Any:
    """Return the estimator as ONNX with one input per column, of strings or float32 numbers."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    _register()
    types = [
        (name, (StringTensorType if kind == "text" else FloatTensorType)([None, 1]))
        for name, kind in kinds.items()
    ]
    is_classifier = hasattr(estimator, "classes_")
    try:
        return to_onnx(
            estimator,
            initial_types=types,
            options={id(_last(estimator)): {"zipmap": False}} if is_classifier else None,
            target_opset=OPSETS,
        )
    except Exception as error:  # each converter raises its own
        message = str(error).strip().partition("\n")[0][:300]
        stop(
            "not-convertible",
            f"{type(_last(estimator)).__name__}: {type(error).__name__}: {message}",
            "steps that skl2onnx or onnxmltools convert to ONNX",
            "block this step (`blocked_training_algorithms`, `blocked_transformers`) and set "
            "`enable_onnx_compatible_models: true`, or waive the gate `format` for the original",
        )


def _register() -> None:
    """Register the converters of LightGBM and XGBoost in skl2onnx, if they are installed."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator

    libraries = (("lightgbm", "LightGbm", "LGBM"), ("xgboost", "XGBoost", "XGB"))
    for package, module, prefix in (library for library in libraries if find_spec(library[0])):
        converters = import_module(f"onnxmltools.convert.{package}.operator_converters.{module}")
        for kind, options in (
            ("Classifier", {"nocl": [True, False], "zipmap": [True, False, "columns"]}),
            ("Regressor", {"split": None} if package == "lightgbm" else None),
        ):
            name = f"{prefix}{kind}"
            shapes = f"calculate_linear_{kind.lower()}_output_shapes"
            update_registered_converter(
                getattr(import_module(package), name),
                f"{module}{name}",
                getattr(shape_calculator, shapes),
                getattr(converters, f"convert_{package}"),
                options=options,
            )


def _with_numbers(model: Any, kinds: Mapping[str, Kind], columns: Columns) -> Any:
    """Return the graph with a single input `table`, the numbers of columns.json.

    Added nodes convert category codes to the original texts, and missing codes to "".
    """
    from onnx import TensorProto, compose, helper

    model = compose.add_prefix(model, "model ", rename_outputs=False)
    texts = [name for name, kind in kinds.items() if kind == "text"]
    parts = [f"place of {name}" if name in texts else f"model {name}" for name in kinds]
    nodes = [helper.make_node("Split", ["table"], parts, axis=1, num_outputs=len(parts))]
    for name in texts:
        categories = columns.categories.get(name) or [""]
        nodes.append(
            helper.make_node(
                "LabelEncoder",
                [f"place of {name}"],
                [f"model {name}"],
                domain="ai.onnx.ml",
                keys_floats=[float(place) for place in range(len(categories))],
                values_strings=categories,
                default_string="",
            )
        )
    nodes += model.graph.node
    table_input = helper.make_tensor_value_info("table", TensorProto.FLOAT, [None, len(parts)])
    graph = helper.make_graph(
        nodes, "columns", [table_input], model.graph.output, model.graph.initializer
    )
    # Converters state the oldest sufficient opset, but LabelEncoder for strings needs a newer one.
    versions = {opset.domain: opset.version for opset in model.opset_import}
    versions |= {name: max(value, versions.get(name, 0)) for name, value in OPSETS.items()}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


if __name__ == "__main__":
    main()
