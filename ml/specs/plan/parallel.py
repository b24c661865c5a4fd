"""A parallel step → the plan of its mini-batches (`ml.specs.plan.plan.Parallel`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ml.core.errors import Place, Problem
from ml.specs import expressions
from ml.specs.parts import Layers
from ml.specs.plan.plan import Parallel

SOURCE = "reference-yaml-job-parallel"
# azure-ai-ml takes the same: `^\d+([kKmMgG][bB])*$`, with factors of 1024.
_SIZE = re.compile(r"(\d+)([kmg]b)?", re.IGNORECASE)
_FACTORS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def planned(layers: Layers, code: Path | None) -> Parallel | list[Problem]:
    """The mini-batches of a step (layered over its component), or the problems with them.

    `code` is the folder with the entry script.
    """
    problems: list[Problem] = []
    task = layers.owner("task")
    script, kind = str(task.get("task", "entry_script") or ""), task.get("task", "type")
    if str(kind).lower() != "run_function":
        problems.append(
            _problem(
                "unsupported-step",
                f"`task.type: {kind}` is not built here",
                "run_function",
                task.place("task", "type"),
            )
        )
    elif code is not None and code.is_dir() and not (code / script).is_file():
        problems.append(
            _problem(
                "entry-script-not-found",
                f"there is no `{script}` in {code.name}",
                "the Python file with init() and run(mini_batch)",
                task.place("task", "entry_script"),
            )
        )
    numbers = Numbers(layers, problems)
    parallel = Parallel(
        entry_script=script,
        input=_named(layers.get("input_data"), "inputs"),
        place=layers.place("task"),
        mini_batch_size=numbers.size(),
        partition_keys=tuple(map(str, layers.get("partition_keys") or ())),
        append_row_to=_named(task.get("task", "append_row_to"), "outputs"),
        max_concurrency_per_instance=numbers.integer("max_concurrency_per_instance"),
        max_retries=numbers.integer("retry_settings", "max_retries", default=2) or 0,
        run_timeout_s=float(numbers.integer("retry_settings", "timeout", default=60) or 60),
        error_threshold=numbers.threshold("error_threshold"),
        mini_batch_error_threshold=numbers.threshold("mini_batch_error_threshold"),
        logging_level=str(layers.get("logging_level") or "INFO").upper(),
    )
    return problems or parallel


class Numbers:
    """Reads numbers that may be written as text; other values become problems."""

    def __init__(self, layers: Layers, problems: list[Problem]) -> None:
        self._layers, self._problems = layers, problems

    def size(self) -> int:
        """The size of a mini-batch; 0 when the step sets none."""
        written = self._layers.get("mini_batch_size")
        if written is None:
            return 0
        match = _SIZE.fullmatch(str(written).strip())
        if match is None or int(match[1]) < 1:
            self._wrong(written, "a number of files, or a size such as 10kb", "mini_batch_size")
            return 0
        return int(match[1]) * _FACTORS[(match[2] or "").lower()]

    def integer(self, *keys: str, default: int | None = None) -> int | None:
        """An integer; `default` when the step sets none."""
        written = self._layers.get(*keys) if len(keys) == 1 else self._below(*keys)
        if written is None:
            return default
        try:
            return int(written)
        except (TypeError, ValueError):
            self._wrong(written, "a whole number", *keys)
            return default

    def threshold(self, key: str) -> int:
        """The number of tolerated failures; -1 means any."""
        limit = self.integer(key, default=-1)
        return -1 if limit is None else limit

    def _below(self, key: str, name: str) -> Any:
        """One of the nested settings; the component supplies those that the step does not set."""
        for part in (self._layers.own, self._layers.component):
            if part is not None and part.mapping(key).get(name) is not None:
                return part.mapping(key)[name]
        return None

    def _wrong(self, written: object, expected: str, *keys: str) -> None:
        message, place = f"`{'.'.join(keys)}` is `{written}`", self._layers.place(*keys)
        # Azure ML accepts a binding in some of these; a plan is made before its value is known.
        code = "unsupported-step" if "${{" in str(written) else "bad-mini-batches"
        self._problems.append(_problem(code, message, expected, place))


def _named(text: Any, source: str) -> str:
    """The input or output that `${{inputs.x}}` names; "" for none."""
    for reference in expressions.references(str(text or "")):
        if reference.source == source:
            return reference.name
    return ""


def _problem(code: str, found: str, expected: str, place: Place) -> Problem:
    return Problem(code, found, expected, place=place, source=SOURCE)
