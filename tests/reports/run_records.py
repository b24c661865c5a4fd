"""Records of runs as the local backend writes them, without running anything."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ml.backends.local.runs import records
from ml.backends.runs import Run, Status
from ml.core import home
from ml.core.errors import Place, Problem
from ml.specs.plan.plans import Value

METRIC = "score"
LINEAGE: dict[str, Any] = {
    "spec": "jobs/sweep.yml:1",
    "code": {"commit": "c" * 40, "branch": "main", "dirty": True, "digest": "sha256:" + "d" * 64},
    "data": {"faq": {"asset": "azureml:faq:1", "source": "azureml:faq:1", "digest": "e" * 64}},
    "environment": "azureml:ml-cpu:1",
    "parent": None,
}
_ROW = (
    "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class TrialRecord:
    """A trial: `curve` is what it logged of the metric, `metrics` the last value of the others."""

    curve: Sequence[float] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)
    status: Status = "Completed"
    ended_by: str = ""
    error: Problem | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def command(
    name: str = "calm_river_01",
    status: Status = "Completed",
    parameters: Mapping[str, Value] | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
    error: Problem | None = None,
    log: str = "",
) -> Run:
    """A command job with its record, its log and its metrics in the store."""
    logged = curves or {}
    folder = home.jobs() / name
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "std_log.txt").write_text(log, encoding="utf-8", errors="surrogateescape")
    run = Run(
        id=f"id-{name}",
        name=name,
        status=status,
        experiment="tests",
        folder=folder,
        started=1_700_000_000.0,
        ended=1_700_000_007.5,
        parameters=parameters or {},
        metrics={key: values[-1] for key, values in logged.items()},
        error=error,
    )
    records.write(run, LINEAGE)
    log_metrics([(run.id, key, values) for key, values in logged.items()])
    return run


def sweep(
    trials: Sequence[TrialRecord],
    name: str = "brave_lake_01",
    metric: str = METRIC,
    goal: str = "maximize",
    log: str = "",
    error: Problem | None = None,
    spec: str = LINEAGE["spec"],
) -> Run:
    """A sweep that has ended, with its trials and their metrics."""
    folder = home.jobs() / name
    better = max if goal == "maximize" else min
    scores: dict[str, float] = {}
    records_of_trials = []
    for number, trial in enumerate(trials):
        own = folder / "trials" / str(number)
        (own / "logs").mkdir(parents=True)
        if trial.status == "Failed":
            (own / "logs" / "std_log.txt").write_text(log)
        run = Run(
            id=f"id-{name}-{number}",
            name=f"{name}_{number}",
            status=trial.status,
            experiment="tests",
            folder=own,
            started=1_700_000_000.0 + number,
            ended=1_700_000_003.0 + number,
            parameters=trial.parameters,
            metrics={**trial.metrics, **({metric: trial.curve[-1]} if trial.curve else {})},
            ended_by=trial.ended_by,
            error=trial.error,
        )
        if trial.status == "Completed" and trial.curve and all(map(math.isfinite, trial.curve)):
            scores[run.name] = better(trial.curve)
        records_of_trials.append(run)
    best = better(scores, key=lambda key: scores[key]) if scores else None
    run = Run(
        id=f"id-{name}",
        name=name,
        status="Completed" if best else "Failed",
        experiment="tests",
        folder=folder,
        started=1_700_000_000.0,
        ended=1_700_000_100.0,
        trials=tuple(records_of_trials),
        best=best,
        error=error,
    )
    objective = {"primary_metric": metric, "goal": goal}
    sampling = {"algorithm": "random", "rule": "random", "seed": 7}
    lineage = {"spec": spec, "objective": objective, "sampling": sampling}
    records.write(run, LINEAGE | lineage)
    log_metrics(
        [(run.id, metric, t.curve) for run, t in zip(records_of_trials, trials, strict=True)]
    )
    return run


def pipeline(name: str = "calm_lake_01", status: Status = "Failed") -> Run:
    """A pipeline: a sweep of two trials, a step that failed, one that was never started."""
    steps = home.jobs() / name / "steps"
    swept = sweep(
        [TrialRecord([0.1, 0.4], {"lr": 0.1}), TrialRecord([0.8], {"lr": 0.2})], f"{name}.search"
    )
    evaluated = command(f"{name}.evaluate", "Failed", error=failed(), log="boom at the end")
    moved = []
    for run in (swept, evaluated):
        place = steps / run.name.rpartition(".")[2]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(run.folder, place)
        trials = tuple(
            replace(trial, folder=place / "trials" / trial.folder.name) for trial in run.trials
        )
        moved.append(replace(run, folder=place, trials=trials))
    waiting = replace(
        evaluated,
        id="",
        name=f"{name}.register",
        status="Canceled",
        ended=None,
        error=None,
        ended_by="step evaluate failed",
        folder=steps / "register",
    )
    run = replace(
        evaluated, id=f"id-{name}", name=name, folder=home.jobs() / name, steps=(*moved, waiting)
    )
    records.write(replace(run, status=status), LINEAGE)
    return run


def log_metrics(logged: Sequence[tuple[str, str, Sequence[float]]]) -> None:
    """Rows in MLflow's tables, as MLflow writes them: (run id, key, values)."""
    rows = [
        (key, *_stored(value), 1_700_000_000_000 + step, run_id, step)
        for run_id, key, values in logged
        for step, value in enumerate(values)
    ]
    runs = {run_id for run_id, _, _ in logged}
    with closing(sqlite3.connect(home.database())) as connection, connection:
        connection.executemany(
            "INSERT INTO runs (run_uuid, lifecycle_stage, experiment_id) VALUES (?, 'active', 0)",
            [(run_id,) for run_id in runs],
        )
        connection.executemany(
            _ROW, [(key, value, at, run, step, nan) for key, value, nan, at, run, step in rows]
        )


def tag(run_id: str, key: str, value: str) -> None:
    """A tag of a run in the store."""
    with closing(sqlite3.connect(home.database())) as connection, connection:
        connection.execute(
            "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", (key, value, run_id)
        )


def _stored(value: float) -> tuple[float, int]:
    largest = 1.7976931348623157e308
    return (0.0, 1) if math.isnan(value) else (max(-largest, min(largest, value)), 0)


def failed(why: str = "the command exited with 3; the end of its log:\n    | boom") -> Problem:
    """The error of a script that failed."""
    return Problem("script-failed", why, "exit code 0", "read it", Place("jobs/sweep.yml", 7))
