"""A drill: the live version, with a fault injected, goes through a canary.

It shows that the canary rolls back a bad version while the good one serves. Nothing is declared or
promoted, and green is removed at the end whatever the canary decides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ml.core.errors import Problem, Refused
from ml.release.canary import baseline, canary
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state, projects
from ml.release.log import audit
from ml.release.rollout import cleanup
from ml.serving import endpoint, faulty, server
from ml.serving.endpoint import Canary
from ml.serving.server import Launch


@dataclass(frozen=True)
class Drilled:
    """What the canary made of a bad green; blue's and the baseline's failed requests count too."""

    endpoint: str
    version: str
    fault: str
    outcome: Outcome
    failed: int

    @property
    def noticed(self) -> bool:
        """Whether green was taken back, and no request to the old version failed."""
        return self.outcome.kind == "rolled-back" and not self.failed


def drill(project: str, fault: str, progress: Callable[[str], None] = lambda _: None) -> Drilled:
    """Try what serves in `local` with the fault beside itself.

    One apply or drill at a time. Raises Refused for another fault, and when nothing serves or
    green does not start.
    """
    if fault not in faulty.FAULTS:
        faults = "; ".join(f"{name}: {what}" for name, what in faulty.FAULTS.items())
        raise Refused(Problem("no-such-fault", f"there is no fault `{fault}`", faults))
    target = projects.find(project)
    samples = target.samples()
    name = desired_state.endpoint_of(target.deployment().endpoint, desired_state.LOCAL)
    waiting = partial(progress, "another apply is running; waiting")
    with desired_state.rollout_lock(target.name, desired_state.LOCAL, waiting), ExitStack() as undo:
        live, _ = endpoint.ensure(name)
        if live.canary and live.canary.experiment:
            about = f"an experiment is on: {live.canary.experiment}"
            raise Refused(
                Problem(
                    "experiment-on",
                    about,
                    "an endpoint without one",
                    f"ml ab stop {live.canary.experiment}",
                )
            )
        with endpoint.locked(name):
            blue = cleanup.clear_canary(name) or live
            slot = endpoint.other_slot(name)
            undo.callback(cleanup.stop_unused, name)
            bad = spoilt(blue.launch, fault)
            second = baseline.begin(blue, samples)  # it loads while green does
            trial = Canary(server.start(slot, bad), bad, 0)
            trial = replace(trial, baseline=second())
            undo.callback(cleanup.drain_router, name)
            undo.callback(canary.set_canary, name, None)
            endpoint.switch(name, replace(blue, canary=trial))
        strategy = desired_state.strategy(target.name, desired_state.LOCAL)
        outcome = canary.lead(name, trial, strategy, samples, progress=progress)
    failed = sum(count for of, count in outcome.errors.items() if of != slot.name)
    audit.append(
        "drill",
        {
            "endpoint": name,
            "version": blue.launch.version,
            "fault": fault,
            "canary": outcome.to_json(),
        },
    )
    return Drilled(name, blue.launch.version, fault, outcome, failed)


def spoilt(launch: Launch, fault: str) -> Launch:
    """The same launch, its scoring script behind one that puts the fault in."""
    return replace(
        launch,
        scoring_script=str(Path(faulty.__file__).resolve()),
        environment_variables={
            **launch.environment_variables,
            faulty.SCRIPT: str(launch.code / launch.scoring_script),
            faulty.FAULT: fault,
        },
    )
