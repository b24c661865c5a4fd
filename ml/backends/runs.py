"""The runs of a backend, the store that finds them, and retries if it cannot be read.

`ml.backends.ranking` works on any `RunStore`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol

from ml.core import home
from ml.core.errors import Exit, Problem, UserError
from ml.specs.plan.plans import Sample, Value

Kind = Literal[
    "started",
    "running",
    "output",
    "metric",
    "trial_started",
    "trial_metric",
    "trial_ended",
    "step_started",
    "step_ended",
    "ended",
]
Status = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
STATUSES: tuple[Status, ...] = ("Queued", "Running", "Completed", "Failed", "Canceled")
# Interval in seconds between reports of retries; it then doubles.
_NEWS_S = 60.0
# Seconds without events until the elapsed time is reported; the interval then grows.
QUIET_S = 8.0
# In the problem of a failed script, the end of its log follows this text.
LOG_FOLLOWS = "; the end of its log:"
# The statuses of a run that has not ended.
OPEN: frozenset[Status] = frozenset({"Queued", "Running"})
# The tag of a run that no person started, such as `release` for a release's evaluation.
STARTED_BY = "started_by"
# (step, value) pairs of one metric in the order in which a script logged them.
Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Pause:
    """A pause of a run, from its stop until it was resumed; times are epoch seconds."""

    since: float
    until: float
    ended_by: str  # why the run was stopped


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was started; statuses have Azure ML's names, times are epoch seconds."""

    id: str  # run id in the tracking server; "" for a step that was never started
    name: str  # job name, such as `calm_river_03`
    status: Status
    experiment: str
    folder: Path
    started: float
    ended: float | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, Path] = field(default_factory=dict)  # local folder or file of each
    trials: tuple[Run, ...] = ()  # of a sweep, in the order of their start
    best: str | None = None  # name of the best completed trial
    # What stopped the job, such as `SIGINT`, `timeout` or `median_stopping`, or why a step was
    # never started; "" otherwise.
    ended_by: str = ""
    error: Problem | None = None  # why the job failed
    # Problems that did not fail the job, such as an empty output or a NaN metric.
    warnings: tuple[Problem, ...] = ()
    steps: tuple[Run, ...] = ()  # of a pipeline, in the order of their start
    reused_from: str = ""  # run whose outputs a step reuses; "" for none
    # Output → the asset registered from it: `azureml:name:version`.
    registered: Mapping[str, str] = field(default_factory=dict)
    restarts: tuple[float, ...] = ()  # times of restarts after a preemption
    pauses: tuple[Pause, ...] = ()
    # Interrupted attempts of a trial or step that ran again; their results are ignored.
    former: tuple[Run, ...] = ()

    @property
    def exit_code(self) -> Exit:
        """The exit code of `ml run` after this run; not that of the job's command."""
        if self.status == "Completed":
            return Exit.DONE
        return Exit.INTERRUPTED if self.ended_by == "SIGINT" else Exit.RUN_FAILED

    @property
    def active_s(self) -> float:
        """The seconds from the start to the end, or to now, without pauses."""
        elapsed = (self.ended or time.time()) - self.started
        return elapsed - sum(pause.until - pause.since for pause in self.pauses)

    def trial(self, name: str) -> Run:
        """Return the trial with that name; raise KeyError if there is none."""
        return {trial.name: trial for trial in self.trials}[name]

    def step(self, name: str) -> Run:
        """Return the step by its name in the pipeline; raise KeyError if there is none."""
        return {step.name.removeprefix(f"{self.name}."): step for step in self.steps}[name]

    def below(self) -> Iterator[Run]:
        """Yield all descendants of this run: steps and trials, and those of nested steps."""
        for part in (*self.steps, *self.trials):
            yield part
            yield from part.below()


def without_log(problem: Problem) -> Problem:
    """Return the problem of a failed script without the end of its log, if that was echoed.

    Logs of ranks are not echoed, so their end stays.
    """
    text, follows, _ = problem.actual.partition(LOG_FOLLOWS)
    return replace(problem, actual=text) if follows and text.startswith("the command") else problem


@dataclass(frozen=True)
class Event:
    """An event of a run, of one of its steps, or of a trial."""

    kind: Kind  # `running` comes at every poll, `output` after output of the command was echoed
    run: Run
    trial: Run | None = None  # of `step` if that is a sweep, else of `run`
    step: Run | None = None  # the innermost step concerned


