"""Check, for `ml check`, that a project's files name only metrics, slices and splits it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from ml.core import documents, repository
from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem, nearest
from ml.measures.evaluation import wrong_primary
from ml.measures.metrics import CustomMetric, Goal, custom_metric_fault
from ml.measures.tasks import EVERY_METRIC, TASKS, Task, metrics_of
from ml.toolkit.data import series
from ml.toolkit.data.datasets import Target
from ml.toolkit.data.tables import MOST_SHOWN, SchemaRefused, TableSchema, read_table

# The callables of ml.toolkit with the parameters task and primary_metric.
_CALLS = frozenset({"evaluate", "Evaluation"})
# The gate settings with a metric in their keys; a test keeps the list complete.
SETTINGS = (
    *(("quality", name) for name in ("bounds", "at_least", "at_most")),
    *(("gap", "at_most"), ("fairness", "at_most"), ("fairness", "ratio_at_least")),
    ("non-inferiority", "spreads"),
)
# The gate settings that name slice columns, and splits: in a list, or in keys before the metric.
SLICES = (
    *(("fairness", name) for name in ("dimensions", "at_most", "ratio_at_least")),
    ("non-inferiority", "slices"),
)
SPLITS = (
    *(("quality", name) for name in ("at_least", "at_most")),
    *(("gap", "at_most"), ("non-inferiority", "splits")),
)
# The module in which a project defines custom metrics, in a dict METRICS.
METRICS = "metrics.py"
# The splits of a dataset. Trials are compared on the first one.
PARTS = ("validation", "test", "train")
# Maximum bytes of a table that is checked against its schema.
MOST_BYTES = 20_000_000


def schema_problems(path: Path) -> Sequence[Problem]:
    """Return the problems of a schema file, which has one or several tables.

    Files with another layout are the project's own and are not checked.
    """
    document = documents.read(path)
    several = document.get("tables")
    tables: Mapping[tuple[Key, ...], Any] = {(): document.data}
    if isinstance(several, dict):
        tables = {("tables", name): raw for name, raw in several.items()}
    problems = [
        problem
        for above, raw in tables.items()
        if isinstance(raw, dict) and ("task" in raw or {"rows", "columns"} <= {*raw})
        for problem in _table_problems(document, above, raw, _custom_metrics(path.parent.parent))
    ]
    if not problems and document.get("file") and document.get("columns"):
        problems = [*_data_problems(path, document)]
    return problems


def _data_problems(path: Path, document: Document) -> Iterator[Problem]:
    """Yield problems of rows that violate the schema: for each kind, the first such row."""
    asset = path.with_name(f"{path.name.removesuffix('.schema.yml')}.yml")
    stated = documents.read(asset).get("path") if asset.is_file() else None
    # No file exists if the data is in a datastore.
    table = path.parent / str(stated) / str(document.get("file")) if stated else path
    boundary = repository.boundary(path)
    is_inside = boundary is not None and table.resolve().is_relative_to(boundary)
    if not is_inside or table == path or not table.is_file() or table.stat().st_size > MOST_BYTES:
        return
    schema = TableSchema.parse(document.data)
    in_file = tuple(column for column in schema.columns if not column.feature_set)
    rows, flaws = read_table(table, replace(schema, columns=in_file), others=True)
    named = {flaw.code + flaw.actual.partition(" ")[0]: flaw for flaw in reversed(flaws)}
    for flaw in reversed(named.values()):
        place = Place(repository.shown(table), flaw.line)
        hint = flaw.hint or f"correct the row, or the type in {repository.shown(path)}"
        yield Problem(flaw.code, flaw.actual, flaw.expected, hint, place)
    target, positive = (str(document.get(key)) for key in ("target", "positive"))
    if flaws or document.get("positive") is None:
        return
    column = next(column for column in in_file if column.name == target)
    values = sorted({str(column.parse(value)) for value in rows.column(target)})
    if positive not in values:
        expected = f"a value of `{target}`: {', '.join(values[:MOST_SHOWN])}"
        actual = f"`positive` is {positive!r}"
        yield Problem("wrong-schema", actual, expected, place=document.place("positive"))


def _table_problems(
    document: Document,
    above: tuple[Key, ...],
    raw: Mapping[str, Any],
    custom: Mapping[str, CustomMetric],
) -> Iterator[Problem]:
    """Yield the problems of one table's schema `raw`; `above` are its keys in the document."""
    try:
        columns = TableSchema.parse(raw).columns
        if raw.get("task") == series.TASK:
            series.Head.parse(raw, columns)
        elif "task" in raw:
            Target.parse(raw, columns, custom)
    except SchemaRefused as refused:
        keys = (*above, *refused.keys)
        value = str(document.get(*keys))
        close = [name for word in (refused.field, value) for name in nearest(word, refused.known)]
        close += [name for name in refused.known if value and name.startswith(value)]
        hint = f"did you mean `{close[0]}`?" if close else ""
        written = document.written(*keys)
        is_text = refused.field == "positive" or written in refused.known
        if is_text and isinstance(document.get(*keys), bool):
            hint = f'write `{refused.field}: "{written}"`'
        actual = f"`{refused.field}` is {refused.actual}"
        yield Problem("wrong-schema", actual, refused.expected, hint, document.place(*keys))
    except (KeyError, TypeError, ValueError) as error:
        module = "series" if raw.get("task") == series.TASK else "datasets"
        expected = f"the fields that ml/toolkit/data/{module}.py lists"
        yield Problem("wrong-schema", str(error), expected, place=document.place(*above))


