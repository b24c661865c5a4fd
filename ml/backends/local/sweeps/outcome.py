"""The messages about how a sweep and its trials ended."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ml.backends.base import Run
from ml.backends.local.outcome import REASONS
from ml.backends.local.tracking import reader
from ml.core.errors import Problem
from ml.core.repository import shown
from ml.specs.plan.plan import SweepPlan


def of_metric(plan: SweepPlan, trial: Run, curve: Sequence[float]) -> tuple[Problem, ...]:
    """A warning when the trial cannot be ranked: the metric is missing, or not finite."""
    if curve and all(map(math.isfinite, curve)):
        return ()
    metric, place = plan.primary_metric, plan.places.get("objective", plan.place)
    hint = f"see what it did: less {shlex.quote(shown(trial.folder / 'logs' / 'std_log.txt'))}"
    if curve:
        step, value = next((n, one) for n, one in enumerate(curve, 1) if not math.isfinite(one))
        code = "metric-not-finite"
        found = f"{trial.name} logged {value} as `{metric}` (value {step} of {len(curve)})"
        expected = "a finite number every time: the trial has diverged and is not ranked"
    else:
        logged = sorted(reader.latest(trial.id))
        names = ", ".join(f"`{name}`" for name in logged)
        code = "metric-missing"
        found = f"{trial.name} never logged `{metric}`; "
        found += f"it logged {names}" if logged else "no metric at all"
        expected = f'mlflow.log_metric("{metric}", value) in the script'
        if similar := difflib.get_close_matches(metric, logged, n=1):
            hint = f"did you mean `primary_metric: {similar[0]}`?"
    return (Problem(code, found, expected, hint, place, severity="warning"),)


def of_trials(trials: Sequence[Run]) -> tuple[Problem, ...]:
    """The problems of single trials in a sweep that completed: a warning for each code."""
    kinds: dict[str, list[Problem]] = {}
    for trial in trials:
        for problem in (*trial.warnings, trial.error):
            if problem:
                kinds.setdefault(problem.code, []).append(problem)
    return tuple(
        replace(
            same[0],
            severity="warning",
            found=f"{len(same)} of {len(trials)} trials: {same[0].found}",
        )
        for same in kinds.values()
    )


def nothing_to_rank(plan: SweepPlan, trials: Sequence[Run]) -> Problem:
    """Why a sweep has no best trial: all failed, or none logged the metric as a number.

    Azure ML's documents do not say when a sweep job fails; a sweep without a best trial has no
    outputs and no model, and is a failure here.
    """
    warnings = [problem for trial in trials for problem in trial.warnings]
    for code in ("metric-missing", "metric-not-finite"):
        if same := [problem for problem in warnings if problem.code == code]:
            more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
            found = f"no trial could be ranked by `{plan.primary_metric}`: {same[0].found}{more}"
            return replace(same[0], severity="error", found=found)
    for trial in trials:
        if error := trial.error:
            found = (
                f"none of {len(trials)} trials completed; the first, {trial.name}: {error.found}"
            )
            return replace(error, code="no-trial-completed", found=found)
    return Problem(
        "no-trial-completed",
        f"all {len(trials)} trials were ended early",
        "at least one that runs to its end",
        "raise `delay_evaluation` of the early termination policy",
        plan.early_termination.place if plan.early_termination else plan.place,
    )


def interrupted(sweep: Run, signal_name: str) -> Problem:
    """A person ended the sweep; its completed trials stay."""
    best = f", the best so far is {sweep.best}" if sweep.best else ""
    return Problem(
        "canceled",
        f"{REASONS[signal_name]}; every trial that was running was ended, "
        f"{_completed(sweep)} completed trials are kept{best}",
        hint=f"look at them: ls {shlex.quote(shown(sweep.folder / 'trials'))}",
    )


def out_of_time(plan: SweepPlan, sweep: Run) -> Problem:
    """The sweep's own limit was reached (Azure ML cancels the job, including all its trials)."""
    return Problem(
        "timed-out",
        f"`limits.timeout` ({plan.timeout_s:g} s) was reached after {_completed(sweep)} "
        f"completed of {plan.max_total_trials} trials",
        hint="allow more time, or fewer trials (`limits.max_total_trials`)",
        place=plan.places.get("limits.timeout", plan.place),
    )


def _completed(sweep: Run) -> int:
    return sum(trial.status == "Completed" for trial in sweep.trials)
