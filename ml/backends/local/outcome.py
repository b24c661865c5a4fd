"""How a run ended, as a person is told."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml.backends.base import LOG_FOLLOWS, Run
from ml.core import faults
from ml.core.errors import Problem
from ml.core.repository import shown
from ml.specs.plan.plan import CommandPlan

LAST_LINES = 12
# Of every input: file → its size and when it was last changed.
States = Mapping[str, Mapping[str, tuple[int, int]]]
# What a script, and what bash, says of a package that is not there.
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '([^']+)'|bash: line \d+: (\S+): command not found"
)
# Below this much free space a failing script has most likely failed for want of more.
NO_ROOM_BYTES = 1 << 20

REASONS = {
    "SIGINT": "interrupted from the keyboard (SIGINT)",
    "SIGTERM": "ended by SIGTERM",
    "SIGHUP": "the terminal went away (SIGHUP)",
    "step_failed": "another step of the pipeline failed",
}


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    """The end of a log; a log of gigabytes is not read whole."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        return file.read().decode(errors="replace").splitlines()[-count:]


def script_failed(
    code: int, plan: CommandPlan, log: Path, who: str = "the command", is_built: bool = False
) -> Problem:
    """The command ended with `code` (−N: by signal N): its last lines, and what to look at.

    `who` is the process that failed first, and `log` its log. `is_built` says that it ran in an
    environment made from its conda file.
    """
    disk = os.statvfs(log.parent)
    if disk.f_bavail * disk.f_frsize < NO_ROOM_BYTES:
        return faults.disk_full()
    lines = last_lines(log)
    said = "".join(f"\n    | {line}" for line in lines) or "\n    | (it printed nothing)"
    advice = _missing(lines, plan, is_built) or _advice(code)
    return Problem(
        "script-failed",
        f"{who} {_ended(code)}{LOG_FOLLOWS}{said}",
        "exit code 0",
        f"{advice}read it whole: less {shlex.quote(shown(log))}",
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
        return "nobody here sent it: the system may have run out of memory; "
    return ""


def _missing(lines: Sequence[str], plan: CommandPlan, is_built: bool) -> str:
    """What to do about a module or program that is not there; "" when that is not it."""
    found = [match[1] or match[2] for line in lines if (match := _NO_MODULE.match(line))]
    if not found:
        return ""
    name, environment = found[-1], plan.environment
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
        f"`{name}` is not here, and nothing here says what {environment.reference} holds: "
        "install it, or give the job a conda file and --isolated; "
    )


def canceled(ended_by: str, plan: CommandPlan, log: Path) -> Problem | None:
    """Why a run was ended before its time; None when a sweep's policy did it on purpose."""
    if ended_by in {"timeout", "trial_timeout"}:
        limit = f"limits.{ended_by}"
        return Problem(
            "timed-out",
            f"the command was still running after `{limit}` ({plan.timeout_s:g} s)",
            hint=f"allow more, or see what it was doing: less {shlex.quote(shown(log))}",
            place=plan.places.get(limit, plan.place),
        )
    if ended_by in REASONS:
        return Problem(
            "canceled",
            f"{REASONS[ended_by]}; the command and all that it had started were ended",
            hint=f"what it logged and wrote is kept: ls {shlex.quote(shown(log.parent.parent))}",
        )
    return None


def written_inputs(plan: CommandPlan, before: States, after: States) -> tuple[Problem, ...]:
    """A warning for every input that is mounted read-only on Azure ML and was changed meanwhile.

    There the command fails when it writes to one ("Read-only file system"); here nothing keeps it
    from the data itself, so that it is told as loud as can be.
    """
    found = []
    for name, then in before.items():
        now = after.get(name, {})
        changed = sorted(k for k in then.keys() | now.keys() if then.get(k) != now.get(k))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            data = plan.inputs[name]
            found.append(
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
    return tuple(found)


def empty_outputs(plan: CommandPlan, run: Run) -> tuple[Problem, ...]:
    """A warning for every declared output that the command left empty.

    Azure ML completes such a job too; the step that wanted the output fails in its place.
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
