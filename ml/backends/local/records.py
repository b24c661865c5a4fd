"""`job.json`: what is known of a run, kept beside its logs and outputs, readable without MLflow."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.specs.problems import Place, Problem

FILE = "job.json"
# The kinds of runs that have parts, and the folder where those are.
PARTS = {"sweep": "trials", "pipeline": "steps"}


def write(run: Run, lineage: Mapping[str, Any]) -> None:
    """Replace the run's record in one step: a reader sees the old one or the new one."""
    path = run.folder / FILE
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        unfinished.write_text(json.dumps(to_json(run) | {"lineage": lineage}, indent=1) + "\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(folder: Path) -> Run:
    """The run whose folder this is; one that is going on has the trials and steps that have begun.

    Raises OSError or ValueError when there is no record or it cannot be read.
    """
    return from_json(folder, document(folder))


def document(folder: Path) -> dict[str, Any]:
    """The record; while the run goes on, with what its trials and steps last wrote themselves.

    Raises as `read`.
    """
    data: dict[str, Any] = json.loads((folder / FILE).read_text())
    if data["ended"] is None:
        trials = sorted(folder.glob(f"trials/*/{FILE}"), key=lambda path: int(path.parent.name))
        data["trials"] = [document(path.parent) for path in trials]
        steps = [document(path.parent) for path in folder.glob(f"steps/*/{FILE}")]
        data["steps"] = sorted(steps, key=lambda step: float(step["started"]))
    return data


def lineage(folder: Path) -> dict[str, Any]:
    """Where the run came from: see `ml.backends.local.lineage`."""
    found: dict[str, Any] = json.loads((folder / FILE).read_text())["lineage"]
    return found


def to_json(run: Run) -> dict[str, Any]:
    """The run as plain JSON; paths relative to its folder, NaN and infinities as text."""
    return {
        "schema_version": 1,
        "kind": next((k for k, parts in PARTS.items() if (run.folder / parts).is_dir()), "command"),
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "experiment": run.experiment,
        "started": run.started,
        "ended": run.ended,
        "parameters": dict(run.parameters),
        "metrics": {key: _finite(number) for key, number in run.metrics.items()},
        "outputs": {key: str(path.relative_to(run.folder)) for key, path in run.outputs.items()},
        "best": run.best,
        "ended_by": run.ended_by,
        "error": asdict(run.error) if run.error else None,
        "warnings": [asdict(problem) for problem in run.warnings],
        "trials": [to_json(trial) for trial in run.trials],
        "steps": [to_json(step) for step in run.steps],
        "reused_from": run.reused_from,
    }


def from_json(folder: Path, data: Mapping[str, Any]) -> Run:
    """The run that `to_json` described, in the folder where it is now."""
    trials = tuple(
        from_json(folder / "trials" / trial["name"].rpartition("_")[2], trial)
        for trial in data["trials"]
    )
    steps = tuple(
        from_json(folder / "steps" / step["name"].rpartition(".")[2], step)
        for step in data.get("steps", ())
    )
    return Run(
        id=data["id"],
        name=data["name"],
        status=data["status"],
        experiment=data["experiment"],
        folder=folder,
        started=data["started"],
        ended=data["ended"],
        parameters=data["parameters"],
        metrics={key: float(number) for key, number in data["metrics"].items()},
        outputs={key: folder / path for key, path in data["outputs"].items()},
        trials=trials,
        best=data["best"],
        ended_by=data["ended_by"],
        error=_problem(data["error"]) if data["error"] else None,
        warnings=tuple(_problem(problem) for problem in data["warnings"]),
        steps=steps,
        reused_from=data.get("reused_from", ""),
    )


def _problem(data: Mapping[str, Any]) -> Problem:
    place = data["place"]
    return Problem(**{**data, "place": Place(**place) if place else None})


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)
