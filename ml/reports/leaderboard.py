"""Build the leaderboard of an AutoML job: its trials with scores, spread and training time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.runs import Run
from ml.core.errors import Problem, UserError
from ml.reports.sweep import Sweep, Trial, short_origin


@dataclass(frozen=True)
class Entry:
    """A ranked trial; fields are None if the trial did not log them."""

    trial: Trial
    family: str  # model family; `?` if unknown
    value: float  # the primary metric, mean over the folds
    spread: float | None  # standard deviation of the primary metric over the folds
    seconds: float | None  # training time
    row_ms: float | None  # median time to predict a row, in milliseconds
    stopped: str = ""  # why training ended early; "" if it did not

    @property
    def origin(self) -> str:
        """Return the origin of the trial's hyperparameters in at most two words; "?" if unknown."""
        return short_origin(self.trial.origin) or "?"


@dataclass(frozen=True)
class Leaderboard:
    """The ranked trials, best first, and the AutoML record in the best trial's settings.json."""

    metric: str
    entries: tuple[Entry, ...]
    facts: Mapping[str, Any]

    def sentences(self) -> Iterator[str]:
        """Yield texts about validation, test score, early stops, column choices and guardrails."""
        facts, metric = self.facts, self.metric
        yield f"validation: {facts['validation']}; {facts['rows']['fitted']} training rows"
        tested = facts["test"].get(metric)
        if tested is None and (rows := facts["rows"]["test"]):
            yield f"test score: none, {metric} is undefined on the {rows} test rows"
        elif tested is None:
            yield (
                "test score: none, there is no test set. The validation score of the best trial "
                "is optimistic: set `test_data_size: 0.2`, or evaluate it by `ml release propose`"
            )
        else:
            yield (
                f"test score: {metric} {tested:.5g} on {facts['rows']['test']} test rows; "
                f"validation score: {self.entries[0].value:.5g}"
            )
        for entry in self.entries:
            if entry.stopped:
                yield f"trial {entry.trial.sample_number} stopped early: {entry.stopped}"
        if calibration := facts.get("notes", {}).get("calibration"):
            yield f"probabilities calibrated: {calibration}"
        if balance := facts.get("notes", {}).get("balance"):
            yield f"balance: {balance}"
        for column in facts["columns"]:
            yield f"column {column['name']}: {column['choice']}"
        for guardrail in facts["guardrails"]:
            yield f"guardrail {guardrail['check']}: {guardrail['finding']}"


def board_of(sweep: Sweep) -> Leaderboard | None:
    """Return the leaderboard of an AutoML job; None if it is another sweep or has no best trial."""
    facts = _facts(sweep.best.run) if sweep.best else None
    if facts is None:
        return None
    return Leaderboard(
        sweep.metric, tuple(_entry(trial, sweep.metric) for trial in sweep.ranked), facts
    )


def leaderboard(run: Run, sweep: Sweep) -> Leaderboard:
    """Return the leaderboard of a run's sweep; raise UserError if `board_of` returns None."""
    board = board_of(sweep)
    if board is None:
        actual = f"{run.name} is no AutoML job, or its best trial's model is not on this machine"
        expected = "a run of an AutoML job, or of a pipeline with one"
        hint = f"ml sweep explain {run.name}"
        raise UserError(Problem("not-a-search", actual, expected, hint))
    return board


def _entry(trial: Trial, metric: str) -> Entry:
    model, metrics = trial.values.get("model"), trial.run.metrics
    return Entry(
        trial,
        str(model.get("family")) if isinstance(model, Mapping) else "?",
        trial.value or 0.0,
        metrics.get(f"{metric}_std"),
        metrics.get("training_seconds"),
        metrics.get("predict_p50_ms"),
        (_facts(trial.run) or {}).get("notes", {}).get("stopped", ""),
    )


def _facts(run: Run) -> Mapping[str, Any] | None:
    """Return the AutoML record in the settings.json of a run's outputs; None without one."""
    for folder in run.outputs.values():
        document = _read(folder / "settings.json")
        if isinstance(search := document.get("automl"), dict):
            return search
    return None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
