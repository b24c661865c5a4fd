"""The charts of what features add, and of what an AutoML job tried."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ml.measures.contributions import ExplainedRows
from ml.reports.charts.contributions import contribution_charts
from ml.reports.charts.leaderboard import leaderboard_chart
from ml.reports.leaderboard import Entry, Leaderboard

RANDOM = np.random.default_rng(4)
VALUES = np.column_stack([RANDOM.normal(40, 10, 60), RANDOM.integers(0, 2, 60), np.ones(60)])
ADDED = np.column_stack([(VALUES[:, 0] - 40) / 10, 1.0 - 2 * VALUES[:, 1], np.zeros(60)])
ROWS = ExplainedRows(
    [f"r{at}" for at in range(60)],
    ["age", "<city>", "idle"],
    VALUES,
    ADDED,
    {"<city>": ["north", "south"]},
)


def test_the_summary_the_dependences_and_three_rows() -> None:
    """A dot a row; categories by their names, a row by its id; text of the data is text."""
    charts = [str(of) for of in contribution_charts(ROWS)]
    assert len(charts) == 1 + 3 + 3
    summary, _age, city = charts[:3]
    assert summary.count("<circle") == 3 * 60 and "highest fifth" in summary
    assert "&lt;city&gt; south" in city and "<city>" not in "".join(charts)
    highest = int(np.argmax(ADDED.sum(axis=1)))
    assert f"highest score: r{highest}" in charts[4] and "raises the score" in charts[4]


def test_gaps_and_one_row_are_drawn() -> None:
    """A feature without any value, a single row, and none."""
    values = VALUES.copy()
    values[:, 0] = np.nan
    assert "60 rows without a value" in str(contribution_charts(replace(ROWS, values=values))[1])
    one = replace(ROWS, ids=["r0"], values=VALUES[:1], added=ADDED[:1])
    assert len(contribution_charts(one)) == 1 + 3 + 1
    assert contribution_charts(replace(ROWS, ids=[], values=VALUES[:0], added=ADDED[:0])) == []


def test_the_leaderboard_names_families_and_spreads() -> None:
    """The best first; a trial without a spread has a dot alone."""

    def entry(number: int, family: str, value: float, spread: float | None) -> Entry:
        trial = cast(Any, SimpleNamespace(number=number, sample_number=number, origin={}))
        return Entry(trial, family, value, spread, 1.0, 0.1)

    entries = (entry(3, "light_gbm", 0.9, 0.01), entry(0, "knn", 0.8, None))
    drawn = str(leaderboard_chart(Leaderboard("AUC_weighted", entries, {"over": "seeds"})))
    assert drawn.count("<circle") == 2 and "over seeds" in drawn
    assert "light_gbm" in drawn and "knn" in drawn and 'data-t="3"' in drawn
