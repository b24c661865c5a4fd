"""AutoML jobs and steps: what the service refuses once the job runs, and azure-ai-ml lets pass."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.core.documents import read
from ml.core.errors import Refused
from ml.specs.assets import assets
from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule
from ml.specs.plan.automl import snake

_DATA = ("training_data", "validation_data", "test_data")
_TABLE = "MLTable"


@rule("automl-limits", scope="automl", source="reference-yaml-job-automl: limits")
def automl_limits(node: Node) -> Iterator[Finding]:
    """No more trials run at once than there are, and none takes longer than the job."""
    for part, whole in (
        ("max_concurrent_trials", "max_trials"),
        ("trial_timeout_minutes", "timeout_minutes"),
    ):
        less, more = node.get("limits", part), node.get("limits", whole)
        if isinstance(less, int) and isinstance(more, int) and less > more:
            expected = f"at most `{whole}`, which is {more}"
            yield Finding(("limits", part), f"`{part}` is {less}", expected, f"{part}: {more}")


@rule("automl-share", scope="automl", source="how-to-configure-auto-train: validation_data_size")
def automl_share(node: Node) -> Iterator[Finding]:
    """The share of rows that validates or tests lies between 0 and 1."""
    for key in ("validation_data_size", "test_data_size"):
        share = node.get(key)
        if isinstance(share, int | float) and not 0 < share < 1:
            yield Finding((key,), f"`{key}` is {share}", "a number between 0 and 1", f"{key}: 0.2")


@rule("automl-algorithms", scope="automl", source="reference-yaml-job-automl: training")
def automl_algorithms(node: Node) -> Iterator[Finding]:
    """Of the algorithms that a job allows it does not block every one."""
    keys = ("training", "allowed_training_algorithms"), ("training", "blocked_training_algorithms")
    allowed, blocked = (
        {snake(str(name)) for name in names} if isinstance(names := node.get(*of), list) else set()
        for of in keys
    )
    if allowed and allowed <= blocked:
        found = "every algorithm of `allowed_training_algorithms` is blocked"
        yield Finding(
            keys[1], found, "one to train", "delete one from `blocked_training_algorithms`"
        )


@rule("automl-time-column", scope="automl", source="how-to-auto-train-forecast: configure")
def automl_time_column(node: Node) -> Iterator[Finding]:
    """A forecasting job names the column of the time."""
    if node.get("task") == "forecasting" and not node.get("forecasting", "time_column_name"):
        hint = "forecasting: {time_column_name: date, forecast_horizon: 24}"
        keys = ("forecasting",) if node.get("forecasting") else ("task",)
        yield Finding(keys, "no `forecasting.time_column_name`", "a column", hint)


@rule("automl-target", scope="automl", source="reference-yaml-job-automl: target_column_name")
def automl_target(node: Node) -> Iterator[Finding]:
    """The target is a column of the tables that are on this machine."""
    target = node.get("target_column_name")
    for key in _DATA if isinstance(target, str) else ():
        folder = _folder(node, key)
        columns = _columns(folder) if folder is not None else []
        if columns and target not in columns:
            found = f"`{target}` is not a column of `{node.get(key, 'path')}`"
            expected, hint = f"one of {', '.join(columns[:12])}", "name one, or add it to the table"
            yield Finding(("target_column_name",), found, expected, hint)


def _folder(node: Node, key: str) -> Path | None:
    """The folder of a field's data on this machine, also of an asset of the repository."""
    path = node.get(key, "path")
    if not isinstance(path, str) or "${{" in path:
        return None
    asset = assets.find(path, "data", repository.root(node.file))
    return asset.path if asset is not None else assets.local(path, node.folder)


def _columns(folder: Path) -> list[str]:
    """The header of the table's first delimited file; empty for any other table."""
    try:
        table = read(folder / _TABLE).data
        options = next(step for step in table["transformations"] if "read_delimited" in step)
        delimited = options["read_delimited"] if isinstance(options, dict) else None
        file = folder / table["paths"][0]["file"]
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return next(csv.reader(lines, delimiter=(delimited or {}).get("delimiter", ",")))
    except (Refused, LookupError, TypeError, AttributeError, StopIteration, ValueError, OSError):
        return []
