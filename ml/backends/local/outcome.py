"""The errors and warnings of ended runs: commands, trials, sweeps and pipelines."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import signal
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ml.backends.local.tracking import reader
from ml.backends.runs import LOG_FOLLOWS, Run, Status
from ml.core import faults
from ml.core.errors import Problem
from ml.core.repository import shown
from ml.specs.plan.plans import CommandPlan, PipelinePlan, SweepPlan

LAST_LINES = 12
# Input name → file → its size and modification time.
States = Mapping[str, Mapping[str, tuple[int, int]]]
# The messages of Python and bash about a missing module or program.
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '([^']+)'|bash: line \d+: (\S+): command not found"
)
# MLflow's duplicate check fails for NaN, so SQLite rejects a second NaN of the same step.
# `log_model` logs the metrics of its step again.
_NAN_AGAIN = "UNIQUE constraint failed: metrics.key"
# With less free space, a full disk is taken as the cause of a script's failure.
NO_ROOM_BYTES = 1 << 20

# `ended_by` of a step that was never started.
NOT_STARTED = "not-started"
# `ended_by` of a running step that was stopped because another one failed.
STEP_FAILED = "step_failed"

REASONS = {
    "SIGINT": "interrupted from the keyboard (SIGINT)",
    "SIGTERM": "ended by SIGTERM",
    "SIGHUP": "the terminal was closed (SIGHUP)",
    "step_failed": "another step of the pipeline failed",
}


def last_lines(log: Path) -> list[str]:
    """Return a log's last `LAST_LINES` lines, from its last 16 KiB; [] without a log."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        return file.read().decode(errors="replace").splitlines()[-LAST_LINES:]


def log_end(log: Path, nothing: str = "") -> str:
    """Return the last lines of a log, indented for a problem; `nothing` if the log is empty."""
    lines = last_lines(log) or ([nothing] if nothing else [])
    return "".join(f"\n    | {line}" for line in lines)


def script_failed(
    code: int, plan: CommandPlan, log: Path, who: str = "the command", is_built: bool = False
) -> Problem:
    """Return the problem of a failed command, with its log's end and a hint.

    `code` is the exit code (−N: signal N), `who` the process that failed first, and `log` its log.
    `is_built`: it ran in an environment that was built from its conda file.
    """
    disk = os.statvfs(log.parent)
    if disk.f_bavail * disk.f_frsize < NO_ROOM_BYTES:
        return faults.disk_full()
    lines = last_lines(log)
    advice = _missing(lines, plan, is_built) or _advice(code)
    if any(_NAN_AGAIN in line for line in lines):
        advice = (
            "MLflow refuses a NaN metric that is logged twice, and `log_model` logs the metrics of "
            "its step again: log no NaN, or call log_model with another `step`; "
        )
    return Problem(
        "script-failed",
        f"{who} {_ended(code)}{LOG_FOLLOWS}{log_end(log, '(it printed nothing)')}",
        "exit code 0",
        f"{advice}the whole log: less {shlex.quote(shown(log))}",
        plan.places.get("command", plan.place),
    )


def _ended(code: int) -> str:
    # bash reports a child that a signal ended as 128 + N.
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        try:
            return f"was ended by {signal.Signals(number).name}"
        except ValueError:
            pass
    return f"exited with {code}"


def _advice(code: int) -> str:
    if code == 127:
        return "a program of the command is not on this machine; "
    if code in {-signal.SIGKILL, 128 + signal.SIGKILL}:
        return "`ml` did not send SIGKILL: the system may have run out of memory; "
    return ""


def _missing(lines: Sequence[str], plan: CommandPlan, is_built: bool) -> str:
    """Return the hint for a missing module or program; "" if that is not the cause."""
    missing = [match[1] or match[2] for line in lines if (match := _NO_MODULE.match(line))]
    if not missing:
        return ""
    name, environment = missing[-1], plan.environment
    if name == "torch" and not is_built:
        return "torch is not installed for this interpreter: make torch; "
    if is_built:
        return f"the environment has no `{name}` either: add it to the conda file; "
    if environment.dependencies is not None:
        return (
            f"`{name}` is not in this interpreter, the environment {environment.reference} may "
            "have it: run it with --isolated; "
        )
    return (
        f"`{name}` is not installed, and {environment.reference} has no spec here: "
        "install it, or give the job a conda file and --isolated; "
    )


def canceled(ended_by: str, plan: CommandPlan, log: Path) -> Problem | None:
    """Return the problem of a stopped run; None if the early termination policy ended it."""
    if ended_by in {"timeout", "trial_timeout"}:
        limit = f"limits.{ended_by}"
        return Problem(
            "timed-out",
            f"the command was still running after `{limit}` ({plan.timeout_s:g} s)",
            hint=f"raise the limit, or read the log: less {shlex.quote(shown(log))}",
            place=plan.places.get(limit, plan.place),
        )
    if ended_by in REASONS:
        return Problem(
            "canceled",
            f"{REASONS[ended_by]}; the command and its child processes were terminated",
            hint=f"logs and outputs are kept: ls {shlex.quote(shown(log.parent.parent))}",
        )
    return None


