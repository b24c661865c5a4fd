"""Run one command (of a job, a step or a trial): from creating its folder to closing its run.

A `Session` is the context of one command; all commands of a run share a `Preparation`.
"""

from __future__ import annotations

import codecs
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from ml.backends.local import distribution, files, outcome, process_environment
from ml.backends.local.execution import saved_plan
from ml.backends.local.parallel import parallel
from ml.backends.local.pool.pool import Pool
from ml.backends.local.process_environment import HERE, Interpreter, Interpreters
from ml.backends.local.processes import spot
from ml.backends.local.processes.process import Job, RunProcess
from ml.backends.local.processes.spot import Evictions
from ml.backends.local.runs import lifecycle, records
from ml.backends.local.tracking import reader
from ml.backends.local.tracking.tracking import JOB_FOLDER, Tracking
from ml.backends.runs import Event, Run, Status, Watch
from ml.backends.snapshot import Snapshot
from ml.core import faults
from ml.core.errors import Problem, UserError
from ml.core.imports import check_import_path
from ml.specs.assets import assets
from ml.specs.expressions import resolve_command, resolve_variables
from ml.specs.plan.plans import (
    CommandPlan,
    Plan,
    commands,
    supplied_inputs,
)


@dataclass(frozen=True)
class Session:
    """The context of a command, shared by all trials of a sweep."""

    tracking: Tracking
    pool: Pool
    snapshot: Snapshot | None
    lineage: dict[str, Any]
    threads: int  # share of the cores
    interpreter: Interpreter = HERE
    evictions: Evictions = field(default_factory=Evictions)
    # Environment variables inherited from this process.
    passed: Mapping[str, str] = field(default_factory=process_environment.of_the_caller)


@dataclass
class Preparation:
    """The state that all parts of a run share.

    Code is copied once, before the first step, so later edits do not affect any step.
    """

    tracking: Tracking
    pool: Pool
    snapshots: Mapping[Path | None, Snapshot | None]
    interpreters: Interpreters = field(default_factory=dict)
    # Digest of an input asset → `azureml:NAME:VERSION`. Copies of it that a step writes unchanged
    # (a step that checks the data) are recorded as the same asset.
    assets: Mapping[str, str] = field(default_factory=dict)
    # Code folder → its lineage, once it is computed.
    code: dict[Path | None, dict[str, Any]] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)
    # Simulated preemptions, applied to every command.
    evictions: Evictions = field(default_factory=Evictions)

    def __post_init__(self) -> None:
        for interpreter in (HERE, *self.interpreters.values()):
            check_import_path(interpreter.python)

    def session(self, plan: CommandPlan, parent: str | None, threads: int) -> Session:
        """Return the session of a command: its code, interpreter, threads and lineage.

        `parent` is the parent run's id. Inputs of a job without a parent are not hashed here; their
        digest is recorded only if it is cached.
        """
        snapshot = self.snapshots[plan.code]
        interpreter = self.interpreters.get(plan.environment, HERE)
        origin = records.lineage_of(plan, snapshot, self.code.get(plan.code), interpreter)
        self.code[plan.code] = origin["code"]
        for name, data in plan.inputs.items():
            if data.path is None or data.is_literal:
                continue
            if parent is not None or data.path in self._digests:
                content = self.digest(data.path)
                origin["data"][name]["digest"] = content
                origin["data"][name]["asset"] = str(data.asset or self.assets.get(content, ""))
        origin["parent"] = parent
        return Session(
            self.tracking, self.pool, snapshot, origin, threads, interpreter, self.evictions
        )

    def keep(self, folder: Path, plan: saved_plan.CompiledPlan) -> None:
        """Save the plan in the job's folder, so that the run can be resumed."""
        for command in commands(plan):
            interpreter = self.interpreters.get(command.environment, HERE)
            code = self.code.get(command.code)
            origin = records.lineage_of(command, self.snapshots[command.code], code, interpreter)
            self.code[command.code] = origin["code"]
        saved_plan.save(folder, plan, self.code, self.digest, bool(self.interpreters))

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file or folder, cached; "" if it does not exist.

        The cache stays valid, since each output of a pipeline is written once.
        """
        if path not in self._digests:
            self._digests[path] = assets.digest(path) if path.exists() else ""
        return self._digests[path]


def assets_of(plan: Plan) -> dict[str, str]:
    """Return the plan's input assets: digest of the content → `azureml:NAME:VERSION`."""
    named = (data.asset for _, data in supplied_inputs(plan) if data.asset)
    return {asset.digest: str(asset) for asset in named if asset.digest}


# Interval in seconds for reading a command's metrics for a watcher.
METRICS_S = 0.5


