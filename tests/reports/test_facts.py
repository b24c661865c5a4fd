"""The facts about a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import Problem
from ml.reports.facts import gather
from ml.reports.formatting import HIDDEN, headline, redact, redact_text
from ml.specs.plan.plans import Sample
from tests.local import BACKEND
from tests.reports import run_records
from tests.reports.run_records import TrialRecord


def test_trial_outcomes(home: Path) -> None:
    """Outcome, best value and reason; only completed trials with finite values are ranked."""
    run_records.sweep(
        [
            TrialRecord([0.2, 0.9, 0.5], {"x": 1, "same": 3}),
            TrialRecord([0.3], {"x": 2, "same": 3}),
            TrialRecord([0.4, 0.1], {"x": 3, "same": 3}, "Canceled", "median_stopping"),
            TrialRecord([0.5, math.nan], {"x": 4, "same": 3}),
            TrialRecord([], {"x": 5, "same": 3}, "Failed", error=run_records.failed()),
            TrialRecord([0.6], {"x": 6, "same": 3}, "Canceled", "trial_timeout"),
        ]
    )
    run_records.tag("id-brave_lake_01-2", "ended_by", "median_stopping at interval 2: best 0.4")
    sweep = gather(LocalRuns().find("brave_lake_01"), BACKEND).sweep
    assert sweep
    assert [trial.outcome for trial in sweep.trials] == [
        *("completed", "completed", "stopped", "unranked", "failed", "canceled")
    ]
    assert [trial.value for trial in sweep.trials] == [0.9, 0.3, 0.4, 0.5, None, 0.6]
    assert sweep.trials[2].reason == "median_stopping at interval 2: best 0.4"
    assert sweep.trials[4].reason == "script-failed: the command exited with 3"
    assert [trial.number for trial in sweep.ranked] == [0, 1]
    assert sweep.best is sweep.trials[0]
    assert sweep.varied == ("x",)
    assert sweep.constant == {"same": 3}


def test_a_goal_to_minimise(home: Path) -> None:
    """The smallest value is the best, of a trial and of the sweep."""
    run_records.sweep([TrialRecord([0.9, 0.2, 0.4]), TrialRecord([0.3])], goal="minimize")
    sweep = gather(LocalRuns().find("latest"), BACKEND).sweep
    assert sweep
    assert [(trial.number, trial.value) for trial in sweep.ranked] == [(0, 0.2), (1, 0.3)]


def test_a_nested_choice_has_a_parameter_per_name(home: Path) -> None:
    """A parameter that only some trials have stands beside the others of its choice."""
    models = [{"kind": "tree", "depth": 3}, {"kind": "line", "l2": {"a": [1]}}]
    given = [TrialRecord([0.1 + x], {"model": json.dumps(models[x % 2]), "x": x}) for x in range(3)]
    run = run_records.sweep(given)
    for number, trial in enumerate(run.trials):
        records.write_sample(
            trial.folder, Sample(number, {"model": models[number % 2], "x": number})
        )
    sweep = gather(LocalRuns().find("brave_lake_01"), BACKEND).sweep
    assert sweep
    assert [dict(trial.run.parameters) for trial in sweep.trials] == [
        {"model.kind": "tree", "model.depth": 3, "x": 0},
        {"model.kind": "line", "model.l2.a": "[1]", "x": 1},
        {"model.kind": "tree", "model.depth": 3, "x": 2},
    ]
    assert sweep.varied == ("model.kind", "model.depth", "model.l2.a", "x")


def test_without_the_tracking_store(home: Path) -> None:
    """The values are the last ones, from the record; a note says so."""
    run_records.sweep([TrialRecord([0.9, 0.2]), TrialRecord([0.3])])
    (home / "mlflow.db").unlink()
    facts = gather(LocalRuns().find("latest"), BACKEND)
    assert facts.sweep
    assert [trial.value for trial in facts.sweep.trials] == [0.2, 0.3]
    assert "the last that it logged" in facts.notes[0]


def test_secrets_are_hidden() -> None:
    """In parameters, by name or pattern, and in a log; other text stays."""
    key = "AccountKey=" + "k9" * 20
    assert redact("connection", f"Endpoint=x;{key}") == HIDDEN
    assert redact("learning_rate", 0.1) == 0.1
    assert key not in redact_text(f"starting\n{key}\ndone")
    assert redact_text("starting\ndone") == "starting\ndone"
    assert key not in headline(Problem("script-failed", f"{key}; the end of its log:\n | x"))