Watch = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """Ignore the event: the default watcher."""


def _started(event: Event) -> str:
    return f"{event.run.name}: started" if event.kind == "started" else ""


def narrated(progress: Callable[[str], None], line: Callable[[Event], str] = _started) -> Watch:
    """Return a watcher that reports each event, and the elapsed time between events.

    `line` returns the text of an event, or "" to skip it.
    """
    said_at = 0.0

    def watch(event: Event) -> None:
        nonlocal said_at
        text, took = line(event), event.run.active_s
        if event.kind == "running" and took - said_at >= max(QUIET_S, said_at / 6):
            text = f"{event.run.name}: running for {took:.0f} s"
        if text:
            progress(text)
        if text or event.kind == "output":
            said_at = took

    return watch


@dataclass(frozen=True)
class Entry:
    """A run with its lineage."""

    run: Run
    kind: str  # `command`, `sweep` or `pipeline`
    # Spec, code, data, environment and objective as JSON; empty for a step that was never started.
    lineage: Mapping[str, Any]

    @property
    def project(self) -> str:
        """The folder under ml/projects that the spec is in; "" for any other spec."""
        parts = PurePath(str(self.lineage.get("spec", ""))).parts
        return dict(pairwise(parts)).get("projects", "")

    @property
    def objective(self) -> tuple[str, str] | None:
        """A sweep's primary metric and its goal."""
        objective = self.lineage.get("objective")
        return (objective["primary_metric"], objective["goal"]) if objective else None

    @property
    def display_name(self) -> str:
        """The spec's `display_name`, by default the name of its file."""
        return str(self.lineage.get("display_name") or "")

    @property
    def snapshot(self) -> Path | None:
        """The folder with the run's code; None if it was removed or is on another machine."""
        digest = str((self.lineage.get("code") or {}).get("digest", "")).removeprefix("sha256:")
        folder = home.snapshots() / digest
        return folder if digest and folder.is_dir() else None

    @property
    def tags(self) -> Mapping[str, str]:
        """The spec's tags."""
        return dict(self.lineage.get("tags") or {})

    def belongs_to(self, project: str) -> bool:
        """Return whether the spec is in the project, or the experiment has the project's name."""
        return project in (self.project, self.run.experiment.replace("-", "_"))


def latest(entries: Iterable[Entry], experiment: str | None = None) -> Run | None:
    """Return the first run in `entries` (of the experiment) that a person started; else None."""
    passing = Filter(experiment=experiment, by_person=True).apply(entries)
    return passing[0].run if passing else None


