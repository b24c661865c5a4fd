"""The local backend: what it refuses, what differs from Azure ML, and how it runs a plan."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from typing import TextIO

from ml.backends.base import Run, Watch, unwatched
from ml.backends.local import faults, lineage, recovery, snapshot
from ml.backends.local.command import run_command
from ml.backends.local.execution import Session
from ml.backends.local.files import COPIED
from ml.backends.local.interruption import Interruption
from ml.backends.local.process import Reaper, cores
from ml.backends.local.sweep import concurrency, run_sweep
from ml.backends.local.tracking import Tracking
from ml.specs.plan import CommandPlan, Plan, SweepPlan
from ml.specs.problems import Exit, Place, Problem, Refused

# Fields that say something about Azure's machines or services and nothing about the job itself.
MEANINGLESS = frozenset(
    {"identity", "services", "queue_settings", "parent_job_name", "notification_setting"}
    | {f"resources.{key}" for key in ("instance_type", "shm_size", "docker_args", "properties")}
)


class LocalBackend:
    """Runs command and sweep jobs as processes of this machine (see `ml.backends.base.Backend`).

    `echo` is where the output of a command job is shown while it runs; a sweep's trials write to
    their logs alone. Not honoured, and said so: compute, environment, resources, the isolation of
    a node (a script can read whatever its user can).
    """

    name = "local"

    def __init__(self, echo: TextIO | None = None) -> None:
        self._echo = echo

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        """What this machine cannot honour: several nodes, launchers, data that is not here."""
        command = _command(plan)
        found: list[Problem] = []
        if command.instance_count > 1:
            found.append(
                Problem(
                    "several-nodes",
                    f"the job asks for {command.instance_count} nodes",
                    "one node: this machine",
                    "run it with `--set resources.instance_count=1`",
                    _place(command, "resources.instance_count", "resources"),
                )
            )
        if command.distribution is not None:
            found.append(
                Problem(
                    "distribution",
                    f"the job is launched by {command.distribution.type}",
                    "a plain command: this backend has no launchers yet",
                    "leave `distribution:` out for one process",
                    command.distribution.place,
                )
            )
        for name, data in command.inputs.items():
            if not data.is_literal and data.path is None and data.source:
                found.append(
                    Problem(
                        "data-not-here",
                        f"`inputs.{name}` is `{data.source}`, which this machine does not hold",
                        "a path in the repository or an asset of its data specs",
                        f"run it with `--set inputs.{name}=PATH`",
                        data.place,
                    )
                )
        return tuple(found)

    def differences(self, plan: Plan) -> tuple[str, ...]:
        """What a person should know before the run, one line each."""
        command = _command(plan)
        said = [
            f"local: compute `{command.compute or 'none'}` → this machine, {_cores(cores())}",
            f"local: environment `{command.environment.reference or 'inline'}` → this interpreter, "
            f"Python {platform.python_version()}",
        ]
        if isinstance(plan, SweepPlan) and concurrency(plan) < plan.max_concurrent_trials:
            said.append(
                f"local: {plan.max_concurrent_trials} trials at once → {concurrency(plan)}, "
                "one a core"
            )
        copied = [
            name
            for name, data in command.inputs.items()
            if data.path is not None and data.mode in COPIED
        ]
        said += [f"local: input `{name}` → a copy that the job may change" for name in copied]
        said += [
            f"local: output `{name}` → kept in the job's folder, not registered as `{output.asset}`"
            for name, output in command.outputs.items()
            if output.asset is not None
        ]
        said += [
            f"local: `{field}` ({place}) has no meaning here"
            for field, place in {**plan.places, **command.places}.items()
            if field in MEANINGLESS
        ]
        return tuple(said)

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Carry the plan out; see the protocol. Raises Refused when the disk or the store fails."""
        _demand_inputs(_command(plan))
        with ExitStack() as stack:
            stack.enter_context(faults.told())
            interruption = stack.enter_context(Interruption())
            code = snapshot.take(_command(plan).code)
            tracking = Tracking()
            recovery.close_abandoned(tracking)
            watchman = Reaper()
            stack.callback(watchman.close)
            at_once = concurrency(plan) if isinstance(plan, SweepPlan) else 1
            threads = max(1, cores() // at_once)
            origin = lineage.of(_command(plan), code)
            session = Session(tracking, watchman, code, origin, threads)
            if isinstance(plan, SweepPlan):
                return run_sweep(plan, session, interruption, watch)
            return run_command(plan, session, interruption, watch, self._echo)


def _command(plan: Plan) -> CommandPlan:
    return plan.trial if isinstance(plan, SweepPlan) else plan


def _cores(count: int) -> str:
    return f"{count} core{'s' if count != 1 else ''}"


def _demand_inputs(plan: CommandPlan) -> None:
    """The data may have gone since the plan was made."""
    missing = [
        Problem(
            "input-not-found",
            f"`inputs.{name}`: there is no file or folder {data.path}",
            f"a {data.type}",
            f"check the path, or run it with `--set inputs.{name}=PATH`",
            data.place,
        )
        for name, data in plan.inputs.items()
        if data.path is not None and not data.path.exists()
    ]
    if missing:
        raise Refused(*missing, exit_code=Exit.WRONG_CALL)


def _place(plan: CommandPlan, *fields: str) -> Place:
    return next((plan.places[name] for name in fields if name in plan.places), plan.place)