def written_inputs(plan: CommandPlan, before: States, after: States) -> tuple[Problem, ...]:
    """Return a warning for each mounted input whose files changed during the run.

    On Azure ML it is mounted read-only, so a write fails ("Read-only file system"). Here the
    command can write to the original data.
    """
    warnings = []
    for name, then in before.items():
        now = after.get(name, {})
        changed = sorted(k for k in then.keys() | now.keys() if then.get(k) != now.get(k))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            data = plan.inputs[name]
            warnings.append(
                Problem(
                    "input-changed",
                    f"`inputs.{name}` was changed while the command ran: "
                    f"{', '.join(changed[:3])}{more} in {shown(data.path or Path())}",
                    "an input that is only read: on Azure ML it is mounted read-only, and a "
                    "command that writes to it fails",
                    f"write to an output; with `mode: download` in `inputs.{name}` the command "
                    "gets a copy that it may change",
                    data.place,
                    severity="warning",
                )
            )
    return tuple(warnings)


def empty_outputs(plan: CommandPlan, run: Run) -> tuple[Problem, ...]:
    """Return a warning for every declared output that is empty or missing.

    Azure ML completes such a job too; the next step then fails when it reads the output.
    """
    return tuple(
        Problem(
            "output-empty",
            f"the command wrote nothing to `outputs.{name}`",
            f"a {plan.outputs[name].type} at {shown(path)}",
            f"pass ${{{{outputs.{name}}}}} to the script and write there",
            plan.outputs[name].place,
            severity="warning",
        )
        for name, path in run.outputs.items()
        if not (path.is_file() or (path.is_dir() and any(path.iterdir())))
    )


# Azure ML's limits per run: the count, and the characters of a name and of a value. Sources:
# resource-limits-capacity for tags and metrics, azure-sdk-for-python#35685 for the number of
# parameters. Azure ML does not document a parameter's length: 500 was MLflow's (mlflow#1976).
_LIMITS = {"parameter": (200, 255, 500), "tag": (50, 100, 1000), "metric": (50, 255, 255)}


def beyond_azure(
    plan: CommandPlan, run: Run, ml_tags: Container[str], *, is_trial: bool
) -> tuple[Problem, ...]:
    """Return a warning for each limit of Azure ML's tracking server that the run exceeded.

    The limit of 250 values per batch is not checked, since MLflow does not store batches. `ml_tags`
    are this backend's tags, which do not count. `metric_warnings` reports a trial's NaN.
    """
    logged = dict(reader.logged(run.id))
    logged["tag"] = [(name, text) for name, text in logged["tag"] if name not in ml_tags]
    problems = list[tuple[str, str]]()
    for word, (most, of_name, of_text) in _LIMITS.items():
        names = [name for name, _ in logged[word] if len(name) > of_name]
        texts = [name for name, text in logged[word] if len(text) > of_text]
        if len(logged[word]) > most:
            actual = f"the run logged {len(logged[word])} {word}s"
            problems.append((actual, f"at most {most}"))
        for which, what, limit in ((names, "name", of_name), (texts, "value", of_text)):
            if which:
                actual = f"the {what} of the {word} `{which[0][:60]}` is too long"
                problems.append((actual, f"at most {limit} characters"))
    nan = [name for name, text in logged["metric"] if text == "nan"]
    if nan and not is_trial:
        actual, expected = f"`{nan[0]}` was logged as NaN", "a number: the service may refuse NaN"
        problems.append((actual, expected))
    if logged["model"]:
        actual = f"`log_model` logged the model `{logged['model'][0][0]}`"
        problems.append((actual, "save_model into an output: Azure ML has no such request (404)"))
    place = plan.places.get("command", plan.place)
    hint = "the run completes here; on Azure ML it fails or loses this value"
    return tuple(
        Problem("azure-limit", actual, expected, hint, place, "warning")
        for actual, expected in problems
    )


def metric_warnings(plan: SweepPlan, trial: Run, curve: Sequence[float]) -> tuple[Problem, ...]:
    """Return a warning if the trial cannot be ranked: its metric is missing or not finite."""
    if curve and all(map(math.isfinite, curve)):
        return ()
    metric, place = plan.primary_metric, plan.places.get("objective", plan.place)
    hint = f"read its log: less {shlex.quote(shown(trial.folder / 'logs' / 'std_log.txt'))}"
    if curve:
        step, value = next((n, v) for n, v in enumerate(curve, 1) if not math.isfinite(v))
        code = "metric-not-finite"
        actual = f"{trial.name} logged {value} as `{metric}` (value {step} of {len(curve)})"
        expected = "a finite number every time: the trial has diverged and is not ranked"
    else:
        logged = sorted(reader.latest(trial.id))
        names = ", ".join(f"`{name}`" for name in logged)
        code = "metric-missing"
        actual = f"{trial.name} never logged `{metric}`; "
        actual += f"it logged {names}" if logged else "no metric at all"
        expected = f'mlflow.log_metric("{metric}", value) in the script'
        if similar := difflib.get_close_matches(metric, logged, n=1):
            hint = f"did you mean `primary_metric: {similar[0]}`?"
    return (Problem(code, actual, expected, hint, place, severity="warning"),)