@dataclass
class Execution:
    """A run of a command: call `start`, `turn` until it returns True, then `finish`.

    It is a `Task` (see `ml.backends.local.execution.pipeline`).
    """

    session: Session
    plan: CommandPlan
    folder: Path
    name: str
    sampled: Mapping[str, object] = field(default_factory=dict)  # a trial's hyperparameters
    parent: str | None = None  # run id of its sweep or pipeline
    time_limit: str = "timeout"  # field that set the timeout
    former: tuple[Run, ...] = ()  # interrupted attempts of this trial or step
    stopped: Run | None = None  # run to restart in its folder, as on a spot node after a preemption
    echo: TextIO | None = None  # receives the log while it is written
    watch: Watch | None = None  # receives new metrics
    # What stopped the command, such as `timeout`; "" otherwise.
    ended_by: str = field(init=False, default="")
    run: Run = field(init=False)
    _lineage: dict[str, Any] = field(init=False)
    _began: float = field(init=False)
    # State of the mounted inputs before the start, to detect changes.
    _mounted: outcome.States = field(init=False, default_factory=dict)
    _process: RunProcess | spot.SpotProcess | None = field(init=False, default=None)
    _tail: Tail = field(init=False)
    _looked_at: float = field(init=False)
    code: int | None = field(init=False, default=None)  # exit code; None while the command runs
    # Why the command could not be started, such as a full disk.
    _fault: Problem | None = field(init=False, default=None)

    def start(self) -> Run:
        """Create the MLflow run, the folder and the working copy, and start the command.

        If the command cannot be resolved, raise UserError before anything is created.
        """
        literals = {k: i.value for k, i in self.plan.inputs.items() if i.is_literal}
        command, variables, outputs = self._resolved()
        self._lineage = self.session.lineage | {"parent": self.parent}
        (self.folder / "logs").mkdir(parents=True, exist_ok=self.stopped is not None)
        self._tail = Tail(self.log, self.echo)
        if self.stopped:
            self.run = lifecycle.reopen(self.session.tracking, self.stopped, self._lineage, outputs)
        else:
            self.run = lifecycle.start(
                self.session.tracking,
                self.plan,
                self.folder,
                self.name,
                self._lineage,
                literals | process_environment.literals(self.sampled),
                outputs,
                self.former,
            )
        self._began = self._looked_at = time.monotonic()
        try:
            self._launch(command, variables)
        except OSError as error:
            self._fault = faults.explain(error)
            if self._fault is None:
                raise
        return self.run

    def warm(self) -> None:
        """Start a forkserver with the trials' imports; create no run and no folder."""
        if self.plan.parallel is None and self.plan.distribution is None:
            with suppress(UserError):  # `start` will raise it
                command, variables, _ = self._resolved()
                self.session.pool.warm(self._job("", command, variables), self.session.snapshot)

    def _resolved(self) -> tuple[str, dict[str, str], dict[str, Path]]:
        """Return the command and the spec's variables with resolved bindings, and output paths."""
        sampled = {name: process_environment.text(value) for name, value in self.sampled.items()}
        inputs = files.inputs(self.plan, self.folder)
        outputs = files.outputs(self.plan, self.folder)
        place = self.plan.places.get("command", self.plan.place)
        command = resolve_command(self.plan.command, inputs, outputs, sampled, place)
        variables = self.plan.environment_variables
        resolved = resolve_variables(variables, inputs, outputs, place)
        return command, resolved, outputs

    def _launch(self, command: str, variables: Mapping[str, str]) -> None:
        files.take_over(self.plan, [attempt.folder for attempt in self.former], self.folder)
        lay_out = spot.lay_out_again if self.stopped else files.lay_out
        lay_out(self.plan, self.folder, self.session.snapshot)
        self._mounted = files.states(files.mounted(self.plan))
        evictions, start = self.session.evictions, partial(self._start, command, variables)
        node = distribution.elastic_node(self.plan)
        if not evictions.after_s:
            self._process = start()
        elif node is None:
            self._process = spot.SpotProcess(self.run.id, start, self._restart, evictions)
        else:
            evicted = distribution.evicted_node(self.folder)
            self._process = spot.ElasticProcess(
                self.run.id, start, self._record_restart, evictions, node, evicted
            )

    def _start(self, command: str, variables: Mapping[str, str]) -> RunProcess:
        job = self._job(self.run.id, command, variables)
        return self.session.pool.start(job, self.session.snapshot, self.is_one_of_many)

    def _job(self, run_id: str, command: str, variables: Mapping[str, str]) -> Job:
        work = files.work(self.folder)
        threads = max(1, self.session.threads // self.plan.processes)
        seen = process_environment.variables(
            run_id,
            self.plan.experiment,
            threads,
            variables,
            self.sampled,
            work,
            self.session.interpreter,
            self.session.passed,
        )
        if self.plan.parallel is not None:
            command = parallel.launch_command(self.plan, command, self.folder, seen, threads)
        else:
            command = distribution.launch_command(self.plan, command, self.folder, seen)
        return Job(command, run_id, work, seen, self.log)

    @property
    def is_one_of_many(self) -> bool:
        """Whether it is a trial: more runs with the same imports follow, so fork them."""
        return bool(self.sampled)

    def _restart(self, after_s: float) -> None:
        spot.lay_out_again(self.plan, self.folder, self.session.snapshot)
        self._record_restart(after_s)

    def _record_restart(self, after_s: float) -> None:
        node = distribution.elastic_node(self.plan)
        self.run = spot.record_restart(self.run, self.log, after_s, node)
        records.write(self.run, self._lineage)
        self.session.tracking.tag(self.run.id, {"restarts": str(len(self.run.restarts))})

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return files.log(self.folder)

    def turn(self, stop: str, at_once: bool) -> bool:
        """See `Task`."""
        if stop:
            self.stop(stop)
        if at_once:
            self.kill()
        has_ended = self.poll()
        if self._tail.pump() and self.watch:
            self.watch(Event("output", self.run))
        if self.watch and time.monotonic() - self._looked_at > METRICS_S:
            self._looked_at = time.monotonic()
            metrics = reader.latest(self.run.id)
            if metrics != self.run.metrics:
                self.run = replace(self.run, metrics=metrics)
                self.watch(Event("metric", self.run))
        return has_ended

    def widen(self, cores: int) -> int:
        """See `Task`: return 0, since a running command cannot use more threads."""
        return 0

    @property
    def has_begun(self) -> bool:
        """Whether the process has started; False while a forkserver still imports packages."""
        process = self._process
        return (
            self.code is not None
            or isinstance(process, spot.SpotProcess)
            or (process is not None and process.group is not None)
        )

    def poll(self) -> bool:
        """Return whether the command has ended; stop it at the job's time limit."""
        if self._process is None:
            return True
        limit = self.plan.timeout_s
        if limit is not None and time.monotonic() - self._began > limit:
            self.stop(self.time_limit)
        try:
            self.code = self._process.poll()
        except OSError as error:  # the disk was full at a restart
            self._fault = faults.explain(error)
            if self._fault is None:
                raise
            return True
        return self.code is not None

    def stop(self, ended_by: str) -> bool:
        """Terminate the command: SIGTERM, and SIGKILL after the grace period.

        Return False if it has ended or was stopped before.
        """
        if self._process is None or self.code is not None or self.ended_by:
            return False
        self.ended_by = ended_by
        self._process.terminate()
        return True

    def kill(self) -> None:
        """Kill the command without a grace period."""
        if self._process is not None:
            self._process.kill()

    def finish(self, warnings: tuple[Problem, ...] = ()) -> Run:
        """Write the record and close the MLflow run; `warnings` are recorded if it completed.

        Raise OSError or a database error if the disk or the store fails: the next run then closes
        this one.
        """
        status, error = self._verdict()
        metrics = reader.latest(self.run.id)
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            metrics=metrics,
            ended_by=self.ended_by,
            error=error,
            warnings=self._warnings(status, warnings),
        )
        if self._process is not None:
            self._lineage["process"] = self._process.start_method
        for written in files.artifacts(self.folder, self.session.snapshot):
            to = self.session.tracking.artifacts_of(self.run.id) / written.name
            shutil.copytree(written, to, dirs_exist_ok=True)
        files.clear_up(self.folder)
        self.run = lifecycle.finish(
            self.session.tracking, self.run, self._lineage, self.plan.outputs
        )
        return self.run

    def _warnings(self, status: Status, warnings: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """Return warnings: those about changed inputs, and all others if the run completed."""
        now = files.states(files.mounted(self.plan))
        changed = outcome.written_inputs(self.plan, self._mounted, now)
        if status != "Completed":
            return changed
        every = [*changed, *warnings, *outcome.empty_outputs(self.plan, self.run)]
        ml_tags = {*records.lineage_tags(self._lineage), JOB_FOLDER}
        every += outcome.beyond_azure(self.plan, self.run, ml_tags, is_trial=bool(self.sampled))
        if self.session.evictions.after_s:
            every += spot.warnings(self.run, self.session.evictions)
        if self.plan.parallel is not None:
            every += parallel.warnings(self.plan.parallel, self.folder)
        return tuple(every)

    def _verdict(self) -> tuple[Status, Problem | None]:
        if self._fault is not None:
            return "Failed", self._fault
        if self.ended_by:
            problem = outcome.canceled(self.ended_by, self.plan, self.log)
            return "Canceled", spot.explain_timeout(problem, self.run)
        if self.code == 0:
            return "Completed", None
        log, who = distribution.failed_log(self.folder)
        is_built = bool(self.session.interpreter.built)
        return "Failed", outcome.script_failed(self.code or 0, self.plan, log, who, is_built)


class Tail:
    """Copies new text of a log to `sink` at each `pump`; does nothing if `sink` is None."""

    def __init__(self, log: Path, sink: TextIO | None) -> None:
        self._log = log
        self._sink = sink
        self._at = 0
        # A multi-byte character may be split between two writes.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def pump(self) -> bool:
        """Copy the new bytes; return whether there were any."""
        if self._sink is None or not self._log.exists():
            return False
        with self._log.open("rb") as file:
            file.seek(self._at)
            gained = file.read()
        self._at += len(gained)
        if gained:
            self._sink.write(self._decoder.decode(gained))
            self._sink.flush()
        return bool(gained)
