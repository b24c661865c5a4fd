"""Steps that run: one shape for commands, sweeps and pipelines, so that many go on at once."""

from __future__ import annotations

from typing import Protocol

from ml.backends.base import Run
from ml.backends.local.execution import Execution
from ml.backends.local.sweeps.sweep import Sweep
from ml.core import faults
from ml.core.errors import Problem, Refused


class Task(Protocol):
    """Something that was started; `turn` is called again and again until it says True."""

    @property
    def run(self) -> Run:
        """The run as it stands."""
        ...

    def turn(self, stop: str, at_once: bool) -> bool:
        """Look after it; whether it has ended. `stop` is why it has to, "" to go on."""
        ...

    def widen(self, cores: int) -> int:
        """Offer it more cores; how many of them it takes."""
        ...

    def finish(self) -> Run:
        """Close it, once it has ended."""
        ...


class CommandTask:
    """A command step that has been started."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    @property
    def run(self) -> Run:
        """See Task."""
        return self._execution.run

    def turn(self, stop: str, at_once: bool) -> bool:
        """See Task."""
        if stop:
            self._execution.stop(stop)
        if at_once:
            self._execution.kill()
        return self._execution.poll()

    def widen(self, cores: int) -> int:
        """See Task: a command has begun with the threads that it has."""
        return 0

    def finish(self) -> Run:
        """See Task."""
        return self._execution.finish()


class SweepTask:
    """A sweep step that has been started; a machine that fails it ends it, and nothing else."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._failure: Problem | None = None

    @property
    def run(self) -> Run:
        """See Task."""
        return self._sweep.run

    def turn(self, stop: str, at_once: bool) -> bool:
        """See Task."""
        try:
            with faults.as_refusals():
                return self._sweep.turn(stop, at_once)
        except Refused as refused:
            self._failure = refused.problems[0]
            self._sweep.end_trials()
            return True

    def widen(self, cores: int) -> int:
        """See Task."""
        return self._sweep.widen(cores)

    def finish(self) -> Run:
        """See Task."""
        return self._sweep.finish(self._failure)
