"""Evictions, stops and second attempts in the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Pause, Run
from ml.backends.local.runs import records, runs
from ml.reports import interruptions
from ml.reports.report import report
from tests.reports import made
from tests.reports.made import Made
from tests.reports.reading import Page

START = 1_700_000_000.0


def evicted() -> Run:
    """A job of 7.5 s that was evicted after 2 s and after 3 s more."""
    run = replace(made.command(), restarts=(START + 2, START + 5))
    records.write(run, made.LINEAGE)
    return run


def stopped() -> Run:
    """A sweep of 100 s that stood still for 40 s, whose second trial began anew after it."""
    run = made.sweep([Made([0.4]), Made([0.8])])
    first, second = run.trials
    former = replace(
        second, status="Canceled", started=START + 1, ended=START + 9, ended_by="SIGINT"
    )
    second = replace(second, started=START + 50, ended=START + 60, former=(former,))
    pause = Pause(START + 10, START + 50, "SIGINT")
    run = replace(run, trials=(first, second), pauses=(pause,))
    records.write(
        run, made.LINEAGE | {"objective": {"primary_metric": "score", "goal": "maximize"}}
    )
    return run


def page() -> Page:
    found = Page(report(runs.find("latest")).html)
    assert found.problems == [] and found.fetched() == []
    return found


def test_evictions(home: Path) -> None:
    """What was worked on between them, and a mark for each."""
    (found,) = interruptions.interrupted(evicted())
    assert found.worked == ((0, 2), (2, 5), (5, 7.5))
    assert (found.evicted, found.again) == ((2, 5), ())
    drawn = page()
    assert drawn.count("rect", "worked") == 3
    assert drawn.count("path", "stopped") == 2
    assert "On the way it was evicted twice and started again each time." in drawn.text
    assert "+5.0 s calm_river_01 evicted after 3.0 s of work, started again (restart 2)" in (
        drawn.text
    )


def test_a_stop_and_a_second_attempt(home: Path) -> None:
    """The pause is a gap; the first attempt counts as work in vain, and the time as worked on."""
    whole, trial = interruptions.interrupted(stopped())
    assert (whole.worked, trial.part) == (((0, 10), (50, 100)), "trial 1")
    assert (trial.again, trial.worked) == (((1, 9),), ((50, 60),))
    drawn = page()
    assert drawn.count("rect", "weak") == 1
    assert "A gap is time in which it stood still." in drawn.text
    assert "stopped once and resumed (40 s between), 1 part of it cut off and done again" in (
        drawn.text
    )
    assert "interrupted from the keyboard (SIGINT); resumed after 40 s" in drawn.text
    assert "interrupted from the keyboard (SIGINT), after 8.0 s of work; done again" in drawn.text
    assert "2 trials ran in 1 min 0 s" in drawn.text


def test_a_run_in_one_piece(home: Path) -> None:
    """Has no such section, and no such sentence."""
    made.command()
    assert "Interruptions" not in page().text and "On the way" not in page().text


@pytest.mark.parametrize(
    ("took", "unit"), [(200.0, "seconds"), (4000.0, "minutes"), (9000.0, "hours")]
)
def test_the_axis_counts_in_what_is_read_easily(home: Path, took: float, unit: str) -> None:
    """An eviction after hours is not told in thousands of seconds."""
    run = replace(made.command(), ended=START + took, restarts=(START + took / 2,))
    records.write(run, made.LINEAGE)
    assert f"{unit} since the start" in page().text


def test_many_parts_are_counted(home: Path) -> None:
    """A sweep of a thousand trials that were all evicted has a page that opens."""
    run = made.sweep([Made([0.1])] * 30)
    trials = tuple(replace(trial, restarts=(trial.started + 1,) * 3) for trial in run.trials)
    records.write(replace(run, trials=trials), made.LINEAGE)
    drawn = page()
    assert "and 10 more parts" in drawn.text and "and 30 more interruptions" in drawn.text
