"""A drill: a canary of the live version with an injected fault.

It shows that the canary rolls back a bad version while the good one serves. Nothing is declared or
promoted, and green is removed at the end whatever the canary decides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.endpoints import ModelDeployment
from ml.core.errors import UserError
from ml.release import audit
from ml.release.canary import canary
from ml.release.canary.canary import Outcome, clear_canary, start_trial
from ml.release.declaration import desired_state, projects
from ml.release.promotion.gate_check import load_gates
from ml.release.rollout import faulty


@dataclass(frozen=True)
class Drilled:
    """The result of a drill."""

    endpoint: str
    version: str
    fault: str
    outcome: Outcome
    failed: int  # failed requests to the old version

    @property
    def noticed(self) -> bool:
        """True if green was rolled back and no request to the old version failed."""
        return self.outcome.kind == "rolled-back" and not self.failed


def drill(
    backend: Backend, project: str, fault: str, progress: Callable[[str], None] = lambda _: None
) -> Drilled:
    """Run a canary in `local`: the live version with the fault against the one without.

    If an apply or a drill is running, wait for it. Raises UserError for an unknown fault, and when
    nothing serves or green does not start.
    """
    if fault not in faulty.FAULTS:
        faults = "; ".join(f"{name}: {effect}" for name, effect in faulty.FAULTS.items())
        raise UserError.with_code("no-such-fault", f"there is no fault `{fault}`", faults)
    target = projects.find(backend.root, project)
    samples, endpoints = target.samples(), backend.endpoints
    name = endpoints.name_of(target.endpoint(), desired_state.LOCAL)
    waiting = partial(progress, "another apply is running; waiting")
    with desired_state.rollout_lock(target.name, desired_state.LOCAL, waiting), ExitStack() as undo:
        live, _ = endpoints.ensure(name)
        if live.canary and live.canary.experiment:
            raise UserError.with_code(
                "experiment-running",
                f"an experiment is running: {live.canary.experiment}",
                "an endpoint without one",
                f"ml ab stop {live.canary.experiment}",
            )
        progress(
            f"starting version {live.deployment.version} with the fault, and again as baseline"
        )
        with endpoints.locked(name):
            blue = clear_canary(endpoints, name) or live
            bad = with_fault(blue.deployment, fault)
            trial = start_trial(
                endpoints, name, blue, bad, samples, undo, baseline=True, smoke=False
            )
        strategy = desired_state.strategy(backend, target.name, desired_state.LOCAL).within(
            load_gates(target)["latency"].number("p95_ms")
        )
        outcome = canary.run_canary(endpoints, name, trial, strategy, samples, progress=progress)
    green = trial.server.slot.name
    failed = sum(count for slot, count in outcome.errors.items() if slot != green)
    audit.append(
        backend.audit_log,
        "drill",
        {
            "endpoint": name,
            "version": blue.deployment.version,
            "fault": fault,
            "canary": outcome.to_json(),
        },
    )
    return Drilled(name, blue.deployment.version, fault, outcome, failed)


def with_fault(deployment: ModelDeployment, fault: str) -> ModelDeployment:
    """Return the same deployment, its scoring script wrapped in one that injects the fault."""
    return replace(
        deployment,
        scoring_script=str(Path(faulty.__file__).resolve()),
        environment_variables={
            **deployment.environment_variables,
            faulty.SCRIPT: str(deployment.code / deployment.scoring_script),
            faulty.FAULT: fault,
        },
    )