def evaluation_problems(path: Path) -> Iterator[Problem]:
    """Yield a problem for each primary metric in evaluate.py that the project's task lacks."""
    for metric, task in _calls(path):
        if metric is None or task is None:
            continue
        custom = _custom_metrics(path.parent)
        metrics = metrics_of(task if task in TASKS else "ranking", custom)
        goal = metrics[str(metric.value)].goal if str(metric.value) in metrics else ""
        if wrong := wrong_primary(task, metric.value, goal, custom):
            place = Place(repository.shown(path), metric.lineno)
            yield _unknown(wrong.partition(",")[0], str(metric.value), task, metrics, place)


def gate_problems(path: Path) -> Iterator[Problem]:
    """Yield a problem for each metric in gates.yml that the task lacks: no model could pass.

    Custom metrics must have bounds. Nothing is checked if the project's task is unknown.
    """
    document, task = documents.read(path), _task(path.parent)
    if task is None:
        return
    custom = _custom_metrics(path.parent)
    metrics, stated = metrics_of(task, custom), document.get("gates", "quality", "bounds")
    bounds = stated if isinstance(stated, dict) else {}
    for gate, setting in SETTINGS:
        values = document.get("gates", gate, setting)
        for key in values if isinstance(values, dict) else ():
            metric = str(key).rpartition(".")[2]
            place = document.place("gates", gate, setting, key)
            if metric not in metrics:
                actual = f"`gates.{gate}.{setting}` has the metric `{metric}`"
                yield _unknown(actual, metric, task, metrics, place)
            elif metric in custom and metric not in bounds:
                actual = f"`{metric}` of `gates.{gate}.{setting}` has no bounds"
                expected = f"`{metric}: [LOWEST, HIGHEST]` under `gates.quality.bounds`"
                yield Problem("no-bounds", actual, expected, "its range in metrics.py", place)


