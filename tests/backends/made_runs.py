"""Records of runs as the runner leaves them, made in microseconds: nothing is run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.backends.local.runs import records
from ml.backends.runs import Run
from ml.core import home

DAY_S = 86400.0
LINEAGE = {
    "spec": "ml/projects/shop_search/jobs/train.yml:1",
    "code": {"commit": "c" * 40, "branch": "main", "dirty": False, "digest": ""},
    "data": {"faq": {"asset": "azureml:faq:1", "source": "azureml:faq:1", "digest": "d" * 64}},
    "environment": "azureml:ml-cpu:1",
    "parent": None,
}


def made(
    name: str,
    days_ago: float = 0.0,
    snapshot: str = "",
    lineage: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A completed command run whose record and log are in the home; `snapshot` is a name there."""
    folder = home.jobs() / name
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "std_log.txt").write_text(f"{name} says hello\n")
    moment = time.time() - days_ago * DAY_S
    fields = {"id": f"id-{name}", "status": "Completed", "experiment": "tests"}
    fields |= {"started": moment - 60, "ended": moment}
    run = Run(name=name, folder=folder, **(fields | changes))
    code = LINEAGE["code"] | ({"digest": f"sha256:{snapshot}"} if snapshot else {})
    records.write(run, {**LINEAGE, "code": code, **(lineage or {})})
    return run


def made_sweep(name: str, *scores: float, days_ago: float = 0.0, goal: str = "maximize") -> Run:
    """A completed sweep over `score`, a trial for each."""
    objective = {"objective": {"primary_metric": "score", "goal": goal}}
    trials = tuple(
        Run(
            id=f"id-{name}-{number}",
            name=f"{name.replace('/steps/', '.')}_{number}",
            status="Completed",
            experiment="tests",
            folder=home.jobs() / name / "trials" / str(number),
            started=time.time(),
            ended=time.time(),
            parameters={"x": number},
            metrics={"score": score},
        )
        for number, score in enumerate(scores)
    )
    for trial in trials:
        (trial.folder / "logs").mkdir(parents=True)
        (trial.folder / "logs" / "std_log.txt").write_text(f"trial {trial.name}\n")
        records.write(trial, {**LINEAGE, "parent": f"id-{name}"})
    pick = max if goal == "maximize" else min
    best = pick(trials, key=lambda trial: trial.metrics["score"])
    return made(
        name, days_ago, lineage=objective, trials=trials, best=best.name, metrics=best.metrics
    )


def made_snapshot(name: str, days_ago: float = 1.0) -> Path:
    """A snapshot of that name, last taken so long ago."""
    return _aged(home.snapshots() / name, days_ago, {"script": "print(1)"})


def made_model(name: str, days_ago: float = 1.0) -> Path:
    """A stored model copy, last used so long ago."""
    return _aged(home.home() / "models" / name, days_ago, {"model": "tree\n" * 1000})


def _aged(folder: Path, days_ago: float, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    then = time.time() - days_ago * DAY_S
    os.utime(folder, (then, then))
    return folder
