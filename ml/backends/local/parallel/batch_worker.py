"""One process of a parallel job: call init(), then run() for each mini-batch, then shutdown().

`batches` starts it as a script with the job's interpreter: `batch_worker.py SETTINGS TASKS
ANSWERS`. The last two are open file descriptors that carry JSON lines. Output of the entry script
goes to this process's log. Of the repository it imports only the reader of tables, by its path, if
the data is a table.

how-to-use-parallel-job-in-pipeline documents the entry script: run() gets a list of file paths or a
DataFrame, and returns a DataFrame, a list or a tuple with an item for each processed input. In
public examples it has a second argument, `mini_batch_context`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder: hide its modules from the job

import importlib.util
import inspect
import json
import logging
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class Worker:
    """The loaded entry script, and the reader of its mini-batches."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._cached: tuple[Any, Any] = (None, None)
        self._script = _load(Path(settings["entry_script"]))
        if not callable(getattr(self._script, "run", None)):
            raise AttributeError(f"{settings['entry_script']} has no function run(mini_batch)")
        takes = inspect.signature(self._script.run).parameters
        self._with_context = len(takes) > 1

    def call(self, name: str) -> None:
        """Call init() or shutdown(), if the script defines it."""
        function = getattr(self._script, name, None)
        if callable(function):
            function()

    def data(self, batch: Mapping[str, Any]) -> Any:
        """Return the argument of run(): a list of paths, or a DataFrame with the rows."""
        if "files" in batch:
            return list(batch["files"])
        if "group" in batch:
            frame, groups = self._table(None, self._settings["partition_keys"])
            return frame.iloc[groups[batch["group"]]].reset_index(drop=True)
        frame, _ = self._table(batch["part"], [])
        return frame.iloc[batch["start"] : batch["stop"]].reset_index(drop=True)

    def _table(self, part: int | None, keys: list[str]) -> Any:
        """Return (DataFrame, row numbers per group) of a file, cached for its next mini-batch."""
        if self._cached[0] != (part, tuple(keys)):
            tables = _load(Path(self._settings["reader"]))
            frame = tables.frame(self._settings["table"], part)
            groups = list(frame.groupby(keys, sort=True).indices.values()) if keys else []
            self._cached = (part, tuple(keys)), (frame, groups)
        return self._cached[1]

    def run(self, batch: Mapping[str, Any], data: Any) -> int:
        """Process a mini-batch, write its results to a file atomically, return their number."""
        context = SimpleNamespace(
            mini_batch_id=batch["id"], partition_key_value=batch.get("keys") or {}
        )
        returned = self._script.run(data, context) if self._with_context else self._script.run(data)
        text, count = as_lines(returned, self._settings["header"])
        path = Path(self._settings["results"], str(batch["id"]))
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)
        return count


def as_lines(returned: Any, header: bool) -> tuple[str, int]:
    """Return the result of run() as lines of the common output file, and the number of items.

    The cells of a DataFrame are separated by spaces, without a header unless
    `--append_row_dataframe_header True` requests one (the public notebooks read the file so). An
    item of a list becomes its text. Raise TypeError for a result of another type.
    """
    if hasattr(returned, "to_csv") and hasattr(returned, "columns"):
        return returned.to_csv(sep=" ", header=header, index=False), len(returned)
    if isinstance(returned, str | bytes | dict) or not hasattr(returned, "__len__"):
        kind = type(returned).__name__
        raise TypeError(f"run() returned {kind}, not a DataFrame, a list or a tuple")
    return "".join(f"{item}\n" for item in returned), len(returned)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def main() -> None:
    """Process the tasks from the file descriptor TASKS until it is closed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    tasks = os.fdopen(int(sys.argv[2]))
    answers = os.fdopen(int(sys.argv[3]), "w")

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    logging.basicConfig(level=getattr(logging, settings["logging_level"], logging.INFO))
    script = Path(settings["entry_script"])
    sys.argv = [str(script), *settings["arguments"]]
    sys.path.insert(0, str(script.parent))
    try:
        worker = Worker(settings)
        worker.call("init")
    except BaseException as error:
        traceback.print_exc()
        answer(failed=_last_line(error))
        sys.exit(1)
    answer(ready=True)
    for line in tasks:
        batch = json.loads(line)
        try:
            data = worker.data(batch)
            answer(running=batch["id"])
            answer(done=batch["id"], count=worker.run(batch, data))
        except BaseException as error:
            traceback.print_exc()
            leaves = not isinstance(error, Exception)
            answer(raised=batch["id"], error=_last_line(error), leaves=leaves)
            if leaves:
                raise
    worker.call("shutdown")


if __name__ == "__main__":
    main()
