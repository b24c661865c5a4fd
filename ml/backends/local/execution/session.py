"""What one command of a run works with (`Session`), and what all of them share (`Preparation`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml.backends.local import process_environment
from ml.backends.local.execution import saved_plan
from ml.backends.local.pool.pool import Pool
from ml.backends.local.process_environment import HERE, Interpreter, Interpreters
from ml.backends.local.processes.spot import Evictions
from ml.backends.local.runs import lineage
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.snapshot import Snapshot
from ml.core.imports import demand_packages_alone
from ml.specs.assets import assets
from ml.specs.plan.plans import (
    CommandPlan,
    Plan,
    commands,
    supplied_inputs,
)


@dataclass(frozen=True)
class Session:
    """What one command, or each trial of a sweep, runs with.

    `threads` is its share of the cores, `passed` are variables of this process.
    """

    tracking: Tracking
    pool: Pool
    snapshot: Snapshot | None
    lineage: dict[str, Any]
    threads: int
    interpreter: Interpreter = HERE
    evictions: Evictions = field(default_factory=Evictions)
    passed: Mapping[str, str] = field(default_factory=process_environment.of_the_caller)


@dataclass
class Preparation:
    """The state that all parts of a run share.

    Code is copied once, before the first step: a file that is saved later changes no step.
    """

    tracking: Tracking
    pool: Pool
    snapshots: Mapping[Path | None, Snapshot | None]
    interpreters: Interpreters = field(default_factory=dict)
    # The assets that the pipeline was given, by content: a step that hands one on unchanged (one
    # that checks the data) does not make other data of it.
    assets: Mapping[str, str] = field(default_factory=dict)
    # The lineage of every folder of code, as far as it is known.
    code: dict[Path | None, dict[str, Any]] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)
    # For every command that is started.
    evictions: Evictions = field(default_factory=Evictions)

    def __post_init__(self) -> None:
        for interpreter in (HERE, *self.interpreters.values()):
            demand_packages_alone(interpreter.python)

    def session(self, plan: CommandPlan, parent: str | None, threads: int) -> Session:
        """What a command runs with: its code, its share of the cores, and where it comes from.

        `parent` is the run above. The data of a job without one is read for its digest only where
        the digest is recorded anyway.
        """
        snapshot = self.snapshots[plan.code]
        interpreter = self.interpreters.get(plan.environment, HERE)
        origin = lineage.of(plan, snapshot, self.code.get(plan.code), interpreter)
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

    def keep(self, folder: Path, plan: saved_plan.Lowered) -> None:
        """Save the plan with which a run is started, so that it can be resumed."""
        for command in commands(plan):
            interpreter = self.interpreters.get(command.environment, HERE)
            code = self.code.get(command.code)
            origin = lineage.of(command, self.snapshots[command.code], code, interpreter)
            self.code[command.code] = origin["code"]
        saved_plan.save(folder, plan, self.code, self.digest, bool(self.interpreters))

    def digest(self, path: Path) -> str:
        """Return the sha256 of data, cached at the first request; "" if it does not exist.

        Steps write each output once, so all steps of a pipeline see its data in one state.
        """
        if path not in self._digests:
            self._digests[path] = assets.digest(path) if path.exists() else ""
        return self._digests[path]


def assets_of(plan: Plan) -> dict[str, str]:
    """The assets that a plan is given: digest of the content → `azureml:name:version`."""
    named = (data.asset for _, data in supplied_inputs(plan) if data.asset)
    return {asset.digest: str(asset) for asset in named if asset.digest}
