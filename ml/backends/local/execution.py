"""One command job, or one trial, from its folder to its closed MLflow run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from ml.backends.base import Run, Status
from ml.backends.local import environment, faults, history, lineage, outcome, records
from ml.backends.local.process import Reaper, RunProcess
from ml.backends.local.snapshot import Snapshot, working_copy
from ml.backends.local.tracking import Tracking
from ml.specs.expressions import resolve_command, resolve_value
from ml.specs.plan import CommandPlan, InputPlan
from ml.specs.problems import Exit, Problem, Refused

# Modes in which the job may write into its input: it gets a copy, the original stays as it is.
COPIED = frozenset({"download", "rw_mount", "eval_download"})


@dataclass(frozen=True)
class Session:
    """What the executions of one `ml run` share."""

    tracking: Tracking
    watchman: Reaper
    snapshot: Snapshot | None
    lineage: dict[str, Any]
    threads: int


@dataclass
class Execution:
    """A run of `plan` in `folder`. `start`, then `poll` until it says True, then `finish`.

    `sampled` are a trial's hyperparameters, `parent` is its sweep's run id, and `time_limit` the
    field that set its timeout.
    """

    session: Session
    plan: CommandPlan
    folder: Path
    name: str
    sampled: Mapping[str, object] = field(default_factory=dict)
    parent: str | None = None
    time_limit: str = "timeout"
    ended_by: str = field(init=False, default="")
    run: Run = field(init=False)
    _lineage: dict[str, Any] = field(init=False)
    _began: float = field(init=False)
    _process: RunProcess | None = field(init=False, default=None)
    _code: int | None = field(init=False, default=None)
    _refused: Refused | None = field(init=False, default=None)

    def start(self) -> Run:
        """Make the MLflow run, the folder and the working copy, and start the command.

        A command that cannot be resolved is refused before anything is made (exit code 2).
        """
        parameters = {k: i.value for k, i in self.plan.inputs.items() if i.is_literal}
        given = {key: value for key, value in parameters.items() if value is not None}
        # Resolved once with what is known, so that a refusal leaves no run behind.
        command = self._resolve(self.plan.command)
        self._lineage = self.session.lineage | {"parent": self.parent}
        (self.folder / "logs").mkdir(parents=True)
        run_id = self.session.tracking.start(
            self.plan.experiment,
            self.folder,
            self.name,
            {**self.plan.tags, **lineage.tags(self._lineage)},
        )
        self.run = Run(
            id=run_id,
            name=self.name,
            status="Running",
            experiment=self.plan.experiment,
            folder=self.folder,
            started=time.time(),
            parameters=given | environment.literals(self.sampled),
            outputs={name: self._outputs()[name] for name in self.plan.outputs},
        )
        records.write(self.run, self._lineage)
        self._began = time.monotonic()
        try:
            self._launch(command)
        except OSError as error:
            problem = faults.explain(error)
            if problem is None:
                raise
            self._refused = Refused(problem, exit_code=Exit.RUN_FAILED)
        return self.run

    def _launch(self, command: str) -> None:
        if self.session.snapshot:
            (self.folder / "snapshot").symlink_to(self.session.snapshot.folder)
        for name, output in self.plan.outputs.items():
            path = self.run.outputs[name]
            (path.parent if output.type == "uri_file" else path).mkdir(parents=True, exist_ok=True)
        for name, data in self.plan.inputs.items():
            if data.path is not None and data.mode in COPIED:
                _copy(data.path, self.folder / "inputs" / name / data.path.name)
        own = {
            key: resolve_value(value, self._inputs(), self._outputs())
            for key, value in self.plan.environment_variables.items()
        }
        self._process = RunProcess(
            command,
            self.run.id,
            working_copy(self.session.snapshot, self.folder / "work"),
            environment.variables(
                self.run.id, self.plan.experiment, self.session.threads, own, self.sampled
            ),
            self.log,
            self.session.watchman,
        )

    @property
    def log(self) -> Path:
        """What the command prints, both streams (Azure ML: user_logs/std_log.txt)."""
        return self.folder / "logs" / "std_log.txt"

    def _inputs(self) -> dict[str, str | PurePath | None]:
        return {name: self._input(name, data) for name, data in self.plan.inputs.items()}

    def _input(self, name: str, data: InputPlan) -> str | PurePath | None:
        if data.is_literal:
            return None if data.value is None else str(data.value)
        if data.path is None or data.mode not in COPIED:
            return data.path
        return self.folder / "inputs" / name / data.path.name

    def _outputs(self) -> dict[str, Path]:
        return {name: self.folder / "outputs" / name for name in self.plan.outputs}

    def _resolve(self, template: str) -> str:
        sampled = {name: environment.text(value) for name, value in self.sampled.items()}
        return resolve_command(template, self._inputs(), self._outputs(), sampled)

    def poll(self) -> bool:
        """Whether the command has ended; keeps the job's time limit."""
        if self._process is None:
            return True
        limit = self.plan.timeout_s
        if limit is not None and time.monotonic() - self._began > limit:
            self.stop(self.time_limit)
        self._code = self._process.poll()
        return self._code is not None

    def stop(self, ended_by: str) -> None:
        """Ask the command to end, if it has not: SIGTERM, and SIGKILL after the grace period."""
        if self._process is not None and self._code is None and not self.ended_by:
            self.ended_by = ended_by
            self._process.terminate()

    def kill(self) -> None:
        """End the command at once."""
        if self._process is not None:
            self._process.kill()

    def finish(self, warnings: tuple[Problem, ...] = ()) -> Run:
        """Write the record and close the MLflow run; `warnings` are kept with it if it completed.

        Raises what `faults` explains when the disk or the store does not take it: the next run
        closes what was left open.
        """
        status, error = self._verdict()
        metrics = history.latest(self.run.id)
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            metrics=metrics,
            ended_by=self.ended_by,
            error=error,
            warnings=warnings + outcome.empty_outputs(self.plan, self.run)
            if status == "Completed"
            else (),
        )
        records.write(self.run, self._lineage)
        self._keep_artifacts()
        self.session.tracking.end(self.run.id, status, self.run.parameters)
        return self.run

    def _verdict(self) -> tuple[Status, Problem | None]:
        if self._refused is not None:
            return "Failed", self._refused.problems[0]
        if self.ended_by:
            return "Canceled", outcome.canceled(self.ended_by, self.plan, self.log)
        if self._code == 0:
            return "Completed", None
        return "Failed", outcome.script_failed(self._code or 0, self.plan, self.log)

    def _keep_artifacts(self) -> None:
        """`./outputs` and `./logs` become artifacts, as on Azure ML; the working copy goes."""
        work, snapshot = self.folder / "work", self.session.snapshot
        for name in ("outputs", "logs"):
            came_along = snapshot is not None and (snapshot.folder / name).exists()
            if (work / name).is_dir() and not came_along:
                artifacts = Path(self.session.tracking.artifacts_of(self.run.id))
                shutil.copytree(work / name, artifacts / name, dirs_exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)


def _copy(source: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copy2(source, copy)
