"""The seam between a plan and the place where it runs: a backend says where, never what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ml.core.errors import Problem
from ml.specs.plan.plan import Plan, Value

Kind = Literal[
    "started",
    "metric",
    "trial_started",
    "trial_metric",
    "trial_ended",
    "step_started",
    "step_ended",
    "ended",
]
Status = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


@dataclass(frozen=True)
class Pause:
    """When a run stood still: from its stop (for the reason `ended_by`) until it was resumed."""

    since: float
    until: float
    ended_by: str


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was started, with Azure ML's status names.

    `id` is the tracking server's run id, `name` what a person types (`calm_river_03`). `outputs`
    are local folders or files by the output's name. A sweep's `trials` are in the order in which
    they were started and `best` is the name of the best that completed. `error` says why it failed.
    `ended_by` names what ended a trial early (`median_stopping`), "" otherwise. `warnings` are
    what a person should know of a run that did not fail for it (an empty output, a NaN metric).
    A pipeline's `steps` are in the order in which they were started; one that never was has the id
    "" (its `ended_by` says why). `reused_from` names the run whose outputs a step took over.
    One that was stopped and resumed has `pauses`; a trial or step that was cut off then and run
    again has its `former` attempts, which count for nothing.
    `registered` are the assets that outputs became (`azureml:name:version`), by the output's name.
    `restarts` are the times (epoch seconds) at which it was started again after an eviction.
    """

    id: str
    name: str
    status: Status
    experiment: str
    folder: Path
    started: float
    ended: float | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, Path] = field(default_factory=dict)
    trials: tuple[Run, ...] = ()
    best: str | None = None
    ended_by: str = ""
    error: Problem | None = None
    warnings: tuple[Problem, ...] = ()
    steps: tuple[Run, ...] = ()
    reused_from: str = ""
    registered: Mapping[str, str] = field(default_factory=dict)
    restarts: tuple[float, ...] = ()
    pauses: tuple[Pause, ...] = ()
    former: tuple[Run, ...] = ()

    @property
    def active_s(self) -> float:
        """The seconds that it has been worked on, until it ended or, while it goes on, until now.

        Pauses do not count.
        """
        whole = (self.ended or time.time()) - self.started
        return whole - sum(pause.until - pause.since for pause in self.pauses)

    def trial(self, name: str) -> Run:
        """The trial of that name; KeyError when the sweep has none."""
        for trial in self.trials:
            if trial.name == name:
                return trial
        raise KeyError(name)

    def step(self, name: str) -> Run:
        """The step of that name, as the pipeline calls it; KeyError when it has none."""
        for step in self.steps:
            if step.name == f"{self.name}.{name}":
                return step
        raise KeyError(name)

    def below(self) -> Iterator[Run]:
        """Every run that belongs to this one: steps, their steps, and trials."""
        for one in (*self.steps, *self.trials):
            yield one
            yield from one.below()


@dataclass(frozen=True)
class Event:
    """Something a watcher may show: `kind` says what happened to `run`, or to a part of it.

    `step` is the innermost step that it happened to, and `trial` the trial (of that step's sweep,
    or of the run's own).
    """

    kind: Kind
    run: Run
    trial: Run | None = None
    step: Run | None = None


Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """A watcher that shows nothing."""


class Backend(Protocol):
    """A place where plans run."""

    name: str

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        """What this backend cannot honour; the caller ends with exit code 33 when there is any."""
        ...

    def differences(self, plan: Plan) -> tuple[str, ...]:
        """Harmless differences from Azure ML that a person should read before the run."""
        ...

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Carry the plan out and return when it has ended, however it ended.

        A failing script is a Run whose status is Failed, not an exception. KeyboardInterrupt and
        SIGTERM end every child, leave the tracking run KILLED and return a Canceled run.
        """
        ...
