"""The port that every backend implements: it runs plans and keeps their runs.

A backend says where a plan runs, never what it does. `ml.backends.ranking` and
`ml.backends.comparison` work on any `RunStore`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol, TextIO

from ml.backends.registry import Registry
from ml.backends.storage import Cleaning, Needed, Usage
from ml.core.errors import Problem
from ml.specs.plan.plan import PipelinePlan, Plan, Sample, SweepPlan, Value

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
STATUSES: tuple[Status, ...] = ("Queued", "Running", "Completed", "Failed", "Canceled")
# What follows it in a problem of a failed script is the end of its log.
LOG_FOLLOWS = "; the end of its log:"
# The code of a refusal that only asks for data to be brought here.
DATA_NOT_HERE = "data-not-here"
# The statuses of a run that has not ended.
OPEN: frozenset[Status] = frozenset({"Queued", "Running"})
# (step, value) pairs of one metric in the order in which a script logged them.
Curve = tuple[tuple[int, float], ...]


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


def without_log(problem: Problem) -> Problem:
    """The problem of a failed script without the end of its log, which the person has read.

    A rank that failed has a log of its own.
    """
    found, follows, _ = problem.found.partition(LOG_FOLLOWS)
    return replace(problem, found=found) if follows and found.startswith("the command") else problem


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


@dataclass(frozen=True)
class Entry:
    """A run with its kind (`command`, `sweep` or `pipeline`) and its lineage.

    The lineage is JSON: spec, code, data, environment, objective; empty for a step that was never
    started.
    """

    run: Run
    kind: str
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
    def tags(self) -> Mapping[str, str]:
        """The spec's tags."""
        return dict(self.lineage.get("tags") or {})

    def belongs_to(self, project: str) -> bool:
        """Whether the spec is in the project, or the experiment has the project's name."""
        return project in (self.project, self.run.experiment.replace("-", "_"))


