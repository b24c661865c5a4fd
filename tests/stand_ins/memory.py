"""A backend that keeps its runs in memory: the second implementation of the port.

Commands run in a subprocess, one at a time, and log metrics to two SQLite tables (see `LOG` in
tests/backends/conftest.py). It does not support pipelines.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml.backends import snapshot
from ml.backends.attestation import Verifier
from ml.backends.endpoints import Endpoints, Servers
from ml.backends.local.backend import LocalAuditLog
from ml.backends.local.serving import endpoint
from ml.backends.model_registry import Version, later_releases
from ml.backends.runs import (
    OPEN,
    Curve,
    Entry,
    Event,
    Filter,
    Run,
    Service,
    Status,
    Watch,
    latest,
    unwatched,
)
from ml.core import trees
from ml.core.errors import Problem, UserError
from ml.specs.expressions import resolve_command
from ml.specs.plan.plans import CommandPlan, PipelinePlan, Plan, Sample, SweepPlan, Value
from ml.sweeps.objective import leader, score
from ml.sweeps.samplers import sampler_for

_TABLES = (
    "key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INTEGER",
    "key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INTEGER,"
    " PRIMARY KEY (key, run_uuid)",
)


@dataclass
class MemoryRuns:
    """Implements `ml.backends.runs.RunStore`."""

    database: Path
    poll_s = 0.2
    patience_s = records = None
    kept: dict[str, Entry] = field(default_factory=dict)

    def document(self, run: Run) -> dict[str, Any]:
        return {"name": run.name, "id": run.id, "status": run.status, "metrics": dict(run.metrics)}

    def find(self, name: str, experiment: str | None = None) -> Run:
        if name == "latest" and (run := latest(self.entries(), experiment)):
            return run
        for entry in self.entries():
            for run in (entry.run, *entry.run.below()):
                if name in (run.name, run.id):
                    return run
        raise UserError(Problem("no-such-run", f"there is no run `{name}`"))

    def newest(self, wanted: Filter, count: int) -> list[Entry]:
        return wanted.apply(self.entries())

    def entries(self) -> list[Entry]:
        return sorted(self.kept.values(), key=lambda entry: -entry.run.started)

    def entry(self, run: Run) -> Entry:
        for entry in self.kept.values():
            if run.id in (entry.run.id, *(part.id for part in entry.run.below())):
                if run.id == entry.run.id:
                    return entry
                return Entry(run, "command", {**entry.lineage, "parent": entry.run.id})
        raise KeyError(run.name)

    def parent(self, run: Run) -> Run | None:
        entries = self.kept.values()
        return next((e.run for e in entries if run.id in [p.id for p in e.run.below()]), None)

    def writer(self, pipeline: Run, output: str) -> Run:
        return pipeline

    def metrics(self, run: Run) -> Mapping[str, float]:
        return {name: curve[-1][1] for name, curve in self.all_curves(run).items()}

    def parameters(self, run: Run) -> Mapping[str, Value]:
        return run.parameters

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        curves = {run.id: self.all_curves(run).get(metric) for run in runs}
        return {run: curve for run, curve in curves.items() if curve}

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
        curves: dict[str, list[tuple[int, float]]] = {}
        with closing(sqlite3.connect(self.database)) as connection:
            for key, step, value, is_nan in connection.execute(query, (run.id,)):
                curves.setdefault(key, []).append((step, float("nan") if is_nan else value))
        return {key: tuple(points) for key, points in curves.items()}

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        return {}

    def sample(self, trial: Run) -> Sample | None:
        return Sample(int(trial.name.rpartition("_")[2]), trial.parameters)

    def logs(self, run: Run) -> Mapping[str, Path]:
        log = run.folder / "log.txt"
        return {"0": log} if log.is_file() else {}

    def services(self, run: Run) -> tuple[Service, ...]:
        return ()


class MemoryRegistry:
    """Implements `ml.backends.model_registry.Registry`."""

    exists = shared = None

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._aliases: dict[tuple[str, str], str] = {}

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        registered = [version for version in self.versions(model) if version.digest == digest]
        if registered:
            return registered[-1]
        number = str(len(self.versions(model)) + 1)
        self._versions.append(Version(model, number, digest, project, run, ""))
        return self._versions[-1]

    def versions(self, model: str | None = None) -> Sequence[Version]:
        return [version for version in self._versions if model in (None, version.model)]

    def find(self, model: str, version: str) -> Version:
        for registered in self.versions(model):
            if registered.version == version:
                return registered
        raise UserError(Problem("no-such-version", f"there is no version {version} of `{model}`"))

    def champion(self, model: str, environment: str) -> Version | None:
        number = self._aliases.get((environment, model))
        return self.find(model, number) if number else None

    def promote(self, version: Version, environment: str, deployment_digest: str = "") -> None:
        self._aliases[environment, version.model] = version.version
        versions = self.versions(version.model)
        for other, code in later_releases(versions, version, environment, deployment_digest):
            left = {one for one in other.served if one[:2] != (environment, code)}
            self._set(other, served=frozenset(left))
        known = self.find(version.model, version.version)
        if environment not in known.served_in(deployment_digest):
            mark = (environment, deployment_digest, datetime.now(UTC))
            self._set(known, served=known.served | {mark})

    def demote(self, model: str, environment: str) -> None:
        self._aliases.pop((environment, model), None)

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        known = self.find(version.model, version.version)
        kept = {*known.kept, (sha256, datetime.now(UTC))}
        return self._set(version, evidence=sha256, kept=frozenset(kept))

    def _set(self, version: Version, **changes: Any) -> Version:
        known = self.find(version.model, version.version)
        changed = replace(known, **changes)
        self._versions[self._versions.index(known)] = changed
        return changed


class MemoryBackend:
    """Implements `ml.backends.base.Backend`; files of runs are in `folder`."""

    name = "memory"
    root = Path()
    assets = cleaner = resources = resumption = prepare = serve_pages = None
    environments = requests = cached = None
    endpoints: Endpoints = endpoint
    servers: Servers = endpoint
    candidate = staticmethod(endpoint.candidate)
    audit_log = LocalAuditLog()
    simulated = False

    def __init__(self, folder: Path, verifier: Verifier | None = None) -> None:
        self.verifier = verifier
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        database = folder / "metrics.db"
        with closing(sqlite3.connect(database)) as connection:
            for table, columns in zip(("metrics", "latest_metrics"), _TABLES, strict=True):
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        self.runs = MemoryRuns(database)
        self.registry = MemoryRegistry()
        self._started = 0
        # Run id → process of each running command, for cancellation.
        self._going: dict[str, subprocess.Popen[bytes]] = {}

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        if isinstance(plan, PipelinePlan):
            hint = "run its steps one by one"
            return (Problem("pipeline", "the job is a pipeline", "a job", hint, plan.place),)
        command = plan.trial if isinstance(plan, SweepPlan) else plan
        policy = plan.early_termination if isinstance(plan, SweepPlan) else None
        places = [
            *([policy.place] if policy else []),
            *([command.distribution.place] if command.distribution else []),
            *([command.places["resources.instance_count"]] if command.instance_count > 1 else []),
        ]
        hint = "run it on another backend"
        return tuple(Problem("one-process", "more than it does", "", hint, p) for p in places[:1])

    def differences(self, plan: Plan) -> tuple[str, ...]:
        return ("memory: compute → this machine",)

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        self._started += 1
        name = f"memory_{self._started}"
        if isinstance(plan, CommandPlan):
            begun = self._begun(name, plan.experiment)
            self.runs.kept[name] = Entry(begun, "command", self._lineage(plan))
            watch(Event("started", begun))
            run = self._command(plan, name, {})
        else:
            assert isinstance(plan, SweepPlan)
            run = self._sweep(plan, name, watch)
        kind = "sweep" if run.trials else "command"
        self.runs.kept[run.name] = Entry(run, kind, self._lineage(plan))
        watch(Event("ended", run))
        return run

    def cancel(self, name: str) -> Run:
        run = self.runs.find(name)
        if run.status not in OPEN:
            raise UserError(Problem("run-ended", f"{run.name} is {run.status}"))
        while run.name not in self._going:
            time.sleep(0.05)
        os.killpg(self._going.pop(run.name).pid, signal.SIGKILL)
        while (run := self.runs.find(name)).status in OPEN:
            time.sleep(0.05)
        return run

    def _begun(self, name: str, experiment: str) -> Run:
        return Run(name, name, "Running", experiment, self._folder / "runs" / name, time.time())

    def _command(self, plan: CommandPlan, name: str, sampled: Mapping[str, Any]) -> Run:
        run = self._begun(name, plan.experiment)
        outputs = {output: run.folder / "outputs" / output for output in plan.outputs}
        for output, path in outputs.items():
            is_file = plan.outputs[output].type == "uri_file"
            (path.parent if is_file else path).mkdir(parents=True, exist_ok=True)
        run.folder.mkdir(parents=True, exist_ok=True)
        inputs = {
            key: None if data.value is None and data.path is None else str(data.value or data.path)
            for key, data in plan.inputs.items()
        }
        values = {key: str(value) for key, value in sampled.items()}
        command = resolve_command(plan.command, inputs, outputs, values, plan.places.get("command"))
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        tracking = {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.runs.database}",
            "MLFLOW_RUN_ID": run.id,
            "MLFLOW_EXPERIMENT_NAME": plan.experiment,
        }
        log = run.folder / "log.txt"
        status: Status = "Completed"
        error = None
        with log.open("w") as stream:
            try:
                process = self._going[name] = subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=snapshot.copy(plan.code) if plan.code else run.folder,
                    env={
                        **os.environ,
                        "PATH": search,
                        "PYTHONDONTWRITEBYTECODE": "1",  # keep the copy of the code unchanged
                        **plan.environment_variables,
                        **tracking,
                    },
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                if process.wait(plan.timeout_s) and name not in self._going:
                    status, error = "Canceled", Problem("canceled", "it was cancelled")
                elif process.returncode:
                    status, place = "Failed", plan.places.get("command", plan.place)
                    found = f"the command exited with {process.returncode}: {log.read_text()}"
                    error = Problem("script-failed", found, place=place)
            except subprocess.TimeoutExpired:
                status, error = "Canceled", Problem("timed-out", f"over {plan.timeout_s} s")
                os.killpg(process.pid, signal.SIGKILL)
        literals = {key: data.value for key, data in plan.inputs.items() if data.is_literal}
        return replace(
            run,
            status=status,
            ended=time.time(),
            error=error,
            parameters={k: v for k, v in literals.items() if v is not None} | dict(sampled),
            metrics=self.runs.metrics(run),
            outputs={key: path for key, path in outputs.items() if path.exists()},
        )

    def _sweep(self, plan: SweepPlan, name: str, watch: Watch) -> Run:
        run = self._begun(name, plan.experiment)
        watch(Event("started", run))
        sampler = sampler_for(plan, plan.seed or 0)
        scores: dict[str, float | None] = {}
        while len(run.trials) < plan.max_total_trials and (suggestion := sampler.ask()):
            trial_name = f"{name}_{len(run.trials)}"
            watch(Event("trial_started", run, self._begun(trial_name, plan.experiment)))
            trial = self._command(plan.trial, trial_name, suggestion.values)
            curve = [v for _, v in self.runs.all_curves(trial).get(plan.primary_metric, ())]
            value = score(curve, plan.goal) if trial.status == "Completed" else None
            sampler.tell(suggestion.number, curve, value)
            scores[trial.name] = value
            run = replace(run, trials=(*run.trials, trial), best=leader(scores, plan.goal))
            watch(Event("trial_ended", run, trial))
        if run.best is None:
            error = Problem("no-trial-completed", "no trial completed")
            return replace(run, status="Failed", ended=time.time(), error=error)
        best = run.trial(run.best)
        return replace(
            run,
            status="Completed",
            ended=time.time(),
            outputs=best.outputs,
            metrics=best.metrics,
            parameters=best.parameters,
        )

    def _lineage(self, plan: Plan) -> dict[str, Any]:
        command = plan.trial if isinstance(plan, SweepPlan) else plan
        assert isinstance(command, CommandPlan)
        objective = (
            {"objective": {"primary_metric": plan.primary_metric, "goal": plan.goal}}
            if isinstance(plan, SweepPlan)
            else {}
        )
        commit = trees.commit(command.code) if command.code else None
        copy = snapshot.copy(command.code) if command.code else None
        return {
            "spec": str(plan.place),
            "display_name": plan.display_name,
            "tags": dict(plan.tags),
            "code": {
                "commit": commit.id if commit else "",
                "dirty": not (commit and copy and commit.has_folder(copy)),
                "digest": f"sha256:{copy.name if copy else ''}",
            },
            "data": {
                name: {
                    "asset": str(data.asset or ""),
                    "digest": data.asset.digest if data.asset else "",
                }
                for name, data in command.inputs.items()
                if not data.is_literal
            },
            "environment": command.environment.reference,
            "environment_digest": f"sha256:{hashlib.sha256(b'').hexdigest()}",
            "parent": None,
            **objective,
        }
