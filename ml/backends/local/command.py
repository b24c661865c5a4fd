"""A command job, start to end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TextIO

from ml.backends.base import Event, Run, Watch
from ml.backends.local.execution import Execution, Session
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.runs import jobs
from ml.backends.local.tail import Tail
from ml.backends.local.tracking import reader
from ml.specs.plan.plan import CommandPlan

# How often the process is looked at, and how often its metrics for the watcher.
POLL_S = 0.02
METRICS_S = 0.5


def run_command(
    plan: CommandPlan,
    session: Session,
    interruption: Interruption,
    watch: Watch,
    echo: TextIO | None,
) -> Run:
    """Run the job until it has ended, was interrupted or ran out of its time."""
    with jobs.new() as folder:
        execution = Execution(session, plan, folder, folder.name)
        watch(Event("started", execution.start()))
        tail, looked = Tail(execution.log, echo), time.monotonic()
        while not execution.poll():
            if interruption.name:
                execution.stop(interruption.name)
            if interruption.impatient:
                execution.kill()
            tail.pump()
            if time.monotonic() - looked > METRICS_S:
                looked = time.monotonic()
                metrics = reader.latest(execution.run.id)
                if metrics != execution.run.metrics:
                    execution.run = replace(execution.run, metrics=metrics)
                    watch(Event("metric", execution.run))
            time.sleep(POLL_S)
        tail.pump()
        run = execution.finish()
    watch(Event("ended", run))
    return run