@dataclass(frozen=True)
class Filter:
    """Conditions for a list of runs; one that is not set matches every run."""

    experiment: str | None = None
    project: str | None = None
    statuses: Collection[str] = ()
    since: float | None = None  # earliest start, in epoch seconds
    by_person: bool = False  # leave out runs that a release started

    def apply(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries for which every condition holds, in their order."""
        return [entry for entry in entries if self._matches(entry)]

    def _matches(self, entry: Entry) -> bool:
        run = entry.run
        return (
            self.experiment in (None, run.experiment)
            and (self.project is None or entry.belongs_to(self.project))
            and (not self.statuses or run.status in self.statuses)
            and (self.since is None or run.started >= self.since)
            and not (self.by_person and STARTED_BY in entry.tags)
        )


@dataclass(frozen=True)
class Service:
    """An interactive service of a job, from the spec's `services`."""

    name: str
    # As Azure ML names it: JupyterLab, TensorBoard, VSCode, SSH.
    type: str
    status: str
    # The URL; for SSH the command that connects; "" while the service has no address.
    address: str
    error: str


class TrackingUnavailable(Exception):
    """The tracking store does not exist or cannot be read; the message says why."""


class Records(Protocol):
    """The files of runs on this machine."""

    def unreadable(self, entries: Iterable[Entry]) -> list[str]:
        """Return the names of runs that are missing in `entries`, since their record is damaged."""

    def original(self, run: Run) -> Run | None:
        """Return the run that wrote the outputs: the run itself, or the step that it reuses.

        None if that step was removed.
        """

    def artifacts(self, run: Run) -> Path | None:
        """Return the folder of the run's artifacts; None if MLflow does not know the run."""


class RunStore(Protocol):
    """Reads the runs of a backend, their metrics and their files."""

    @property
    def poll_s(self) -> float:
        """The polling interval for an unfinished run, in seconds."""

    @property
    def patience_s(self) -> Callable[[UserError], float] | None:
        """Returns the retry timeout in seconds after an error; None if reads are not retried."""

    @property
    def records(self) -> Records | None:
        """The files of runs; None if the backend does not keep them on this machine."""

    def document(self, run: Run) -> dict[str, Any]:
        """Return the run as JSON: its fields, its `kind`, paths relative to its folder."""

    def find(self, name: str, experiment: str | None = None) -> Run:
        """Return the run with that name or id; `latest` is the latest that a person started.

        With `experiment`, `latest` is the latest of that experiment. Steps are named like
        `calm_river_03.prepare`, trials like `calm_river_03_7`. Raise UserError (exit code 2) if
        there is none.
        """

    def entries(self) -> list[Entry]:
        """Return every run, the latest first. Steps and trials are in their runs."""

    def newest(self, wanted: Filter, count: int) -> list[Entry]:
        """Return the latest runs that match the filter; a remote store stops after `count`."""

    def entry(self, run: Run) -> Entry:
        """Return the run (also a step or trial) with its kind and lineage."""

    def parent(self, run: Run) -> Run | None:
        """Return the sweep or pipeline that contains the run; None for a root run."""

    def writer(self, pipeline: Run, output: str) -> Run:
        """Return the step that wrote the pipeline's output; the pipeline itself if none did.

        For an output of a sweep step's trial, return the sweep.
        """

    def metrics(self, run: Run) -> Mapping[str, float]:
        """Return the last value of every metric, also of an unfinished run.

        Raise TrackingUnavailable.
        """

    def parameters(self, run: Run) -> Mapping[str, Value]:
        """Return the run's literal inputs, then other parameters that its code logged.

        Raise TrackingUnavailable.
        """

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        """Return run id → curve of the metric; runs without the metric are left out.

        Raise TrackingUnavailable.
        """

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        """Return metric → curve, for every metric of the run. Raise TrackingUnavailable."""

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        """Return run id → value of the tag; runs without the tag are left out.

        Raise TrackingUnavailable.
        """

    def sample(self, trial: Run) -> Sample | None:
        """Return the hyperparameters of a trial; None if they were not recorded."""

    def logs(self, run: Run) -> Mapping[str, Path]:
        """Return rank → local log file, for each process of the run.

        Ranks are numbers from `0`, `ps_0` for a parameter server, `process_0` for a parallel step's
        process. Raise UserError if a log cannot be read.
        """

    def services(self, run: Run) -> Sequence[Service]:
        """Return the interactive services on the run's first node; empty if it has none.

        Raise UserError if they cannot be read.
        """


@dataclass
class Patience:
    """Retries with a timeout, to follow a run that temporarily cannot be read."""

    store: RunStore
    run: str
    again: str  # command that resumes following the run
    say: Callable[[str], None]  # receives a message at the first failed read, then less often
    _since: float | None = None
    _news_s: float = 0.0

    def endure(self, refused: UserError) -> None:
        """Return if the caller may retry; after the timeout raise UserError with `again` as hint.

        The store's `patience_s` is the timeout, counted from the first of consecutive errors. If it
        is None, raise the error unchanged.
        """
        if self.store.patience_s is None:
            raise refused
        limit_s, problem = self.store.patience_s(refused), refused.problems[0]
        now = time.monotonic()
        if self._since is None:
            self._since = now
        lost_s = now - self._since
        if lost_s >= limit_s:
            actual = f"{self.run} is no longer followed and may still run: {problem.actual}"
            hint = "; then ".join(filter(None, (problem.hint, self.again)))
            ended = replace(problem, actual=actual, hint=hint)
            raise UserError(ended, exit_code=refused.exit_code) from refused
        if lost_s >= self._news_s:
            self._news_s = max(_NEWS_S, 2 * lost_s)
            until = f"{lost_s / 60:.0f} of {limit_s / 60:.0f} minutes"
            self.say(f"{problem.actual}; retrying to follow {self.run} ({until})")

    def seen(self) -> None:
        """Reset the timeout: the run could be read."""
        self._since, self._news_s = None, 0.0


def original(store: RunStore, run: Run) -> Run:
    """Return the run that wrote the outputs; the run itself if that is removed or unknown."""
    return (store.records.original(run) if store.records else None) or run
