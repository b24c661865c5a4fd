"""A pipeline shown while it goes on: a table of steps on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ml.backends.runs import Event, Run
from ml.core.repository import shown
from ml.specs.plan.plan import PipelinePlan, Plan, SweepPlan

if TYPE_CHECKING:
    from rich.table import Table


class StepLines:
    """A line when a step starts, and one when it has ended."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._plan = plan

    def __call__(self, event: Event) -> None:
        """Write the line, if the event is worth one."""
        if event.kind == "started":
            count = len(self._plan.steps)
            text = f"{count} step{'s' if count != 1 else ''}"
            if event.run.pauses:
                text += f", {len(event.run.steps)} of them done: it goes on"
            sys.stderr.write(f"{event.run.name}: {text}\n")
        if event.step is None:
            return
        name = event.step.name.removeprefix(f"{event.run.name}.")
        if event.kind == "step_started":
            sys.stderr.write(f"{name} started\n")
        elif event.kind == "step_ended":
            sys.stderr.write(f"{name} {ending(event.step)}\n")
        elif event.kind == "trial_ended" and event.trial is not None:
            trials = event.step.trials
            ended = sum(trial.ended is not None for trial in trials)
            best = f", best so far {event.step.best}" if event.step.best else ""
            many = "trial" if ended == 1 else "trials"
            sys.stderr.write(f"{name} {ended} {many} ended{best}\n")
        sys.stderr.flush()


class StepRows:
    """The table: every step in its order, whether it waits, runs or has ended."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._plan = plan
        self._run: Run | None = None

    def __call__(self, event: Event) -> None:
        """Remember the state; the terminal is redrawn a few times a second."""
        self._run = event.run

    def render(self) -> Table:
        """The table as of now."""
        from rich.table import Table

        run = self._run
        steps = {step.name: step for step in (run.below() if run else ()) if "." in step.name}
        table = Table(title=run.name if run else self._plan.display_name, title_justify="left")
        for column in ("step", "status", "trials", "time"):
            table.add_column(column, overflow="fold")
        for name, plan in _plans_of_steps(self._plan, f"{run.name}." if run else ""):
            short = name.partition(".")[2] if run else name
            table.add_row(*_cells(short, plan, steps.get(name)))
        return table


def _plans_of_steps(plan: PipelinePlan, at: str) -> list[tuple[str, Plan]]:
    plans: list[tuple[str, Plan]] = []
    for name, step in plan.steps.items():
        plans.append((at + name, step.plan))
        if isinstance(step.plan, PipelinePlan):
            plans += _plans_of_steps(step.plan, f"{at}{name}.")
    return plans


def _cells(name: str, plan: Plan, step: Run | None) -> tuple[str, str, str, str]:
    if step is None:
        return name, "waits", "", ""
    trials = ""
    if isinstance(plan, SweepPlan) and step.trials:
        ended = sum(trial.ended is not None for trial in step.trials)
        trials = f"{ended} of {most_trials(plan)}"
    return name, step_outcome(step), trials, f"{step.active_s:.0f} s"


def most_trials(plan: SweepPlan) -> int:
    """How many trials it comes to at most: a grid has no more than it has points."""
    if plan.algorithm != "grid":
        return plan.max_total_trials
    from ml.sweeps.space import size

    return min(plan.max_total_trials, size(plan.search_space))


def outcome(run: Run) -> str:
    """The status, what ended it when something did, and how often it was started again."""
    details = [run.ended_by] if run.ended_by else []
    if run.restarts:
        count = len(run.restarts)
        details.append(f"evicted, restarted {'once' if count == 1 else f'{count} times'}")
    return f"{run.status} ({', '.join(details)})" if details else run.status


def step_outcome(step: Run) -> str:
    """The status of a step, and what it owes it to."""
    return f"reused from {step.reused_from}" if step.reused_from else outcome(step)


def ending(step: Run) -> str:
    """How a step ended, with how long it took and why it did not complete."""
    words = [step_outcome(step)]
    if not step.reused_from and step.id:
        words.append(f"in {step.active_s:.1f} s")
    if step.error:
        words.append(f"[{step.error.code}] see {shown(step.folder)}")
    words += [warning.found for warning in step.warnings if not step.id]
    words += [f"[{warning.code}]" for warning in step.warnings if step.id]
    return " ".join(words)


def counts(run: Run) -> str:
    """`3 Completed (1 reused), 1 Failed`."""
    counted: dict[str, int] = {}
    for step in run.steps:
        status = "reused" if step.reused_from else step_outcome(step)
        counted[status] = counted.get(status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counted.items())
