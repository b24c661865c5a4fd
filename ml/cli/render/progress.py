"""Show a run's progress, as a table on a terminal and as lines elsewhere; summarise its end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ml.backends.base import Backend
from ml.backends.runs import Event, Run, Watch, narrated, unwatched, without_log
from ml.cli.options import repeated_on
from ml.cli.render import output
from ml.cli.render.runs_text import number, outcome, output_text, parameters, ranked, short
from ml.core.repository import shown
from ml.reports.formatting import count
from ml.specs.plan.plans import AutoMLPlan, CommandPlan, PipelinePlan, Plan, SweepPlan

if TYPE_CHECKING:
    from rich.table import Table

# The table shows the running trials and at most this many of the best ended ones.
BEST_ROWS = 10
REFRESHES_PER_S = 4
# Plans that have trials.
Search = SweepPlan | AutoMLPlan
# Type of plan → (label, path in the run's folder) of its logs.
_LOGS: dict[type, tuple[str, str]] = {
    CommandPlan: ("log", "logs/std_log.txt"),
    SweepPlan: ("trials", "trials"),
    AutoMLPlan: ("trials", "trials"),
    PipelinePlan: ("steps", "steps"),
}


@contextmanager
def watching(plan: Plan, show: bool) -> Iterator[Watch]:
    """Yield a callback for the backend's events that shows the plan's progress on stderr.

    If `show` is False, the callback does nothing.
    """
    if not show:
        yield unwatched
        return
    if isinstance(plan, CommandPlan):
        yield narrated(output.show_step)
        return
    progress: SweepProgress | PipelineProgress
    progress = PipelineProgress(plan) if isinstance(plan, PipelinePlan) else SweepProgress(plan)
    if not sys.stderr.isatty():
        yield narrated(output.show_step, progress.line)
        return
    from rich.live import Live

    run: Run | None = None

    def remember(event: Event) -> None:
        nonlocal run
        run = event.run

    with Live(
        get_renderable=lambda: progress.table(run),
        console=output.console(stderr=True),
        refresh_per_second=REFRESHES_PER_S,
    ) as live:
        yield remember
        live.refresh()


class SweepProgress:
    """Shows a sweep: a line for each ended trial, or a table of running and best trials."""

    def __init__(self, plan: Search) -> None:
        self._plan = plan

    def line(self, event: Event) -> str:
        """Format the event as a line; "" for an event that is not shown."""
        most = most_trials(self._plan)
        if event.kind == "started":
            return _start(event.run, count(most, "trial"), len(event.run.trials), "started")
        if event.kind != "trial_ended" or event.trial is None:
            return ""
        trial, metric = event.trial, self._plan.primary_metric
        words = [f"{_ended(event.run.trials)}/{most} {trial.name} {outcome(trial)}"]
        if metric in trial.metrics:
            words.append(f"{metric} {number(trial.metrics[metric])}")
        words.append(f"({parameters(_sampled(self._plan, trial))})")
        problems = (*([trial.error] if trial.error else []), *trial.warnings)
        words += [f"[{problem.code}]" for problem in problems]
        if event.run.best:
            words.append(f"best so far {event.run.best}")
        return " ".join(words)

    def table(self, run: Run | None) -> Table:
        """Return a table of the running trials and the best ended ones; `run` is None at first."""
        from rich.table import Table

        plan, trials = self._plan, run.trials if run else ()
        running = [trial for trial in trials if trial.ended is None]
        ended = [trial for trial in trials if trial.ended is not None]
        table = Table(
            title=f"{run.name if run else plan.display_name}: {len(ended)} of "
            f"{most_trials(plan)} trials ended, {len(running)} running",
            title_justify="left",
        )
        for column in ("trial", "status", plan.primary_metric, *_sampled_names(plan), "time"):
            table.add_column(column, overflow="fold")
        for trial in running + ranked(ended, plan.primary_metric, plan.goal)[:BEST_ROWS]:
            is_best = run is not None and trial.name == run.best
            style = "bold green" if is_best else ("" if trial.ended is None else "dim")
            table.add_row(*self._cells(trial), style=style)
        return table

    def _cells(self, trial: Run) -> list[str]:
        value = trial.metrics.get(self._plan.primary_metric)
        values = [short(trial.parameters.get(name, "")) for name in _sampled_names(self._plan)]
        took = (trial.ended or time.time()) - trial.started
        metric = "" if value is None else number(value)
        return [trial.name, outcome(trial), metric, *values, f"{took:.0f} s"]


class PipelineProgress:
    """Shows a pipeline: a line when a step starts or ends, or a table of every step in order."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._plan = plan

    def line(self, event: Event) -> str:
        """Format the event as a line; "" for an event that is not shown."""
        run, step = event.run, event.step
        if event.kind == "started":
            return _start(run, count(len(self._plan.steps), "step"), len(run.steps), "ended")
        if step is None:
            return ""
        name = step.name.removeprefix(f"{run.name}.")
        match event.kind:
            case "step_started":
                return f"{name} started"
            case "step_ended":
                return f"{name} {step_text(step)}"
            case "trial_ended":
                best = f", best so far {step.best}" if step.best else ""
                return f"{name} {count(_ended(step.trials), 'trial')} ended{best}"
        return ""

    def table(self, run: Run | None) -> Table:
        """Return a table of all steps, also nested ones; `run` is None at first."""
        from rich.table import Table

        steps = {step.name: step for step in (run.below() if run else ())}
        table = Table(title=run.name if run else self._plan.display_name, title_justify="left")
        for column in ("step", "status", "trials", "time"):
            table.add_column(column, overflow="fold")
        for name, plan in _step_plans(self._plan):
            step = steps.get(f"{run.name}.{name}") if run else None
            table.add_row(name, *(_step_cells(plan, step) if step else ("waits", "", "")))
        return table


