"""Run a parallel step as a command (see `batches`), and report its problems."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ml.backends.local import files
from ml.backends.local.parallel import batches
from ml.backends.local.processes.process import cores
from ml.core.errors import Problem
from ml.core.imports import BIND
from ml.specs.plan.plans import CommandPlan, Parallel
from ml.toolkit.data import mltables

# Default timeouts in seconds. The overhead's default is 30 in reference-yaml-job-parallel and 600
# in how-to-use-parallel-job-in-pipeline; take 600, so that a slow disk fails no job.
OVERHEAD_S = 600.0
START_S = 600.0


def launch_command(
    plan: CommandPlan, arguments: str, folder: Path, environment: Mapping[str, str], threads: int
) -> str:
    """Write the settings of a parallel step to `folder`; return the shell command that runs it.

    `threads` limits processes and threads together. Raise OSError if the disk is full.
    """
    task = plan.parallel
    assert task is not None
    words = shlex.split(arguments)
    results = folder / "mini_batches"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    count = min(processes(plan), threads)
    settings = {
        "folder": str(folder),
        "python": shutil.which("python", path=environment.get("PATH")) or sys.executable,
        "entry_script": str(files.work(folder) / task.entry_script),
        "arguments": words,
        "data": str(files.inputs(plan, folder).get(task.input)),
        "mini_batch_size": task.mini_batch_size,
        "partition_keys": list(task.partition_keys),
        "processes": count,
        "threads": max(1, threads // count),
        "max_retries": task.max_retries,
        "run_timeout_s": task.run_timeout_s,
        "start_timeout_s": _number(words, "first_task_creation_timeout", START_S),
        "overhead_timeout_s": _number(words, "task_overhead_timeout", OVERHEAD_S),
        "items_allowed": _number(words, "error_threshold", task.error_threshold),
        "mini_batches_allowed": task.mini_batch_error_threshold,
        "percent_allowed": _number(words, "allowed_failed_percent", 100),
        "logging_level": "WARNING" if task.logging_level == "WARN" else task.logging_level,
        "results": str(results),
        "append_to": _append_to(plan, folder),
        "header": str(_argument(words, "append_row_dataframe_header")).lower() == "true",
    }
    written = folder / "parallel.json"
    written.write_text(json.dumps(settings, indent=1))
    start = f"{BIND}; from ml.backends.local.parallel.batches import main; main()"
    return "exec " + shlex.join([sys.executable, "-I", "-c", start, str(written)])


def processes(plan: CommandPlan) -> int:
    """Return the number of processes that Azure would run on all nodes together."""
    per_node = plan.parallel.max_concurrency_per_instance if plan.parallel else 1
    return plan.instance_count * (per_node or cores())


def differences(plan: CommandPlan) -> Iterator[str]:
    """Yield a line if this machine runs fewer processes than the nodes would."""
    if processes(plan) > cores():
        yield f"local: {processes(plan)} processes of a parallel step → {cores()}, one a core"


def refusals(plan: CommandPlan, step: Parallel) -> Iterator[Problem]:
    """Yield a problem if the table (MLTable) cannot be read on this machine."""
    data = plan.inputs.get(step.input)
    if data is None or data.path is None or not data.path.exists():
        return
    try:
        batches.describe(data.path, step.partition_keys)
    except mltables.Unreadable as error:
        yield Problem(
            "unsupported-mltable",
            str(error),
            "files, or a table that read_delimited, read_parquet or read_json_lines reads",
            "simplify the MLTable for a local run",
            data.place,
        )


def warnings(step: Parallel, folder: Path) -> tuple[Problem, ...]:
    """Return a warning if mini-batches failed within the thresholds."""
    try:
        counts = json.loads((folder / "mini_batches" / "counts.json").read_text())
    except (OSError, ValueError):
        return ()
    if not counts["failed"] and not counts["failed_items"]:
        return ()
    return (
        Problem(
            "mini-batches-failed",
            f"{counts['failed']} of {counts['total']} mini-batches failed "
            f"({counts['failed_items']} of {counts['items']} items)",
            hint=f"each with its error: {folder / 'logs' / 'mini_batches.csv'}",
            place=step.place,
            severity="warning",
        ),
    )


def _append_to(plan: CommandPlan, folder: Path) -> str:
    task = plan.parallel
    if task is None or task.append_row_to not in plan.outputs:
        return ""
    path = files.outputs(plan, folder)[task.append_row_to]
    is_file = plan.outputs[task.append_row_to].type == "uri_file"
    return str(path if is_file else path / task.append_file)


def _argument(words: Sequence[str], name: str) -> str | None:
    """Return the value of `--name value` or `--name=value`; None without one."""
    for place, word in enumerate(words):
        if word == f"--{name}":
            return words[place + 1] if place + 1 < len(words) else None
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def _number(words: Sequence[str], name: str, default: float) -> float:
    try:
        return float(_argument(words, name) or default)
    except ValueError:
        return default