def name_problems(path: Path) -> Iterator[Problem]:
    """Yield a problem for each slice and split in gates.yml that the evaluation lacks.

    Names in the table's schema and all strings in evaluate.py count as known. Nothing is checked
    without a schema.
    """
    document, schemas = documents.read(path), _schemas(path.parent)
    nodes = ast.walk(_parse(path.parent / "evaluate.py"))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    slices = [str(name) for schema in schemas for name in schema.get("slices") or ()]
    if any(schema.get("task") == series.TASK for schema in schemas):
        slices += series.SLICES
    splits = PARTS[:2] if schemas else ()
    for what, names, stated in (("slice", slices, SLICES), ("split", splits, SPLITS)):
        for gate, setting in stated if names else ():
            values = document.get("gates", gate, setting)
            keys = values if isinstance(values, dict) else range(len(values or ()))
            for key in keys:
                name = str(key if isinstance(values, dict) else values[key])
                if any(
                    name == prefix or name.startswith(f"{prefix}.") for prefix in (*names, *texts)
                ):
                    continue
                name = name.partition(".")[0]
                actual = f"`gates.{gate}.{setting}` has the {what} `{name}`"
                close = nearest(name, names)
                hint = f"did you mean `{close[0]}`?" if close else ""
                place = document.place("gates", gate, setting, key)
                yield Problem("not-evaluated", actual, " or ".join(names), hint, place)


def sweep_problems(path: Path) -> Iterator[Problem]:
    """Yield the problems of a spec's sweeps: primary metrics that no trial logs, and wrong goals.

    A name counts as logged if `Dataset.metrics` logs it, or if a string in the project's code may
    produce it. Without a schema, other code may log metrics too, so only misspelt names of the
    task's metrics are problems.
    """
    folder = path.parent.parent
    task = _task(folder)
    if task is None or not path.is_file():
        return
    document, schemas = documents.read(path), _schemas(folder)
    metrics = metrics_of(task, _custom_metrics(folder))
    goals = {str(key.value): goal for key, goal in _own_entries(folder / METRICS)}
    ends = tuple(f"_{metric}" for metric in metrics)
    for keys in _objectives(document.data):
        name = str(document.get(*keys))
        part = next((part for part in PARTS if name.startswith(f"{part}_")), "")
        stem = name.removeprefix(f"{part}_")
        if part and stem in metrics:
            goal = goals.get(stem, metrics[stem].goal)
            yield from _goal_problems(document, keys, stem, goal)
            yield from _other_metric(document, keys, part, stem, schemas)
            continue
        if name.endswith(ends) and not schemas:
            continue
        close = nearest(stem, metrics)
        if (close or schemas) and not any(re.fullmatch(text, name) for text in _logged(folder)):
            names = [f"{part or PARTS[0]}_{metric}" for metric in metrics]
            meant = f"{PARTS[0]}_{name}" if close and not part else name
            actual = f"`primary_metric` is `{name}`, which no trial logs"
            yield _unknown(actual, meant, task, names, document.place(*keys))


def _goal_problems(
    document: Document, keys: tuple[Key, ...], metric: str, goal: Goal | None
) -> Iterator[Problem]:
    """Yield a problem if a sweep's goal is not `goal`, its metric's; None if that is unknown."""
    goal_keys = (*keys[:-1], "goal")
    stated = str(document.get(*goal_keys)).lower()
    if goal and stated != goal and stated in get_args(Goal):
        actual = f"`goal` is `{stated}`, but {metric} is {goal[:-3]}ised"
        hint = "the sweep would select the worst trial"
        yield Problem("wrong-goal", actual, f"goal: {goal}", hint, document.place(*goal_keys))


def _other_metric(
    document: Document,
    keys: tuple[Key, ...],
    part: str,
    metric: str,
    schemas: Sequence[Document],
) -> Iterator[Problem]:
    """Yield a warning if a sweep's metric is not the schema's, which compares model versions."""
    names = sorted({str(schema.get("primary_metric")) for schema in schemas})
    if names and metric not in names:
        actual = f"`primary_metric` is `{part}_{metric}`, versions are compared by another"
        expected = " or ".join(f"{part}_{name}" for name in names)
        hint = "name one metric here and in the schema"
        place = document.place(*keys)
        yield Problem("other-primary-metric", actual, expected, hint, place, "warning")


