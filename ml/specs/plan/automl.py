"""Plans AutoML jobs and steps (reference-yaml-job-automl and its siblings)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from ml.specs.plan import fields
from ml.specs.plan.bindings import INPUT_MODE, Bindings, source_of
from ml.specs.plan.plans import AutoMLPlan, Frozen, InputPlan, OutputPlan, Source
from ml.specs.yaml_node import YamlNode

# The data fields; MLTable is their only valid type.
DATA = ("training_data", "validation_data", "test_data")
# Task → its default primary metric (azure-ai-ml's schemas, `load_default`).
METRICS = {
    "classification": "auc_weighted",
    "regression": "normalized_root_mean_squared_error",
    "forecasting": "normalized_root_mean_squared_error",
    "image_classification": "accuracy",
    "image_classification_multilabel": "iou",
    "image_object_detection": "mean_average_precision",
    "image_instance_segmentation": "mean_average_precision",
    "text_classification": "accuracy",
    "text_classification_multilabel": "accuracy",
    "text_ner": "accuracy",
}
# "max_trials … default 1000", but 1 for images and text; "max_concurrent_trials … default 1".
_TRIALS = 1000
# The word boundaries of azure-ai-ml's camel_to_snake.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TABULAR = frozenset({"classification", "regression", "forecasting"})


def planned(
    node: YamlNode,
    *,
    name: str,
    experiment: str,
    compute: str,
    bindings: Bindings,
    prefix: str,
    outputs: Mapping[str, OutputPlan],
) -> tuple[AutoMLPlan, Mapping[str, Source]]:
    """Return the plan of an AutoML job, and the sources of data inputs bound to the pipeline.

    `compute` is the pipeline's default, `prefix` the path from the job to `node`.
    """
    task = str(node.get("task")).lower()
    metric = snake(str(node.get("primary_metric") or METRICS[task]))
    inputs: dict[str, InputPlan] = {}
    sources: dict[str, Source] = {}
    for key in DATA:
        written = node.get(key)
        if written is None:
            continue
        data = written if isinstance(written, dict) else {"path": written}
        source = source_of(str(data.get("path")))
        if source is None:
            inputs[key] = bindings.data(node, (key,), {"type": "mltable", **data}, prefix + key)
            continue
        sources[key] = source
        mode = str(data.get("mode") or INPUT_MODE)
        inputs[key] = InputPlan(
            key, "mltable", node.place(key), source=str(data["path"]), mode=mode
        )
    limits = node.mapping("limits")
    plan = AutoMLPlan(
        place=node.place(),
        display_name=name,
        experiment=experiment,
        task=task,
        primary_metric=logged(metric),
        goal=goal(metric),
        target_column=fields.text(node.get("target_column_name")),
        compute=str(node.get("compute") or compute),
        algorithms=_algorithms(node, "allowed_training_algorithms"),
        blocked=_algorithms(node, "blocked_training_algorithms"),
        settings=Frozen((str(k), value) for k, value in node.mapping().items() if k not in DATA),
        inputs=Frozen(inputs),
        outputs=outputs,
        max_total_trials=int(limits.get("max_trials") or (_TRIALS if task in _TABULAR else 1)),
        max_concurrent_trials=int(limits.get("max_concurrent_trials") or 1),
        timeout_s=_seconds(limits.get("timeout_minutes")),
        trial_timeout_s=_seconds(limits.get("trial_timeout_minutes")),
        tags=fields.tags(node),
        description=fields.text(node.get("description")),
        places=fields.places(node),
    )
    return plan, Frozen(sources)


def logged(metric: str) -> str:
    """Return the name that a trial logs a primary metric as (how-to-understand-automated-ml)."""
    return "AUC_weighted" if metric == "auc_weighted" else metric


def goal(metric: str) -> Literal["maximize", "minimize"]:
    """Return "minimize" for an error metric (`normalized_…`), else "maximize"."""
    return "minimize" if metric.startswith("normalized_") else "maximize"


def _algorithms(node: YamlNode, key: str) -> tuple[str, ...]:
    """Return the algorithms in the list `training.KEY`, in snake case; () if there is none."""
    written = node.get("training", key)
    names = map(str, written) if isinstance(written, list) else ()
    return tuple(map(snake, names))


def snake(name: str) -> str:
    """Convert `LightGBM` to `light_gbm`, as azure-ai-ml does: it accepts both forms."""
    return _WORD.sub("_", name).lower()


def _seconds(minutes: Any) -> float | None:
    return float(minutes) * 60 if minutes else None
