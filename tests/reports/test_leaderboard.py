"""The leaderboard of an AutoML job says why trials ended early, and what was calibrated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ml.reports.leaderboard import Entry, Leaderboard

FACTS: dict[str, Any] = {
    "validation": "3 folds",
    "rows": {"fitted": 60_000, "test": 20},
    "test": {"AUC_weighted": 0.8},
    "columns": [{"name": "day", "choice": "a time: calendar features and days"}],
    "guardrails": [],
}


def entry(number: int, stopped: str = "") -> Entry:
    trial: Any = SimpleNamespace(sample_number=number)
    return Entry(trial, "light_gbm", 0.9, None, None, None, stopped)


def test_what_is_said_of_a_search() -> None:
    reason = "below the median of 4 trials on 6000 rows"
    calibration = "sigmoid: log loss 0.5 before, 0.4 after"
    facts = FACTS | {"notes": {"calibration": calibration, "balance": "`under` not applied"}}
    said = [*Leaderboard("AUC_weighted", (entry(2), entry(5, reason)), facts).sentences()]
    assert f"trial 5 stopped early: {reason}" in said
    assert "probabilities calibrated: sigmoid: log loss 0.5 before, 0.4 after" in said
    assert "balance: `under` not applied" in said
    assert "column day: a time: calendar features and days" in said


def test_nothing_is_said_of_what_was_not_done() -> None:
    """Nor of a search of before, whose facts have no notes."""
    said = " ".join(Leaderboard("AUC_weighted", (entry(2),), FACTS).sentences())
    assert "ended early" not in said and "calibrated" not in said and "balance" not in said


def test_a_final_score_that_is_not_defined() -> None:
    """Of a test of one class; without one there are no rows for it."""
    facts = FACTS | {"test": {}}
    said = " ".join(Leaderboard("AUC_weighted", (entry(2),), facts).sentences())
    assert "AUC_weighted is undefined on the 20 test rows" in said
    facts = facts | {"rows": {"fitted": 60_000, "test": 0}}
    said = " ".join(Leaderboard("AUC_weighted", (entry(2),), facts).sentences())
    assert "test score: none, there is no test set" in said
