"""Follows a submitted job to its end: status, trials and log, through lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from ml.backends.azure.errors import explain, is_passing
from ml.backends.azure.jobs import COMPOSED, studio
from ml.backends.azure.runs import AzureRuns
from ml.backends.runs import OPEN, Event, Run, Watch
from ml.core.errors import Exit, Problem, Refused

# Run history's statuses of a job that has ended (azure-ai-ml's RunHistoryConstants).
ENDED = frozenset({"Completed", "Failed", "Canceled", "NotResponding"})
# Seconds between two questions: short while a job is young, because an answer is awaited then.
_FIRST_POLL_S, _LAST_POLL_S, _GROWTH = 0.5, 10.0, 1.2
# Azure's clients retry each request for about ten seconds; what lasts longer is waited out here.
_PATIENCE_S = 1800.0


@dataclass
class Follower:
    """Follows one job; `echo` gets its log while it is written, `say` what else happens."""

    runs: AzureRuns
    echo: TextIO | None
    say: Callable[[str], None]
    poll_s: float = _FIRST_POLL_S

    def follow(self, job: Any, watch: Watch) -> Run:
        """Return the run when the job has ended. Raises Refused after half an hour without Azure.

        Ctrl-C ends the following alone: the job goes on.
        """
        run: Run | None = None
        wait, lost_since = self.poll_s, None
        while True:
            try:
                if run is None:
                    run = self.runs.read(job)
                    watch(Event("started", run))
                details = self.runs.workspace.history(job.name)
                self._show(self.runs.fetch_logs(job.name, details))
                has_ended = details.get("status") in ENDED
                if has_ended or job.type in COMPOSED:
                    run = self._progress(job, run, watch)
                # The control plane may be behind run history.
                if has_ended and run.status not in OPEN:
                    return run
                lost_since = None
            except Exception as error:
                if not _is_lost(error):
                    raise
                if lost_since is None:
                    lost_since = time.monotonic()
                    self.say(f"{_reason(error)}; {job.name} goes on, and following is tried again")
                self._demand_patience(job, error, time.monotonic() - lost_since)
            time.sleep(wait)
            wait = min(wait * _GROWTH, _LAST_POLL_S)

    def _progress(self, job: Any, before: Run, watch: Watch) -> Run:
        """The run as it is now; the watcher learns which trials and steps began and ended since."""
        run = self.runs.read(self.runs.job(job.name))
        known = {part.name: part for part in before.below()}
        for trial in run.trials:
            _tell(run, known.get(trial.name), trial, watch)
        for step in run.steps:
            for trial in step.trials:
                _tell(run, known.get(trial.name), trial, watch, step)
            _tell(run, known.get(step.name), None, watch, step)
        return run

    def _show(self, text: str) -> None:
        if text and self.echo is not None:
            self.echo.write(text)
            self.echo.flush()

    def _demand_patience(self, job: Any, error: Exception, lost_s: float) -> None:
        if lost_s > _PATIENCE_S:
            problem = Problem(
                "lost-sight",
                f"Azure has not answered for {lost_s / 60:.0f} minutes; {job.name} goes on there",
                "an answer",
                f"ml runs logs --follow {job.name} --on azure; its page: {studio(job)}",
            )
            raise Refused(problem, exit_code=Exit.RUN_FAILED) from error


def _tell(
    run: Run, before: Run | None, trial: Run | None, watch: Watch, step: Run | None = None
) -> None:
    """Tell the watcher of a trial, or of a step, that began or ended since `before`."""
    part, kind = (trial, "trial") if trial is not None else (step, "step")
    assert part is not None
    if before is None:
        watch(Event("trial_started" if kind == "trial" else "step_started", run, trial, step))
    if (before is None or before.status in OPEN) and part.status not in OPEN:
        watch(Event("trial_ended" if kind == "trial" else "step_ended", run, trial, step))


def _is_lost(error: Exception) -> bool:
    """Whether the connection or the service failed, and not the request."""
    from azure.core.exceptions import AzureError

    if isinstance(error, Refused):
        return error.exit_code == Exit.RUN_FAILED
    return isinstance(error, AzureError) and is_passing(error)


def _reason(error: Exception) -> str:
    problem = error.problems[0] if isinstance(error, Refused) else explain(error)[0]
    return problem.found
