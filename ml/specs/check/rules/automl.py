"""Checks AutoML jobs and steps for errors that azure-ai-ml accepts and the service rejects."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.core.documents import read
from ml.core.errors import UserError
from ml.specs.assets import assets
from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule
from ml.specs.plan.automl import snake

_DATA = ("training_data", "validation_data", "test_data")
_TABLE = "MLTable"
_PARENT_INPUT = re.compile(r"\$\{\{\s*parent\.inputs\.(\w+)\s*\}\}")
_COLUMN_FIELDS = (
    ("target_column_name",),
    ("forecasting", "time_column_name"),
    ("forecasting", "time_series_id_column_names"),
)
# Matches common aliases without importing pandas, including those that newer versions renamed.
_OFFSET = re.compile(
    r"\d*(?:[BDHTSLUNMAQYWh]|min|s|B?[AQMY]S?E?"
    r"|W-(?:MON|TUE|WED|THU|FRI|SAT|SUN)"
    r"|B?[AQY]S?E?-(?:JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))"
)


@rule("automl-limits", scope="automl", source="reference-yaml-job-automl: limits")
def automl_limits(node: Node) -> Iterator[Finding]:
    """`max_concurrent_trials` is at most `max_trials`, and a trial's timeout at most the job's."""
    for part, total in (
        ("max_concurrent_trials", "max_trials"),
        ("trial_timeout_minutes", "timeout_minutes"),
    ):
        less, more = node.get("limits", part), node.get("limits", total)
        if isinstance(less, int) and isinstance(more, int) and less > more:
            expected = f"at most `{total}`, which is {more}"
            yield Finding(("limits", part), f"`{part}` is {less}", expected, f"{part}: {more}")


@rule("automl-share", scope="automl", source="how-to-configure-auto-train: validation_data_size")
def automl_share(node: Node) -> Iterator[Finding]:
    """`validation_data_size` and `test_data_size` are between 0 and 1."""
    for key in ("validation_data_size", "test_data_size"):
        share = node.get(key)
        if isinstance(share, int | float) and not 0 < share < 1:
            yield Finding((key,), f"`{key}` is {share}", "a number between 0 and 1", f"{key}: 0.2")


@rule("automl-algorithms", scope="automl", source="reference-yaml-job-automl: training")
def automl_algorithms(node: Node) -> Iterator[Finding]:
    """A job does not block every algorithm that it allows."""
    keys = ("training", "allowed_training_algorithms"), ("training", "blocked_training_algorithms")
    allowed, blocked = (
        {snake(str(name)) for name in names} if isinstance(names := node.get(*key), list) else set()
        for key in keys
    )
    if allowed and allowed <= blocked:
        actual = "every algorithm of `allowed_training_algorithms` is blocked"
        yield Finding(
            keys[1],
            actual,
            "at least one allowed algorithm",
            "delete one from `blocked_training_algorithms`",
        )


@rule("automl-time-column", scope="automl", source="how-to-auto-train-forecast: configure")
def automl_time_column(node: Node) -> Iterator[Finding]:
    """A forecasting job sets `time_column_name`."""
    if node.get("task") == "forecasting" and not node.get("forecasting", "time_column_name"):
        hint = "forecasting: {time_column_name: date, forecast_horizon: 24}"
        keys = ("forecasting",) if node.get("forecasting") else ("task",)
        yield Finding(keys, "no `forecasting.time_column_name`", "a column", hint)


@rule("automl-frequency", scope="automl", source="how-to-auto-train-forecast: frequency")
def automl_frequency(node: Node) -> Iterator[Finding]:
    """The frequency of a forecasting job is an offset alias of pandas, new or old."""
    keys = ("forecasting", "frequency")
    frequency = node.get(*keys)
    if not isinstance(frequency, str) or "${{" in frequency or _OFFSET.fullmatch(frequency):
        return
    from pandas.tseries.frequencies import to_offset

    try:
        to_offset(frequency)
    except ValueError:
        hint = "frequency: D"
        yield Finding(keys, f"`frequency` is {frequency}", "such as D, W-THU, MS or h", hint)


@rule("automl-target", scope="automl", source="reference-yaml-job-automl: target_column_name")
def automl_target(node: Node) -> Iterator[Finding]:
    """The target, the time and the series id are different columns, which local tables have."""
    named = set[str]()
    for keys in _COLUMN_FIELDS:
        names = node.get(*keys)
        for name in names if isinstance(names, list) else [names]:
            if isinstance(name, str) and name in named:
                actual = f"`{name}` is named for two purposes"
                yield Finding(keys, actual, "a different column for each purpose")
            named.add(str(name))
    for key in _DATA:
        folder = _folder(node, key)
        columns = _columns(folder) if folder is not None else []
        for keys in _COLUMN_FIELDS if columns else ():
            names = node.get(*keys)
            for name in names if isinstance(names, list) else [names]:
                if isinstance(name, str) and "${{" not in name and name not in columns:
                    actual = f"`{name}` is not a column of `{_path(node.get(key))}`"
                    expected = f"one of {', '.join(columns[:12])}"
                    yield Finding(
                        keys, actual, expected, "name another column, or add it to the table"
                    )


def _folder(node: Node, key: str) -> Path | None:
    """Return the local folder of the data in field `key`; None if it is remote.

    The field may hold a path, an asset of the repository, or a binding to a pipeline input.
    """
    owner, path = node, _path(node.get(key))
    if node.parent is not None and (match := _PARENT_INPUT.fullmatch(path)):
        owner, path = node.parent, _path(node.parent.get("inputs", match[1]))
    if not path or "${{" in path:
        return None
    asset = assets.find(path, "data", repository.root(owner.file))
    return asset.path if asset is not None else assets.local_path(path, owner.folder)


def _path(data: object) -> str:
    """Return the path of data, which is a mapping with `path` or the path itself; "" if none."""
    path = data.get("path") if isinstance(data, dict) else data
    return path if isinstance(path, str) else ""


def _columns(folder: Path) -> list[str]:
    """Return the header of the table's first delimited file; [] for any other table."""
    try:
        table = read(folder / _TABLE).data
        options = next(step for step in table["transformations"] if "read_delimited" in step)
        delimited = options["read_delimited"] if isinstance(options, dict) else None
        entry = table["paths"][0]
        file = folder / entry["file"] if "file" in entry else min(folder.glob(entry["pattern"]))
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return next(csv.reader(lines, delimiter=(delimited or {}).get("delimiter", ",")))
    except (
        UserError,
        LookupError,
        TypeError,
        AttributeError,
        StopIteration,
        ValueError,
        OSError,
        NotImplementedError,
    ):
        return []
