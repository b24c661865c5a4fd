"""How a sweep and its trials ended, as a person is told."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ml.backends.base import Run
from ml.backends.local.outcome import REASONS
from ml.backends.local.tracking import history
from ml.core.errors import Place, Problem
from ml.core.repository import shown
from ml.specs.plan.plan import SweepPlan


def of_metric(plan: SweepPlan, trial: Run, curve: Sequence[float]) -> tuple[Problem, ...]:
    """A warning when the trial cannot be ranked: it never logged the metric, or not as a number."""
    if curve and all(map(math.isfinite, curve)):
        return ()
    metric, place = plan.primary_metric, _metric_place(plan)
    look = f"see what it did: less {shlex.quote(shown(trial.folder / 'logs' / 'std_log.txt'))}"
    if not curve:
        logged = sorted(history.latest(trial.id))
        near = difflib.get_close_matches(metric, logged, n=1)
        return (
            Problem(
                "metric-missing",
                f"{trial.name} never logged `{metric}`; "
                + (
                    f"it logged {', '.join(f'`{name}`' for name in logged)}"
                    if logged
                    else "no metric at all"
                ),
                f'mlflow.log_metric("{metric}", value) in the script',
                f"did you mean `primary_metric: {near[0]}`?" if near else look,
                place,
                severity="warning",
            ),
        )
    step, value = next((n, one) for n, one in enumerate(curve, 1) if not math.isfinite(one))
    return (
        Problem(
            "metric-not-finite",
            f"{trial.name} logged {value} as `{metric}` (value {step} of {len(curve)})",
            "a finite number every time: the trial has diverged and is not ranked",
            look,
            place,
            severity="warning",
        ),
    )


def of_trials(trials: Sequence[Run]) -> tuple[Problem, ...]:
    """What went wrong in single trials of a sweep that completed: each kind once, as a warning."""
    kinds: dict[str, list[Problem]] = {}
    for trial in trials:
        for problem in (*trial.warnings, trial.error):
            if problem:
                kinds.setdefault(problem.code, []).append(problem)
    return tuple(
        replace(
            found[0],
            severity="warning",
            found=f"{len(found)} of {len(trials)} trials: {found[0].found}",
        )
        for found in kinds.values()
    )


def nothing_to_rank(plan: SweepPlan, trials: Sequence[Run]) -> Problem:
    """Why a sweep has no best trial: all failed, or none logged the metric as a number.

    Azure ML's documents do not say when a sweep job fails; a sweep without a best trial has no
    outputs and no model, and is a failure here.
    """
    warned = [problem for trial in trials for problem in trial.warnings]
    for code in ("metric-missing", "metric-not-finite"):
        found = [problem for problem in warned if problem.code == code]
        if found:
            said = found[0].found
            also = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
            what = f"no trial could be ranked by `{plan.primary_metric}`: {said}{also}"
            return replace(found[0], severity="error", found=what)
    failed = [trial for trial in trials if trial.error]
    if failed and failed[0].error:
        first = failed[0].error
        what = f"none of {len(trials)} trials completed; the first, {failed[0].name}: {first.found}"
        return replace(first, code="no-trial-completed", found=what)
    return Problem(
        "no-trial-completed",
        f"all {len(trials)} trials were ended early",
        "at least one that runs to its end",
        "raise `delay_evaluation` of the early termination policy",
        plan.early_termination.place if plan.early_termination else plan.place,
    )


def interrupted(sweep: Run, signal_name: str) -> Problem:
    """What is left of a sweep that a person ended."""
    done = [trial for trial in sweep.trials if trial.status == "Completed"]
    kept = f"{len(done)} completed trials are kept"
    best = f", the best so far is {sweep.best}" if sweep.best else ""
    return Problem(
        "canceled",
        f"{REASONS[signal_name]}; every trial that was running was ended, {kept}{best}",
        hint=f"look at them: ls {shlex.quote(shown(sweep.folder / 'trials'))}",
    )


def out_of_time(plan: SweepPlan, sweep: Run) -> Problem:
    """The sweep's own limit was reached (Azure ML cancels the job, including all its trials)."""
    done = sum(trial.status == "Completed" for trial in sweep.trials)
    return Problem(
        "timed-out",
        f"`limits.timeout` ({plan.timeout_s:g} s) was reached after {done} completed of "
        f"{plan.max_total_trials} trials",
        hint="allow more time, or fewer trials (`limits.max_total_trials`)",
        place=plan.places.get("limits.timeout", plan.place),
    )


def _metric_place(plan: SweepPlan) -> Place:
    return plan.places.get("objective", plan.place)
