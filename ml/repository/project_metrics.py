"""What `ml check` finds in a project's metrics: a primary metric that its task does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml.core import documents, repository
from ml.core.errors import Place, Problem, nearest
from ml.toolkit.datasets import SchemaRefused, Target
from ml.toolkit.evaluation import wrong_primary
from ml.toolkit.tables import TableSchema
from ml.toolkit.tasks import METRICS, TASKS

# The calls of ml.toolkit that are told the task and the primary metric.
_CALLS = frozenset({"evaluate", "Evaluation"})


def schema_problems(path: Path) -> Sequence[Problem]:
    """What is wrong with the schema of a table with a target; nothing for one without a `task`."""
    document = documents.read(path)
    if not isinstance(document.data, dict) or "task" not in document.data:
        return []
    try:
        Target.parse(document.data, TableSchema.parse(document.data).columns)
    except SchemaRefused as refused:
        words = (refused.field, str(document.get(refused.field)))
        close = [name for word in words for name in nearest(word, refused.known)]
        hint = f"did you mean `{close[0]}`?" if close else ""
        found = f"`{refused.field}` is {refused.found}"
        place = document.place(refused.field)
        return [Problem("wrong-schema", found, refused.expected, hint, place)]
    except (KeyError, TypeError, ValueError) as error:
        expected = "the fields that ml/toolkit/datasets.py lists"
        return [Problem("wrong-schema", str(error), expected, place=document.place())]
    return []


def evaluation_problems(path: Path) -> Iterator[Problem]:
    """The primary metrics in a project's evaluate.py that its task does not have.

    Texts are read, written there or as a constant of the module; what is computed is not.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return  # ruff and Python say it better
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
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        metric, task = text(given.get("primary_metric")), text(given.get("task"))
        if metric is None or ("task" in given and task is None):
            continue
        name = str(task.value) if task else "ranking"
        known = METRICS.get(next((known for known in TASKS if known == name), "ranking"), {})
        goal = known[str(metric.value)].goal if str(metric.value) in known else ""
        if wrong := wrong_primary(name, metric.value, goal):
            close = nearest(str(metric.value), known)
            place = Place(repository.shown(path), metric.lineno)
            hint = f"did you mean `{close[0]}`?" if close else ""
            expected = f"a metric of a {name} model: {', '.join(known)}"
            yield Problem("wrong-primary-metric", wrong.partition(",")[0], expected, hint, place)