def trial_warnings(trials: Sequence[Run]) -> tuple[Problem, ...]:
    """Return the problems of a completed sweep's trials, merged to one warning per code."""
    kinds: dict[str, list[Problem]] = {}
    for trial in trials:
        for problem in (*trial.warnings, trial.error):
            if problem:
                kinds.setdefault(problem.code, []).append(problem)
    return tuple(
        replace(
            same[0],
            severity="warning",
            actual=f"{len(same)} of {len(trials)} trials: {same[0].actual}",
        )
        for same in kinds.values()
    )


def nothing_to_rank(plan: SweepPlan, trials: Sequence[Run]) -> Problem:
    """Return the error of a sweep without a best trial.

    Azure ML does not document when a sweep fails. Here it fails without a best trial, since it then
    has no outputs and no model.
    """
    warnings = [problem for trial in trials for problem in trial.warnings]
    for code in ("metric-missing", "metric-not-finite"):
        if same := [problem for problem in warnings if problem.code == code]:
            more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
            actual = f"no trial could be ranked by `{plan.primary_metric}`: {same[0].actual}{more}"
            return replace(same[0], severity="error", actual=actual)
    for trial in trials:
        if error := trial.error:
            actual = (
                f"none of {len(trials)} trials completed; the first, {trial.name}: {error.actual}"
            )
            return replace(error, code="no-trial-completed", actual=actual)
    return Problem(
        "no-trial-completed",
        f"all {len(trials)} trials were ended early",
        "at least one completed trial",
        "raise `delay_evaluation` of the early termination policy",
        plan.early_termination.place if plan.early_termination else plan.place,
    )


def sweep_interrupted(sweep: Run, signal_name: str) -> Problem:
    """Return the problem of an interrupted sweep; its completed trials are kept."""
    best = f", the best so far is {sweep.best}" if sweep.best else ""
    return Problem(
        "canceled",
        f"{REASONS[signal_name]}; running trials were terminated, "
        f"{_completed(sweep)} completed trials are kept{best}",
        hint=f"their folders: ls {shlex.quote(shown(sweep.folder / 'trials'))}",
    )


def sweep_timed_out(plan: SweepPlan, sweep: Run) -> Problem:
    """Return the problem of a sweep that reached its timeout (Azure ML cancels all its trials)."""
    return Problem(
        "timed-out",
        f"`limits.timeout` ({plan.timeout_s:g} s) was reached after {_completed(sweep)} "
        f"completed of {plan.max_total_trials} trials",
        hint="allow more time, or fewer trials (`limits.max_total_trials`)",
        place=plan.places.get("limits.timeout", plan.place),
    )


def _completed(sweep: Run) -> int:
    return sum(trial.status == "Completed" for trial in sweep.trials)


def pipeline_status(
    plan: PipelinePlan, run: Run, steps: Sequence[Run], cut_short: str
) -> tuple[Status, Problem | None]:
    """Return a pipeline's status, and the problem if it is not Completed.

    `cut_short` is the reason if the pipeline was stopped; "" otherwise.
    """
    if cut_short:
        done = sum(step.status == "Completed" for step in steps)
        why = REASONS.get(cut_short, cut_short)
        return "Canceled", Problem(
            "canceled",
            f"{why}; running steps were terminated, {done} of {len(plan.steps)} had completed",
            hint=f"their folders: ls {shlex.quote(shown(run.folder))}",
        )
    consequences = {NOT_STARTED, STEP_FAILED}
    failed = [s for s in steps if s.status != "Completed" and s.ended_by not in consequences]
    if not failed:
        return "Completed", None
    first = failed[0]
    name = first.name.rpartition(".")[2]
    skipped = sum(step.ended_by == NOT_STARTED for step in steps)
    others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
    waiting = f"; {skipped} not started" if skipped else ""
    actual = first.error.actual if first.error else first.ended_by
    return "Failed", Problem(
        "step-failed",
        f"step `{name}` {'failed' if first.status == 'Failed' else 'was ended'}{others}{waiting}: "
        f"{actual}",
        "every step Completed",
        (first.error.hint if first.error else "") or f"read its logs: ls {shown(first.folder)}",
        first.error.place if first.error and first.error.place else plan.steps[name].place,
    )
