"""The local backend: runs plans, and reports unsupported parts and differences from Azure ML."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from ml.backends import snapshot
from ml.backends.base import DATA_NOT_HERE, EnvironmentComparison, Options, Resumption
from ml.backends.endpoints import Endpoints, Servers
from ml.backends.local import automl_sweep, distribution, process_environment, registration
from ml.backends.local.cleaning import LocalCleaner
from ml.backends.local.environments import building, requirements
from ml.backends.local.execution import resumption, reuse
from ml.backends.local.execution.command import Preparation, assets_of
from ml.backends.local.execution.pipeline import drive, start_task
from ml.backends.local.execution.sweep import concurrency
from ml.backends.local.files import COPIED
from ml.backends.local.model_registry import LocalRegistry
from ml.backends.local.parallel import parallel
from ml.backends.local.pool.pool import Pool
from ml.backends.local.process_environment import Interpreters
from ml.backends.local.processes import interruption as interruptions
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import Reaper, cores
from ml.backends.local.processes.spot import Evictions
from ml.backends.local.runs import jobs, lifecycle
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.backends.local.tracking import server, tracking
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.runs import Event, Run, Watch, unwatched
from ml.core import faults, files, home, repository
from ml.core.errors import Exit, Problem, UserError
from ml.specs.assets import assets
from ml.specs.plan.plans import (
    AutoMLPlan,
    CommandPlan,
    Environment,
    InputPlan,
    PipelinePlan,
    Plan,
    SweepPlan,
    commands,
    searches,
    supplied_inputs,
    sweeps,
)

# Fields about Azure's compute or services that do not affect the job itself.
MEANINGLESS = frozenset(
    {"identity", "services", "queue_settings", "parent_job_name", "notification_setting"}
    | {f"resources.{key}" for key in ("instance_type", "shm_size", "docker_args", "properties")}
    | {f"distribution.{key}" for key in ("port", "address", "include_dashboard", "dashboard_port")}
    | {f"distribution.{node}_node_additional_args" for node in ("head", "worker")}
)


class LocalAuditLog:
    """The audit log `audit.jsonl` in the local home; implements `ml.backends.base.AuditLog`."""

    @property
    def path(self) -> Path:
        """The path of the file."""
        return home.home() / "audit.jsonl"

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        with faults.as_user_errors(), files.locked(self.path.with_suffix(".lock")):
            # Append atomically: a partial line would break the hash chain.
            files.append(self.path, line(self.read()), durable=True)


class LocalBackend:
    """Runs command, sweep and pipeline jobs as processes of this machine (see `Backend`).

    Options: `echo` receives the output of a command job while it runs; a sweep's trials write only
    to their logs. `isolated` runs every command in an environment built from its conda file, and
    `say` receives the progress. `evict_after` applies to every command. Compute, environment and
    resources of a spec are ignored and reported. A job can read every file that its user can.
    """

    name = "local"
    simulated = True
    runs = LocalRuns()
    cleaner = LocalCleaner()
    registry = LocalRegistry()
    endpoints: Endpoints = endpoint
    servers: Servers = endpoint
    candidate = staticmethod(endpoint.candidate)
    audit_log = LocalAuditLog()
    resumption: Resumption = resumption
    verifier = assets = resources = requests = None
    serve_pages = staticmethod(server.serve_pages)
    cancel = staticmethod(interruptions.cancel)
    prepare = staticmethod(tracking.prepare)  # MLflow takes seconds to create its database

    def __init__(self, options: Options | None = None) -> None:
        options = options or Options()
        self.root = options.root
        self._echo, self._isolated, self._say = options.echo, options.isolated, options.say
        self._evictions = Evictions(options.evict_after, options.evict_notice)

    def environments(self, plan: Plan) -> tuple[EnvironmentComparison, ...]:
        return tuple(
            EnvironmentComparison(
                requirements.as_json(environment),
                tuple(
                    f"{difference.dependency.place}: {difference}"
                    for difference in requirements.differences(environment)
                ),
            )
            for environment in building.environments(_compiled(plan))
        )

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        """Return a problem for each part of the plan that this machine cannot run.

        These are steps of other kinds, missing components, code or data, and missing launchers.
        """
        if plan.not_here:
            return plan.not_here
        if problems := [
            problem for search in searches(plan) for problem in automl_sweep.refusals(search)
        ]:
            return tuple(dict.fromkeys(problems))
        steps = _compiled(plan)
        problems = list(building.refusals(steps)) if self._isolated else []
        for command in commands(steps):
            problems += _launching(command, self._isolated)
            if command.parallel is not None:
                problems += parallel.refusals(command, command.parallel)
        problems += [
            Problem(
                DATA_NOT_HERE,
                f"`{field}` is `{data.source}`, which is not on this machine",
                "a path in the repository or an asset of its data specs",
                f"run it with `--set {field}=PATH`{_or_copied(data)}",
                data.place,
            )
            for field, data in supplied_inputs(plan)
            if not data.is_literal and data.path is None and data.source
        ]
        return tuple(dict.fromkeys(problems))

    def differences(self, plan: Plan) -> tuple[str, ...]:
        """Return one line for each difference between this run and a run on Azure."""
        lines: list[str] = []
        plan = _compiled(plan)
        here = f"this machine, {cores()} core{'s' if cores() != 1 else ''}"
        for command in commands(plan):
            lines.append(f"local: compute `{command.compute or 'none'}` → {here}")
            lines += distribution.differences(command)
            if command.parallel is not None:
                lines += parallel.differences(command)
        lines += [self._where(environment) for environment in building.environments(plan)]
        for sweep in sweeps(plan):
            requested, trials = sweep.max_concurrent_trials, concurrency(sweep)
            if trials < requested:
                lines.append(f"local: {requested} trials at once → {trials}, one a core")
            if sweep.hints.file:
                lines.append(f"local: {_hinted(sweep)}; Azure ML does not read them")
        for command in commands(plan):
            lines += [
                f"local: input `{name}` → a copy that the job may change"
                for name, data in command.inputs.items()
                if not data.is_literal and (data.path or data.source) and data.mode in COPIED
            ]
            lines += [
                f"local: variable `{name}` of the job → overridden by this run's value"
                for name in process_environment.TRACKING
                if name in command.environment_variables
            ]
        lines += registration.differences(plan)
        for places in (plan.places, *(command.places for command in commands(plan))):
            lines += [
                f"local: `{field}` ({place}) is ignored on this machine"
                for field, place in places.items()
                if field in MEANINGLESS
            ]
        return tuple(dict.fromkeys(lines))

    def _where(self, environment: Environment) -> str:
        """Return a line: which Python replaces the environment, and which packages differ."""
        name = f"local: environment `{environment.reference or 'inline'}`"
        if self._isolated and environment.dependencies is not None:
            recipe = building.recipe(environment)
            count = len(recipe.requirements)
            return f"{name} → built by uv, {count} packages, Python {recipe.python}"
        summary = requirements.summary(environment)
        return f"{name} → this interpreter, Python {platform.python_version()}; {summary}"

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Run the plan as `Backend.run`; raise UserError if the disk or the run store fails."""
        if plan.not_here:
            raise UserError(*plan.not_here, exit_code=Exit.CANNOT_HONOUR)
        _demand_inputs(plan)
        plan = _compiled(plan)
        with ExitStack() as stack:
            stack.enter_context(faults.as_user_errors())
            reaper = stack.enter_context(closing(Reaper()))
            interpreters: Interpreters = {}
            if self._isolated:
                ready = building.build_all(plan, reaper, self._say)
                interpreters = stack.enter_context(ready)
            interruption = stack.enter_context(Interruption())
            snapshots = snapshot.of_plan(plan)
            tracking = stack.enter_context(closing(Tracking()))
            lifecycle.close_abandoned(tracking)
            pool = stack.enter_context(closing(Pool(reaper)))
            preparation = Preparation(tracking, pool, snapshots, interpreters, assets_of(plan))
            preparation.evictions = self._evictions
            if isinstance(plan, SweepPlan) and plan.seed is None:
                plan = replace(plan, seed=secrets.randbelow(2**32))
            with jobs.new() as folder:
                preparation.keep(folder, plan)
                task = start_task(plan, preparation, folder, watch, cores(), echo=self._echo)
                run = drive(task, pool, interruption, watch)
        watch(Event("ended", run))
        return run

    def cached(self, plan: Plan, output: str) -> Run | None:
        """Return a cached run of the same plan; None if there is none, or for a sweep."""
        job = _compiled(plan)
        return None if isinstance(job, SweepPlan) else reuse.find_job(job, output)


