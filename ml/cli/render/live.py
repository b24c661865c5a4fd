"""A run shown while it goes on: a table of trials on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ml.backends.base import Backend
from ml.backends.runs import Event, Run, Watch, unwatched, without_log
from ml.cli.render.live_steps import StepLines, StepRows, counts, most_trials
from ml.cli.render.live_steps import outcome as outcome
from ml.core.repository import shown
from ml.specs.plan.plan import CommandPlan, PipelinePlan, Plan, SweepPlan

if TYPE_CHECKING:
    from rich.table import Table

# Rows of the table besides the running trials: the best ones; a sweep may have a thousand.
BEST_ROWS = 10
REFRESHES_PER_S = 4
# Enough to tell two trials apart; the whole number is in job.json.
DIGITS = 5
# Where the output of what ran lies in a job's folder, by the kind of job.
_LOGS: dict[type, tuple[str, str]] = {
    CommandPlan: ("log", "logs/std_log.txt"),
    SweepPlan: ("trials", "trials"),
    PipelinePlan: ("steps", "steps"),
}


@contextmanager
def watching(plan: Plan, show: bool) -> Iterator[Watch]:
    """What to hand to a backend for this plan, this terminal and this person."""
    if not show or isinstance(plan, CommandPlan):
        yield unwatched
    elif not sys.stderr.isatty():
        yield StepLines(plan) if isinstance(plan, PipelinePlan) else Lines(plan)
    else:
        from rich.console import Console
        from rich.live import Live

        table = StepRows(plan) if isinstance(plan, PipelinePlan) else Rows(plan)
        console = Console(stderr=True)
        with Live(
            get_renderable=table.render, console=console, refresh_per_second=REFRESHES_PER_S
        ) as live:
            yield table
            live.refresh()


class Lines:
    """A line when a trial ends."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan

    def __call__(self, event: Event) -> None:
        """Write the line, if the event is worth one."""
        if event.kind == "started":
            most = most_trials(self._plan)
            trials = f"{most} trial{'s' if most != 1 else ''}"
            if event.run.pauses:
                trials += f", {len(event.run.trials)} of them begun: it goes on"
            sys.stderr.write(f"{event.run.name}: {trials}\n")
        if event.kind != "trial_ended" or event.trial is None:
            return
        trial, metric = event.trial, self._plan.primary_metric
        ended = sum(trial.ended is not None for trial in event.run.trials)
        words = [f"{ended}/{most_trials(self._plan)} {trial.name} {outcome(trial)}"]
        if metric in trial.metrics:
            words.append(f"{metric} {number(trial.metrics[metric])}")
        words.append(f"({parameters(sampled(self._plan, trial))})")
        if trial.error:
            words.append(f"[{trial.error.code}]")
        words += [f"[{warning.code}]" for warning in trial.warnings]
        if event.run.best:
            words.append(f"best so far {event.run.best}")
        sys.stderr.write(" ".join(words) + "\n")
        sys.stderr.flush()


class Rows:
    """The table: trials that run, then the best that ended."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._run: Run | None = None

    def __call__(self, event: Event) -> None:
        """Remember the state; the terminal is redrawn a few times a second."""
        self._run = event.run

    def render(self) -> Table:
        """The table as of now."""
        from rich.table import Table

        trials = self._run.trials if self._run else ()
        running = [trial for trial in trials if trial.ended is None]
        ended = [trial for trial in trials if trial.ended is not None]
        table = Table(
            title=f"{self._run.name if self._run else self._plan.display_name}: "
            f"{len(ended)} of {most_trials(self._plan)} trials ended, {len(running)} running",
            title_justify="left",
        )
        columns = ["trial", "status", self._plan.primary_metric, *self._plan.search_space, "time"]
        for column in columns:
            table.add_column(column, overflow="fold")
        for trial in running + self._ranked(ended)[:BEST_ROWS]:
            is_best = self._run is not None and trial.name == self._run.best
            style = "bold green" if is_best else ("" if trial.ended is None else "dim")
            table.add_row(*self._cells(trial), style=style)
        return table

    def _ranked(self, ended: list[Run]) -> list[Run]:
        metric, sign = self._plan.primary_metric, -1 if self._plan.goal == "maximize" else 1

        def rank(trial: Run) -> tuple[bool, float]:
            value = trial.metrics.get(metric, float("nan"))
            return trial.status != "Completed" or value != value, sign * value

        return sorted(ended, key=rank)

    def _cells(self, trial: Run) -> list[str]:
        value = trial.metrics.get(self._plan.primary_metric)
        values = [str(_short(trial.parameters.get(name, ""))) for name in self._plan.search_space]
        took = (trial.ended or time.time()) - trial.started
        shown_metric = "" if value is None else number(value)
        return [trial.name, outcome(trial), shown_metric, *values, f"{took:.0f} s"]


def number(value: float) -> str:
    """A metric as a person compares it."""
    return f"{value:.{DIGITS}g}"


def sampled(plan: SweepPlan, trial: Run) -> dict[str, Any]:
    """The trial's own values: what every trial was given alike is left out."""
    return {name: trial.parameters[name] for name in plan.search_space if name in trial.parameters}