@dataclass(frozen=True)
class Filter:
    """Conditions for a list of runs; one that is not given holds for every run.

    `since` is in epoch seconds. The value of a tag is None where any value will do.
    """

    experiment: str | None = None
    project: str | None = None
    statuses: Collection[str] = ()
    since: float | None = None
    display_name: str | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict)

    def apply(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries for which every condition holds, in their order."""
        return [entry for entry in entries if self._matches(entry)]

    def _matches(self, entry: Entry) -> bool:
        run = entry.run
        return (
            self.experiment in (None, run.experiment)
            and (self.project is None or entry.belongs_to(self.project))
            and (not self.statuses or run.status in self.statuses)
            and (self.since is None or run.started >= self.since)
            and self.display_name in (None, entry.display_name)
            and all(
                key in entry.tags and value in (None, entry.tags[key])
                for key, value in self.tags.items()
            )
        )


@dataclass(frozen=True)
class Datum:
    """An input of a run: an asset or a path, and its sha256 ("" if it was not read).

    `run` and `output` name the run that made it; both are "" for data that no known run made.
    """

    name: str
    what: str
    digest: str
    run: str = ""
    output: str = ""


@dataclass(frozen=True)
class Made:
    """An output of a run: its sha256 now (None if it is gone), and the asset that it became."""

    name: str
    path: Path
    digest: str | None
    asset: str


@dataclass(frozen=True)
class Link:
    """One run of a lineage with its inputs and outputs.

    `snapshot` is the folder with the code as it ran; None once it was removed.
    """

    entry: Entry
    data: tuple[Datum, ...]
    made: tuple[Made, ...]
    snapshot: Path | None

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.entry.run

    @property
    def code(self) -> Mapping[str, Any]:
        """Commit, branch, whether dirty, digest of the snapshot; empty when nothing is known."""
        return self.entry.lineage.get("code") or {}


class TrackingUnavailable(Exception):
    """The tracking store does not exist or cannot be read; the message says why."""


class RunStore(Protocol):
    """The runs of a backend, their metrics and their files. It changes nothing."""

    def document(self, run: Run) -> dict[str, Any]:
        """The run as JSON: its fields, its `kind`, paths relative to its folder."""
        ...

    def find(self, name: str, experiment: str | None = None) -> Run:
        """The run with that name or id, or the `latest` (of the experiment).

        Steps and trials have names of their own (`calm_river_03.prepare`, `calm_river_03_7`).
        Raises Refused (exit code 2) when there is none.
        """
        ...

    def entries(self) -> list[Entry]:
        """Every run, the latest first. Steps and trials are in their runs."""
        ...

    def unreadable(self, entries: Iterable[Entry]) -> list[str]:
        """The names of the runs that are not among `entries` because their record is damaged."""
        ...

    def entry(self, run: Run) -> Entry:
        """The entry of a run, step or trial."""
        ...

    def parent(self, run: Run) -> Run | None:
        """The sweep or pipeline that the run is a part of; None for a run of its own."""
        ...

    def original(self, run: Run) -> Run | None:
        """The run that wrote the outputs: `run` itself, or the step that it reuses.

        None when that step was removed.
        """
        ...

    def metrics(self, run: Run) -> Mapping[str, float]:
        """The last value of every metric; also of a run that has not ended.

        Raises TrackingUnavailable.
        """
        ...

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        """Run id → every value of the metric; runs without one are left out.

        Raises TrackingUnavailable.
        """
        ...

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        """Metric → every value that the run logged. Raises TrackingUnavailable."""
        ...

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        """Run id → the value of the tag; runs without it are left out.

        Raises TrackingUnavailable.
        """
        ...

    def sample(self, trial: Run) -> Sample | None:
        """The hyperparameters of a trial; None when they were not recorded."""
        ...

    def logs(self, run: Run) -> Mapping[str, Path]:
        """The log of each process of the run, as local files.

        The key is its rank: `0`, or another number, `ps_0`, `process_0` of a parallel step.
        """
        ...

    def outputs(self, run: Run) -> Mapping[str, Path]:
        """The outputs of the run by name, as local paths."""
        ...

    def snapshot(self, entry: Entry) -> Path | None:
        """The folder with the code as it ran; None once it was removed."""
        ...

    def lineage(self, run: Run) -> list[Link]:
        """The runs that led to `run`, each after those that its data came from; `run` is last.

        A pipeline comes after its steps; a sweep stands for its trials.
        """
        ...


class Storage(Protocol):
    """The disk space of a backend's runs."""

    @property
    def grace_s(self) -> float:
        """Seconds for which a copy that nothing refers to yet is left alone."""
        ...

    @property
    def limit_variable(self) -> str:
        """The environment variable that sets the limit."""
        ...

    @property
    def grew(self) -> bool:
        """Whether this process has run anything."""
        ...

    def size(self, run: Run) -> int:
        """Bytes that the folder of the run takes."""
        ...

    def usage(self) -> Usage:
        """What is in use and what the limit is; nothing is removed."""
        ...

    def parts(self) -> Mapping[str, int]:
        """Bytes that each part of the home takes, the largest first."""
        ...

    def keep(self, run: Run, keep: bool) -> None:
        """Protect a run from being removed, or end that."""
        ...

    def is_kept(self, run: Run) -> bool:
        """Whether a person protects the run."""
        ...

    def evicted(self, run: Run) -> float | None:
        """When outputs of the run were removed to keep the limit (epoch seconds); None if never."""
        ...

    def cleaning(
        self,
        needed: Needed,
        *,
        keep: int | None = None,
        older_than: float | None = None,
        experiment: str | None = None,
    ) -> Cleaning:
        """What would be removed now: requested runs, and copies that nothing refers to.

        Runs are removed when they are beyond the `keep` latest and ended before `older_than`
        (epoch seconds); without both, no run is. It changes nothing.
        """
        ...

    def eviction(self, usage: Usage, needed: Needed, reads: Iterable[Path] = ()) -> Usage:
        """What would be removed to get below the limit, the least valuable first.

        `reads` are paths that the next run reads. It changes nothing.
        """
        ...

    def remove(self, planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        """Remove the items of `planned` that are still in `current`; bytes freed, and errors."""
        ...

    def evict(self, planned: Usage, current: Usage) -> tuple[int, list[str]]:
        """As `remove`, for the result of `eviction`; the runs keep a note of it."""
        ...


@dataclass(frozen=True)
class EnvironmentComparison:
    """An environment beside the one that a job would get: for programs, and a line a difference."""

    data: Mapping[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """How a backend runs plans; each is harmless where it means nothing.

    The output of a command goes to `echo`. `isolated` builds the environment that a spec asks for.
    `say` gets progress of what comes before the run. `evict_after` are the seconds after which a
    job is killed as a spot node would be, each time `evict_notice` seconds after a SIGTERM.
    """

    echo: TextIO | None = None
    isolated: bool = False
    say: Callable[[str], None] = lambda line: None
    evict_after: tuple[float, ...] = ()
    evict_notice: float = 0.0


class Backend(Protocol):
    """A place where plans run."""

    @property
    def name(self) -> str:
        """What `--on` calls it."""
        ...

    @property
    def runs(self) -> RunStore:
        """The runs that it has carried out."""
        ...

    @property
    def storage(self) -> Storage:
        """The disk space that they take."""
        ...

    @property
    def registry(self) -> Registry:
        """The registered model versions."""
        ...

    def prepare(self) -> None:
        """Begin what a first run needs whatever its plan is; returns at once."""
        ...

    def sharing(self) -> AbstractContextManager[None]:
        """Runs within it share what is slow to start."""
        ...

    def serve_pages(self, port: int, ready: Callable[[str], None]) -> None:
        """Serve the tracking server's own pages until Ctrl-C; `ready` gets the address.

        Raises Refused when there is nothing to serve.
        """
        ...

    def environments(self, plan: Plan) -> tuple[EnvironmentComparison, ...]:
        """The environments that the plan asks for beside those that its jobs would get."""
        ...

    def snapshot(self, code: Path) -> Path:
        """A folder with a copy of `code` (a folder or file) that never changes, made if needed.

        It is named by the content. Raises Refused when the disk is full.
        """
        ...

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

    def cached(self, plan: Plan, output: str) -> Run | None:
        """The completed step with the same command, code, environment and data, if it is kept.

        Of a pipeline, when all of its steps are kept: the step that wrote the output.
        """
        ...

    def cancel(self, name: str) -> Run:
        """End a run that has not ended, with all its processes; the run as it was closed.

        Raises Refused when it has ended or is a part of another run.
        """
        ...

    def resumable(self, name: str) -> Run:
        """The run with that name or id, repaired if its record is damaged. Raises Refused."""
        ...

    def resume_plan(self, run: Run, timeout_s: float | None = None) -> SweepPlan | PipelinePlan:
        """The plan with which the run would be resumed. Raises Refused when it cannot be.

        `timeout_s` is a new limit for a sweep: all its time, the time before included.
        """
        ...

    def resume(
        self,
        run: Run,
        watch: Watch = unwatched,
        timeout_s: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Run:
        """Resume a sweep or a pipeline and return when it has ended. Raises as `resume_plan`."""
        ...

    def was_stopped(self, run: Run) -> bool:
        """Whether the run was ended from outside, so that resuming it can complete it."""
        ...
