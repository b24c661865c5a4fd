"""Define the libraries of `ml new --model` and the settings of their jobs and gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml.measures.metrics import QUANTILES
from ml.serving.scoring.columns import Encoding


@dataclass(frozen=True)
class Library:
    """A library for training."""

    settings: Mapping[str, int | float]  # default hyperparameters
    search: Mapping[str, Mapping[str, Any]]  # hyperparameter → search space of a sweep
    formats: tuple[str, ...]  # formats of the model's files, as in the gate `format`
    encoding: Encoding = "codes"  # encoding of categorical features
    environment: str = "ml-cpu"  # name of the Azure ML environment
    resumes: bool = False  # whether training resumes from checkpoints
    tolerance: float = 1e-9  # largest difference of the fitted and the saved model's predictions


def _uniform(low: float, high: float) -> Mapping[str, Any]:
    return {"type": "uniform", "min_value": low, "max_value": high}


def _choice(*values: float) -> Mapping[str, Any]:
    return {"type": "choice", "values": [*values]}


LIBRARIES: Mapping[str, Library] = {
    "lightgbm": Library(
        settings={
            **{"learning_rate": 0.05, "num_leaves": 31},
            **{"min_child_samples": 20, "feature_fraction": 0.8},
        },
        search={
            "learning_rate": _uniform(0.02, 0.2),
            "num_leaves": _choice(7, 15, 31, 63),
            "min_child_samples": _choice(5, 20, 50, 100),
            "feature_fraction": _uniform(0.4, 1.0),
        },
        formats=("lightgbm-text", "json"),
        resumes=True,
    ),
    "sklearn": Library(
        settings={"penalty": 1.0},
        search={"penalty": _choice(0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)},
        formats=("skops", "json"),
        encoding="one-hot",
    ),
    "torch": Library(
        settings={"learning_rate": 0.01, "width": 32},
        search={"learning_rate": _uniform(0.001, 0.03), "width": _choice(8, 16, 32, 64)},
        formats=("safetensors", "json"),
        encoding="one-hot",
        environment="ml-torch",
        resumes=True,
    ),
    "xgboost": Library(
        settings={
            **{"learning_rate": 0.05, "max_depth": 6},
            **{"min_child_weight": 1.0, "colsample_bytree": 0.8},
        },
        search={
            "learning_rate": _uniform(0.02, 0.2),
            "max_depth": _choice(3, 4, 6, 8),
            "min_child_weight": _choice(1.0, 5.0, 20.0, 50.0),
            "colsample_bytree": _uniform(0.4, 1.0),
        },
        formats=("xgboost-json", "json"),
        resumes=True,
    ),
}

# The model of `ml new --kind sequence`, a network that is served as ONNX.
SEQUENCE_LIBRARY = Library(
    settings={"learning_rate": 0.01, "width": 32},
    search={"learning_rate": _uniform(0.002, 0.03), "width": _choice(16, 32, 64)},
    formats=("onnx", "safetensors", "json"),
    encoding="tokens",
    environment="ml-torch",
    resumes=True,
    tolerance=1e-5,
)


def objective(library: str, task: str, metric: str) -> str:
    """Return the name of a library's loss for a task and metric; "" for scikit-learn and others."""
    loss = "quantile" if metric in QUANTILES else "mae" if metric == "mae" else task
    return _OBJECTIVES.get(library, {}).get(loss, "")


_OBJECTIVES: Mapping[str, Mapping[str, str]] = {
    "lightgbm": {
        **{"binary": "binary", "multiclass": "multiclass", "regression": "regression"},
        **{"mae": "regression_l1", "quantile": "quantile"},
    },
    "xgboost": {
        **{"binary": "binary:logistic", "multiclass": "multi:softprob"},
        **{"regression": "reg:squarederror", "mae": "reg:absoluteerror"},
        "quantile": "reg:quantileerror",
    },
}


def estimator(task: str, metric: str) -> str:
    """Return the class name of scikit-learn's linear model for a task and a metric."""
    if task != "regression":
        return "LogisticRegression"
    return "QuantileRegressor" if metric == "mae" or metric in QUANTILES else "Ridge"