def _compiled(plan: Plan) -> CommandPlan | SweepPlan | PipelinePlan:
    if isinstance(plan, AutoMLPlan) or any(searches(plan)):
        return automl_sweep.compile_plan(plan)
    return plan


def _launching(command: CommandPlan, is_isolated: bool) -> Iterator[Problem]:
    launcher = command.distribution
    if launcher is None:
        return
    if launcher.type not in distribution.LAUNCHERS:
        yield Problem(
            "unsupported-distribution",
            f"the job is launched by {launcher.type}",
            f"one of {', '.join(sorted(distribution.LAUNCHERS))}, which a local run supports",
            "delete `distribution:` to run one process",
            launcher.place,
        )
    elif launcher.type == "ray" and not (distribution.has_ray() or is_isolated):
        yield Problem(
            "unsupported-distribution",
            "the job is launched by ray, which is not installed here",
            "ray in this Python, or in the conda file of the job's environment",
            "uv pip install ray; or --isolated, or --on azure",
            launcher.place,
        )


def _hinted(sweep: SweepPlan) -> str:
    """Summarize a sweep's hints; raise UserError if the constraints exclude every point."""
    from ml.sweeps.samplers import feasible_share

    points, constraints = len(sweep.hints.points), len(sweep.hints.constraints)
    parts = [f"sampled by {sweep.hints.sampler}"] if sweep.hints.sampler else []
    if points:
        parts.append(f"{points} point{'s' if points != 1 else ''} to try first")
    if constraints:
        plural = ("", "s") if constraints != 1 else ("s", "")
        share = feasible_share(sweep)
        parts.append(
            f"{constraints} constraint{plural[1]} that leave{plural[0]} {share:.2g} of the space"
        )
    return f"hints `{sweep.hints.file}` → {', '.join(parts)}"


def _demand_inputs(plan: Plan) -> None:
    """Raise UserError if a local input of the plan does not exist any more."""
    missing = [
        Problem(
            "input-not-found",
            f"`{field}`: no file or folder {data.path}",
            f"a {data.type}",
            f"check the path, or run it with `--set {field}=PATH`",
            data.place,
        )
        for field, data in supplied_inputs(plan)
        if data.path is not None and not data.path.exists()
    ]
    if missing:
        raise UserError(*missing, exit_code=Exit.WRONG_CALL)


def _or_copied(data: InputPlan) -> str:
    """Return a hint with the folder for a copy of the data asset; "" without a version number."""
    if data.asset is None or data.asset.version.startswith("@"):
        return ""
    place = repository.shown(assets.local_copy_path(data.asset.name, data.asset.version))
    return f", or put a copy of the data in {place}"