def _step_plans(plan: PipelinePlan, prefix: str = "") -> Iterator[tuple[str, Plan]]:
    for name, step in plan.steps.items():
        yield prefix + name, step.plan
        if isinstance(step.plan, PipelinePlan):
            yield from _step_plans(step.plan, f"{prefix}{name}.")


def _step_cells(plan: Plan, step: Run) -> tuple[str, str, str]:
    trials = ""
    if isinstance(plan, Search) and step.trials:
        trials = f"{_ended(step.trials)} of {most_trials(plan)}"
    return _step_outcome(step), trials, f"{step.active_s:.0f} s"


def _start(run: Run, parts: str, done: int, state: str) -> str:
    resumed = f", {done} of them {state} before; resuming" if run.pauses else ""
    return f"{run.name}: {parts}{resumed}"


def _ended(trials: tuple[Run, ...]) -> int:
    return sum(trial.ended is not None for trial in trials)


def most_trials(plan: Search) -> int:
    """Return the maximum number of trials; a grid sweep has at most one per point."""
    if isinstance(plan, AutoMLPlan) or plan.algorithm != "grid":
        return plan.max_total_trials
    from ml.sweeps.sources import size

    return min(plan.max_total_trials, size(plan.search_space))


def _sampled_names(plan: Search) -> list[str]:
    """Return the names of a sweep's hyperparameters; [] for AutoML, whose trials differ."""
    return [*plan.search_space] if isinstance(plan, SweepPlan) else []


def _sampled(plan: Search, trial: Run) -> dict[str, Any]:
    """Return the values of the hyperparameters of a trial, without its constant parameters."""
    names = _sampled_names(plan) if isinstance(plan, SweepPlan) else trial.parameters
    return {name: trial.parameters[name] for name in names if name in trial.parameters}


def _step_outcome(step: Run) -> str:
    return f"reused from {step.reused_from}" if step.reused_from else outcome(step)


def step_text(step: Run) -> str:
    """Return a step's status, duration, and the codes of its error and warnings."""
    words = [_step_outcome(step)]
    if not step.reused_from and step.id:
        words.append(f"in {step.active_s:.1f} s")
    if step.error:
        words.append(f"[{step.error.code}] see {shown(step.folder)}")
    # A step that never started has the reason as its warning.
    words += [f"[{warning.code}]" if step.id else warning.actual for warning in step.warnings]
    return " ".join(words)


def summary(backend: Backend, plan: Plan, run: Run, echoed: bool = False) -> str:
    """Return the run's outcome, the paths of outputs and logs, and the next command, as lines.

    `echoed`: the command's output is already on the screen, so omit the log from the error.
    """
    lines = [str(warning) for warning in run.warnings]
    if run.error:
        lines.append(str(without_log(run.error) if echoed else run.error))
    lines += ["", f"{run.name}: {outcome(run)} in {run.active_s:.0f} s"]
    if isinstance(plan, Search):
        lines.append(f"  trials   {counts(outcome(trial) for trial in run.trials)}")
        if run.best:
            lines.append(f"  best     {run.best} ({parameters(_sampled(plan, run))})")
    if isinstance(plan, PipelinePlan):
        states = ("reused" if step.reused_from else outcome(step) for step in run.steps)
        lines += [f"  steps    {counts(states)}", *_best_of_sweeps(plan, run)]
    lines += [f"  {name} = {number(value)}" for name, value in run.metrics.items()]
    for name, path in run.outputs.items():
        lines.append(f"  output {name}: {output_text(run, name, path, 'not written')}")
    what, where = _LOGS[type(plan)]
    place = run.folder / where
    if (
        isinstance(plan, CommandPlan) and not place.exists()
    ):  # on Azure, each process has its own log
        place = place.parent
    lines += [f"  {what}: {shown(place)}"] if place.exists() else []
    on = repeated_on(backend.name)
    if run.status == "Completed":
        lines.append(f"next: ml report {run.name}{on}, or ml ui for MLflow's pages")
    elif backend.resumption is not None and backend.resumption.was_stopped(run):
        is_late = isinstance(plan, Search) and run.ended_by == "timeout"
        more = " --timeout SECONDS" if is_late else ""
        lines.append(f"resume it: ml runs resume {run.name}{on}{more}")
    return "\n".join(lines)


def _best_of_sweeps(plan: PipelinePlan, run: Run) -> Iterator[str]:
    """Yield a line with the best trial of each completed sweep step, which may be reused."""
    for name, step in plan.steps.items():
        sweep = next((step for step in run.steps if step.name == f"{run.name}.{name}"), None)
        if not isinstance(step.plan, Search) or sweep is None or sweep.status != "Completed":
            continue
        metric = step.plan.primary_metric
        score = f"{metric} {number(sweep.metrics[metric])}, " if metric in sweep.metrics else ""
        values = parameters(_sampled(step.plan, sweep))
        yield f"  best of {name}: {sweep.best or sweep.reused_from} ({score}{values})"


def counts(states: Iterable[str]) -> str:
    """Return how often each state occurs: `3 Completed, 1 reused`."""
    return ", ".join(f"{times} {state}" for state, times in Counter(states).items())
