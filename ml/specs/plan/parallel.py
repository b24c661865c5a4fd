"""Plans the mini-batches of a parallel step (`ml.specs.plan.plans.Parallel`)."""

from __future__ import annotations

import re
from typing import Any

from ml.core.errors import Place, Problem
from ml.specs import expressions
from ml.specs.plan.plans import Parallel
from ml.specs.yaml_node import Layers

SOURCE = "reference-yaml-job-parallel"
# As in azure-ai-ml: `^\d+([kKmMgG][bB])*$`, with factors of 1024.
_SIZE = re.compile(r"(\d+)([kmg]b)?", re.IGNORECASE)
_FACTORS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def planned(layers: Layers) -> Parallel | list[Problem]:
    """Return the mini-batch settings of a step, or their problems if there are any."""
    problems: list[Problem] = []
    task = layers.owner("task")
    script, kind = str(task.get("task", "entry_script") or ""), task.get("task", "type")
    if str(kind).lower() != "run_function":
        problems.append(
            _problem(
                "unsupported-step",
                f"`task.type: {kind}`, which this machine cannot run",
                "run_function",
                "ml run SPEC --on azure",
                task.place("task", "type"),
            )
        )

    def number(*keys: str, default: int | None = None) -> int | None:
        written = _nested(layers, *keys)
        try:
            return default if written is None else int(written)
        except (TypeError, ValueError):
            problems.append(_wrong(layers, written, "a whole number", *keys))
            return default

    size = layers.get("mini_batch_size")
    match = _SIZE.fullmatch(str(size or 0).strip())
    if size is not None and (match is None or int(match[1]) < 1):
        expected = "a number of files, or a size such as 10kb"
        problems.append(_wrong(layers, size, expected, "mini_batch_size"))
    parallel = Parallel(
        entry_script=script,
        input=_named(layers.get("input_data"), "inputs"),
        place=layers.place("task"),
        mini_batch_size=int(match[1]) * _FACTORS[(match[2] or "").lower()] if match else 0,
        partition_keys=tuple(map(str, layers.get("partition_keys") or ())),
        append_row_to=_named(task.get("task", "append_row_to"), "outputs"),
        max_concurrency_per_instance=number("max_concurrency_per_instance"),
        max_retries=number("retry_settings", "max_retries", default=2) or 0,
        run_timeout_s=float(number("retry_settings", "timeout", default=60) or 60),
        error_threshold=number("error_threshold", default=-1) or 0,
        mini_batch_error_threshold=number("mini_batch_error_threshold", default=-1) or 0,
        logging_level=str(layers.get("logging_level") or "INFO").upper(),
    )
    return problems or parallel


def _nested(layers: Layers, key: str, *keys: str) -> Any:
    """Return a setting of the step, or of its component if the step does not set it."""
    values = [part.get(key, *keys) for part in (layers.step, layers.component) if part is not None]
    return next((value for value in values if value is not None), None)


def _wrong(layers: Layers, written: object, expected: str, *keys: str) -> Problem:
    # Azure ML accepts bindings in some of these fields, but planning does not know their values.
    code = "unsupported-step" if "${{" in str(written) else "bad-mini-batches"
    actual, hint = f"`{'.'.join(keys)}` is `{written}`", f"for example `{keys[-1]}: 10`"
    return _problem(code, actual, expected, hint, layers.place(*keys))


def _named(text: Any, source: str) -> str:
    """Return NAME of the first `${{source.NAME}}` in a text; "" if there is none."""
    for reference in expressions.references(str(text or "")):
        if reference.source == source:
            return reference.name
    return ""


def _problem(code: str, actual: str, expected: str, hint: str, place: Place) -> Problem:
    return Problem(code, actual, expected, hint, place, source=SOURCE)
