"""A long sweep: the cost of a trial does not grow with the number of earlier trials.

Counted, not timed: lines of this repository's code that run for a trial, objects that are kept of
it, bytes that are written for it. `make bench ARGS="sweep-bookkeeping"` has the times.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.sweep_bookkeeping import VALUES, measure
from ml.backends.runs import Event
from tests.conftest import ROOT

# Far apart: sqlite3 keeps a weak reference to each of up to 200 cursors before it drops the dead
# ones, which a short stretch of trials would be charged for.
TRIALS, EARLY, LATE, SPAN = 240, 30, 230, 8


class Counted:
    """Counts the lines that ran in two ranges of trials, and the objects in memory by then."""

    def __init__(self) -> None:
        self.lines: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.written: list[int] = []
        self._count = 0

    def __call__(self, event: Event) -> None:
        """Begin to count after trial EARLY and LATE, and stop SPAN trials later."""
        if event.kind != "trial_ended":
            return
        ended = len(event.run.trials)
        if ended in (EARLY, LATE):
            self._count = 0
            sys.settrace(self._called)
        elif ended in (EARLY + SPAN, LATE + SPAN):
            sys.settrace(None)
            self.lines[ended - SPAN] = self._count
        if ended in (EARLY, (EARLY + LATE) // 2, LATE):
            gc.collect()
            self.blocks[ended] = sys.getallocatedblocks()

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.startswith(str(ROOT / "ml")) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        self._count += event == "line"
        return self._line


@pytest.fixture
def counted(home: Path) -> Counted:
    """A sweep of 240 trials at random, with a policy that looks at each of their 20 values."""
    measure("random", 3)  # what is imported and cached once
    watch = Counted()
    found = measure("random", TRIALS, watch)
    assert found.run is not None
    assert len(found.run.trials) == TRIALS
    watch.written = found.written
    return watch


@pytest.mark.slow
def test_a_trial_costs_the_same_after_a_hundred(counted: Counted) -> None:
    """Lines that ran, blocks in memory and bytes of records: late trials like early ones."""
    early, late = counted.lines[EARLY] / SPAN, counted.lines[LATE] / SPAN
    assert early > VALUES  # every value is looked at: something was counted
    assert late <= 1.05 * early
    begin, middle, end = counted.blocks.values()
    assert end - middle <= 1.2 * (middle - begin)
    assert (end - middle) / ((LATE - EARLY) // 2) < 40
    assert sum(counted.written[-20:]) <= 1.02 * sum(counted.written[20:40])


@pytest.mark.slow
def test_a_growing_cost_is_detected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counting sees a loop over all trials for each of them."""
    from ml.backends.local.execution.trials import Trials

    best = Trials.best

    def slow(trials: Trials) -> str | None:
        for name in trials._runs:
            trials.score(name)
        return best.fget(trials)  # type: ignore[attr-defined]

    monkeypatch.setattr(Trials, "best", property(slow))
    measure("random", 3)
    watch = Counted()
    measure("random", TRIALS, watch)
    # The loop stands in a test: what it calls is of this repository and is counted.
    assert watch.lines[LATE] > 1.05 * watch.lines[EARLY]
