"""Follows a submitted job to its end: status, trials and log, through lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

from ml.backends.azure.jobs import COMPOSED, kind_of
from ml.backends.azure.runs import AzureRuns, Owner
from ml.backends.base import UNFINISHED
from ml.backends.runs import OPEN, Event, Patience, Run, Watch
from ml.core.errors import Exit, Problem, UserError

# Run history's statuses of a job that has ended (azure-ai-ml's RunHistoryConstants).
ENDED = frozenset({"Completed", "Failed", "Canceled", "NotResponding"})
# Polling interval in seconds: it grows with each poll, so short jobs are reported at once.
_FIRST_POLL_S, _LAST_POLL_S, _GROWTH = 0.5, 10.0, 1.2


@dataclass
class Follower:
    """Follows one job through lost connections."""

    runs: AzureRuns
    echo: TextIO | None  # receives the log while it is written
    say: Callable[[str], None]
    # `time.monotonic()` at which following stops while the job continues; None: never.
    deadline: float | None = None
    _log_is_lost: bool = False

    def follow(self, name: str, watch: Watch) -> Run:
        """Follow the job until it has ended, and return its run.

        Ctrl-C stops following; the job continues. Raise UserError at the deadline, or if the job
        cannot be read for a long time.
        """
        again = f"ml runs logs --follow {name} --on azure"
        patience = Patience(self.runs, name, again, self.say)
        owner: Owner | None = None
        wait = _FIRST_POLL_S
        while True:
            try:
                before, details = owner, self.runs.history(name)
                # If run history does not know the job, its status is in the control plane.
                has_ended = not details or details["status"] in ENDED
                if before is None or has_ended or kind_of(before.job) in COMPOSED:
                    owner = self.runs.current_state(name)
            except UserError as refused:
                patience.endure(refused)
            else:
                assert owner is not None
                patience.seen()
                _tell(before.run if before else None, owner.run, watch)
                watch(Event("running", owner.run))
                self._show_log(name, details, partial(watch, Event("output", owner.run)))
                # The control plane may lag behind run history.
                if has_ended and owner.run.status not in OPEN:
                    return owner.run
            if self.deadline is not None and time.monotonic() >= self.deadline:
                actual = f"{name} has not ended, and its log is no longer followed"
                hint = f"train again: the next run follows it; or ml runs cancel {name} --on azure"
                problem = Problem(UNFINISHED, actual, "an end within --timeout", hint)
                raise UserError(problem, exit_code=Exit.RUN_FAILED)
            time.sleep(wait)
            wait = min(wait * _GROWTH, _LAST_POLL_S)

    def _show_log(self, name: str, details: Mapping[str, Any], echoed: Callable[[], None]) -> None:
        """Echo new text of the log; if it cannot be read, report that once and go on."""
        try:
            for text in self.runs.fetch_logs(name, details):
                if self.echo is not None:
                    self.echo.write(text)
                    self.echo.flush()
                    echoed()
            self._log_is_lost = False
        except UserError as refused:
            if not self._log_is_lost:
                self.say(f"{refused.problems[0].actual}; later: ml runs logs {name} --on azure")
            self._log_is_lost = True


def _tell(before: Run | None, run: Run, watch: Watch) -> None:
    """Send `watch` the run's start, or each trial and step begun or ended since `before`."""
    if before is None:
        watch(Event("started", run))
        return
    statuses = {part.name: part.status for part in before.below()}
    parts: list[tuple[Run, Run | None]] = [(trial, None) for trial in run.trials]
    parts += [(part, step) for step in run.steps for part in (*step.trials, step)]
    for part, step in parts:
        trial = None if part is step else part
        was = statuses.get(part.name)
        if was is None:
            watch(Event("trial_started" if trial else "step_started", run, trial, step))
        if (was is None or was in OPEN) and part.status not in OPEN:
            watch(Event("trial_ended" if trial else "step_ended", run, trial, step))