def parameters(values: Mapping[str, Any]) -> str:
    """`lr=0.1, depth=7`."""
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> Any:
    return number(value) if isinstance(value, float) else value


def as_json(backend: Backend, run: Run) -> dict[str, Any]:
    """The run for a program: `job.json`'s fields with its folder and absolute outputs."""
    outputs = {name: str(path) for name, path in run.outputs.items()}
    return {**backend.runs.document(run), "folder": str(run.folder), "outputs": outputs}


def summary(backend: Backend, plan: Plan, run: Run, echoed: bool = False) -> str:
    """How it went, where everything lies, and what to type next.

    `echoed`: what it printed was shown already, and is not shown again.
    """
    took = run.active_s
    lines = [str(warning) for warning in run.warnings]
    if run.error:
        lines.append(str(without_log(run.error) if echoed else run.error))
    lines += ["", f"{run.name}: {outcome(run)} in {took:.0f} s"]
    if isinstance(plan, SweepPlan):
        lines += [f"  trials   {_counts(run)}"]
        if run.best:
            lines += [f"  best     {run.best} ({parameters(sampled(plan, run))})"]
    if isinstance(plan, PipelinePlan):
        lines += [f"  steps    {counts(run)}", *_best_of_sweeps(plan, run)]
    lines += [f"  {name} = {number(value)}" for name, value in run.metrics.items()]
    for name, path in run.outputs.items():
        asset = f", registered as {run.registered[name]}" if name in run.registered else ""
        state = "" if path.exists() else " (not written)"
        lines.append(f"  output {name}: {shown(path)}{state}{asset}")
    what, where = _LOGS[type(plan)]
    lines.append(f"  {what}: {shown(run.folder / where)}")
    if run.status == "Completed":
        lines.append(f"next: ml report {run.name}, or ml ui for MLflow's pages")
    elif backend.was_stopped(run) and not isinstance(plan, CommandPlan):
        more = " --timeout SECONDS" if run.ended_by == "timeout" else ""
        lines.append(f"go on with it: ml runs resume {run.name}{more}")
    return "\n".join(lines)


def _best_of_sweeps(plan: PipelinePlan, run: Run) -> list[str]:
    """A line for each sweep step that has a best trial, or took one over."""
    lines = []
    for name, step in plan.steps.items():
        sweep = next((step for step in run.steps if step.name == f"{run.name}.{name}"), None)
        if not isinstance(step.plan, SweepPlan) or sweep is None or sweep.status != "Completed":
            continue
        metric = step.plan.primary_metric
        score = f"{metric} {number(sweep.metrics[metric])}, " if metric in sweep.metrics else ""
        values = parameters(sampled(step.plan, sweep))
        lines.append(f"  best of {name}: {sweep.best or sweep.reused_from} ({score}{values})")
    return lines


def _counts(run: Run) -> str:
    counts: dict[str, int] = {}
    for trial in run.trials:
        counts[outcome(trial)] = counts.get(outcome(trial), 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())