def _unknown(actual: str, name: str, task: str, names: Collection[str], place: Place) -> Problem:
    """Return the problem for an unknown metric `name`; its hint has the most similar known one."""
    close = nearest(name, names) or [metric for metric in names if sorted(metric) == sorted(name)]
    expected = f"a metric of a {task} model: {', '.join(names)}"
    hint = f"did you mean `{close[0]}`?" if close else ""
    return Problem("wrong-primary-metric", actual, expected, hint, place)


def _objectives(value: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[Key, ...]]:
    """Yield the key path of `primary_metric` for a sweep, or for each sweep of a pipeline."""
    if isinstance(value, dict):
        objective = value.get("objective")
        if value.get("type") == "sweep" and isinstance(objective, dict):
            yield (*keys, "objective", "primary_metric")
        jobs = value.get("jobs")
        for name, part in jobs.items() if isinstance(jobs, dict) else ():
            yield from _objectives(part, (*keys, "jobs", name))


def _schemas(folder: Path) -> list[Document]:
    """Return the schemas of the project's tables that have a target."""
    schemas = [documents.read(path) for path in sorted((folder / "data").glob("*.schema.yml"))]
    return [schema for schema in schemas if schema.get("task")]


def _task(folder: Path) -> Task | None:
    """Return a project's task, from its table's schema or its evaluate.py; None if unknown."""
    stated = {schema.get("task") for schema in _schemas(folder)}
    stated |= {task for _, task in _calls(folder / "evaluate.py")}
    tasks = [task for task in TASKS if task in stated]
    return tasks[0] if len(tasks) == 1 else None


def metric_problems(path: Path) -> Iterator[Problem]:
    """Yield a problem for each name in metrics.py that a custom metric must not have."""
    for key, _ in _own_entries(path):
        if wrong := custom_metric_fault(str(key.value), EVERY_METRIC):
            place = Place(repository.shown(path), key.lineno)
            yield Problem("wrong-metric", wrong, hint="rename the metric", place=place)


def _custom_metrics(folder: Path) -> Mapping[str, CustomMetric]:
    """Return the project's custom metrics by name; their ranges are placeholders.

    metrics.py is parsed, not run. An unknown goal becomes `maximize`.
    """
    return {
        str(key.value): CustomMetric(goal or "maximize", (0.0, 1.0))
        for key, goal in _own_entries(folder / METRICS)
        if not custom_metric_fault(str(key.value), EVERY_METRIC)
    }


def _own_entries(path: Path) -> Iterator[tuple[ast.Constant, Goal | None]]:
    """Yield each key of the dict METRICS in a module, with the metric's goal; None if computed."""
    for node in _parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        table = getattr(node, "value", None)
        if "METRICS" not in [getattr(target, "id", "") for target in targets]:
            continue
        if not isinstance(table, ast.Dict):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                texts = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
                yield key, next((goal for goal in get_args(Goal) if goal in texts), None)


def _calls(path: Path) -> Iterator[tuple[ast.Constant | None, str | None]]:
    """Yield the arguments `primary_metric` and `task` of each call in `_CALLS`; None if computed.

    Only string literals and module constants are resolved.
    """
    tree = _parse(path)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.expr | None) -> ast.Constant | None:
        node = constants.get(node.id, node) if isinstance(node, ast.Name) else node
        return node if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in _CALLS:
            continue
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        if "primary_metric" in arguments:
            task = text(arguments.get("task"))
            stated = str(task.value) if task else None if "task" in arguments else "ranking"
            yield text(arguments["primary_metric"]), stated


def _logged(folder: Path) -> Iterator[str]:
    """Yield regular expressions for the metric names that the project's code may log.

    Each string and f-string yields one; computed parts become `.+`. evaluate.py is skipped, since
    it logs to another run.
    """
    for path in folder.rglob("*.py"):
        for node in ast.walk(_parse(path)) if path.name != "evaluate.py" else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else None for part in node.values
                )
                yield "".join(".+" if part is None else re.escape(str(part)) for part in parts)
            elif isinstance(node, ast.Attribute) and node.attr == "autolog":
                yield ".+"


def _parse(path: Path) -> ast.Module:
    """Parse a module; return an empty one if it is missing or not valid Python."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])
