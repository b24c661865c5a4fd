"""A job while it runs: one shape for commands, sweeps and pipelines, and the loop that drives it.

`drive` polls the job and hands it the signals that `processes.interruption` collected. The job ends
its processes by `processes.process` (SIGTERM, then SIGKILL after the grace period); what a killed
executor leaves is ended by `processes.reaper`.
"""

from __future__ import annotations

from typing import Protocol

from ml.backends.local.pool.pool import Pool
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.runs import jobs
from ml.backends.runs import Event, Run, Watch

# How often tasks are polled; the end of a process that the pool forked wakes this program.
POLL_S = 0.02


class Task(Protocol):
    """A command, a sweep or a pipeline that was started: a job, or a step of one."""

    @property
    def run(self) -> Run:
        """The run as it stands."""
        ...

    def turn(self, stop: str, at_once: bool) -> bool:
        """Poll it and do what is due; True when it has ended. Called until then.

        `stop` is the reason for ending it, "" to continue; with `at_once` there is no grace period.
        """
        ...

    def widen(self, cores: int) -> int:
        """Offer it more cores; how many of them it takes."""
        ...

    def finish(self) -> Run:
        """Close its run, once it has ended."""
        ...


def drive(task: Task, pool: Pool, interruption: Interruption, watch: Watch) -> Run:
    """Poll a job until it has ended, and close it; signals that were collected end it."""
    watch(Event("started", task.run))
    while not task.turn(interruption.name, interruption.impatient):
        jobs.beat(task.run.folder.name)
        pool.wait(POLL_S)
    return task.finish()
