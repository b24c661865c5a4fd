"""AutoML in the stand-in: a sweep with a trial for each of a few scikit-learn algorithms.

Its results have the form of Azure's (trials, metrics, a best model), but not their quality.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.ai.ml._utils.utils import camel_to_snake

from ml.specs.plan.automl import goal, logged

ALGORITHMS = {
    "classification": ("logistic_regression", "decision_tree", "random_forest"),
    "regression": ("elastic_net", "decision_tree", "random_forest"),
    "forecasting": ("elastic_net", "decision_tree", "random_forest"),
}
_TRIAL = Path(__file__).parent / "automl_trial"
_MODEL = "best_model"


@dataclass(frozen=True)
class Search:
    """The settings of an AutoML job, named as in its YAML; a missing limit is None."""

    task: str
    metric: str
    target: str
    allowed: Sequence[str]
    trials: int | None
    at_once: int | None


def of_job(details: Mapping[str, Any]) -> Search:
    """Parse the search from a job's `taskDetails` (spec AutoMLJob/createOrUpdate)."""
    limits = details.get("limitSettings") or {}
    allowed = (details.get("trainingSettings") or {}).get("allowedTrainingAlgorithms") or ()
    return Search(
        camel_to_snake(details["taskType"]),
        camel_to_snake(details["primaryMetric"]),
        details["targetColumnName"],
        [camel_to_snake(name) for name in allowed],
        limits.get("maxTrials"),
        limits.get("maxConcurrentTrials"),
    )


def of_node(node: Mapping[str, Any]) -> Search:
    """Parse the search from a pipeline's node, which is sent as YAML (SDK `AutoMLNodeMixin`)."""
    limits = node.get("limits") or {}
    return Search(
        camel_to_snake(node["task"]),
        camel_to_snake(node["primary_metric"]),
        node["target_column_name"],
        (node.get("training") or {}).get("allowed_training_algorithms") or (),
        limits.get("max_trials"),
        limits.get("max_concurrent_trials"),
    )


def job(search: Search, table: Any, outputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sweep job that implements a search, as YAML; its trial is not a component."""
    document = step(search, table, outputs, folder)
    trial = {key: document["trial"][key] for key in ("code", "command", "environment")}
    trial["command"] = trial["command"].replace("inputs.algorithm", "search_space.algorithm")
    return {**document, "trial": trial, "compute": "azureml:cpu-cluster"}


def step(search: Search, table: Any, outputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sweep step that implements a search, as YAML; its code is copied to `folder`.

    `table` is its input and `outputs` are its outputs, in YAML form.
    """
    known = ALGORITHMS[search.task]
    algorithms = [name for name in known if name in search.allowed] or [*known]
    trials = min(search.trials or len(algorithms), len(algorithms))
    metric = logged(search.metric)
    shutil.copytree(_TRIAL, folder / "automl", dirs_exist_ok=True)
    words = f"{search.task} {metric} '{search.target}' ${{{{inputs.algorithm}}}}"
    model = f" ${{{{outputs.{_MODEL}}}}}" if _MODEL in outputs else ""
    return {
        "type": "sweep",
        "trial": {
            "type": "command",
            "code": str(folder / "automl"),
            "command": f"python trial.py ${{{{inputs.table}}}} {words}{model}",
            "environment": "azureml:AutoML:1",
            "inputs": {"table": {"type": "mltable"}, "algorithm": {"type": "string"}},
            "outputs": {name: {"type": "mlflow_model"} for name in outputs},
        },
        "inputs": {"table": table},
        "outputs": dict(outputs),
        "search_space": {"algorithm": {"type": "choice", "values": algorithms}},
        "sampling_algorithm": "grid",
        "objective": {"goal": goal(search.metric), "primary_metric": metric},
        "limits": {
            "max_total_trials": trials,
            "max_concurrent_trials": min(search.at_once or 1, trials),
        },
    }
