"""Simulate preemption: kill and restart a run, as on a spot node.

Azure ML preempts low-priority nodes without a reliable signal, so a script must survive SIGKILL.
Optionally SIGTERM comes first, as Kubernetes sends it to pods and as Azure's Scheduled Events
announce it 30 s before a spot machine is preempted.

In an elastic job one node is preempted (`ElasticProcess`), in any other job all nodes.

The restarted command has the same MLflow run, to which it appends metrics, and a fresh copy of the
code. `./outputs`, `./logs` and mounted outputs are kept. Files that exist only on the node are
lost: other files, packages, downloaded inputs and outputs of mode `upload`.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ml.backends.local import files
from ml.backends.local.processes import reaper
from ml.backends.local.processes.process import RunProcess
from ml.backends.runs import Run
from ml.backends.snapshot import Snapshot
from ml.core.errors import Problem
from ml.specs.plan.plans import CommandPlan


@dataclass(frozen=True)
class Evictions:
    """Simulated preemptions of every command of a job."""

    # For each start of the command, the seconds until its preemption.
    after_s: tuple[float, ...] = ()
    notice_s: float = 0.0  # seconds between SIGTERM and SIGKILL; 0: SIGKILL alone


class SpotProcess:
    """A process on a simulated spot node: `start` restarts it after each preemption.

    Before that, `restart` prepares the files for the new node. A command that ends after SIGTERM is
    restarted whatever its exit code.
    """

    def __init__(
        self,
        run_id: str,
        start: Callable[[], RunProcess],
        restart: Callable[[float], None],
        evictions: Evictions,
    ) -> None:
        self._run_id, self._start, self._restart = run_id, start, restart
        self._notice_s = evictions.notice_s
        self._left = list(evictions.after_s)
        self._gone_at: float | None = None
        self._process, self._began = start(), time.monotonic()

    def poll(self) -> int | None:
        """See `RunProcess`; return None if the process was preempted, and restart it."""
        code, now = self._process.poll(), time.monotonic()
        if self._gone_at is not None:
            if code is not None and (self._notice_s or code == -signal.SIGKILL):
                self._go_on()
                return None
            return code  # it ended just before SIGKILL
        if code is None and self._left and now - self._began >= self._left[0]:
            self._gone_at = now + self._notice_s
            if self._notice_s:
                self._process.terminate(self._notice_s)
            else:
                self._process.kill()
        return code

    def _go_on(self) -> None:
        self._gone_at = None
        self._restart(self._left.pop(0))
        self._process, self._began = self._start(), time.monotonic()

    @property
    def start_method(self) -> str:
        """See `RunProcess`."""
        return self._process.start_method

    def terminate(self) -> None:
        """See `RunProcess`; from now on there is no preemption and no restart."""
        self._left, self._gone_at = [], None
        self._process.terminate()

    def kill(self) -> None:
        """See `RunProcess`."""
        self._left, self._gone_at = [], None
        self._process.kill()


# Seconds until a preempted node of an elastic job is replaced. torchrun's other agents detect the
# loss (15 s), wait for a new node (30 s), then continue without it.
AWAY_S = 60.0


class ElasticProcess(SpotProcess):
    """The agents of an elastic job: `node` is preempted, and replaced after AWAY_S.

    The other nodes continue. The file `evicted` reports the preemption to `ranks`. Nothing is
    copied again, since the nodes share one working copy: `restart` only records the preemption.
    """

    def __init__(
        self,
        run_id: str,
        start: Callable[[], RunProcess],
        restart: Callable[[float], None],
        evictions: Evictions,
        node: int,
        evicted: Path,
    ) -> None:
        super().__init__(run_id, start, restart, evictions)
        self._node, self._evicted = node, evicted
        self._back_at: float | None = None

    def poll(self) -> int | None:
        """See `RunProcess`."""
        code, now = self._process.poll(), time.monotonic()
        if code is not None:
            return code
        if self._gone_at is not None and now >= self._gone_at:
            reaper.kill(self._run_id, None, self._node)
            self._restart(self._left.pop(0))
            self._gone_at, self._back_at = None, now + AWAY_S
        elif self._back_at is not None and now >= self._back_at:
            assert self._process.group is not None  # `ranks` is its first process
            os.kill(self._process.group, signal.SIGUSR1)
            self._back_at, self._began = None, now
        elif (
            self._gone_at is self._back_at is None
            and self._left
            and now - self._began >= self._left[0]
        ):
            self._evicted.write_text(str(self._node))
            self._gone_at = now + self._notice_s
            if self._notice_s:
                reaper.send(signal.SIGTERM, self._run_id, None, self._node)
        return None


def lay_out_again(plan: CommandPlan, folder: Path, snapshot: Snapshot | None) -> None:
    """Reset the job's folder as on a new node, except for outputs that Azure ML keeps.

    Raises OSError when the disk is full.
    """
    work, kept = folder / "work", folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for written in files.artifacts(folder, snapshot):
        written.rename(kept / written.name)
    shutil.rmtree(work, ignore_errors=True)
    for name, data in plan.inputs.items():
        if data.mode != "rw_mount":
            shutil.rmtree(folder / "inputs" / name, ignore_errors=True)
    for name, path in files.outputs(plan, folder).items():
        if plan.outputs[name].mode == "upload":
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
    files.lay_out(plan, folder, snapshot)
    for written in kept.iterdir():
        shutil.rmtree(work / written.name)
        written.rename(work / written.name)
    kept.rmdir()


def record_restart(run: Run, log: Path, after_s: float, node: int | None) -> Run:
    """Return the run with one more restart, and write a line about it to the log."""
    run = replace(run, restarts=(*run.restarts, time.time()))
    who = f"node {node} " if node is not None else ""
    then = f"another comes after {AWAY_S:g} s" if who else "started again"
    with log.open("a") as sink:
        sink.write(
            f"--- {who}evicted after {after_s:g} s, {then}: restart {len(run.restarts)} ---\n"
        )
    return run


def explain_timeout(problem: Problem | None, run: Run) -> Problem | None:
    """Return the problem; if a preempted run timed out, add that restarts are the likely cause."""
    if problem is None or problem.code != "timed-out" or not run.restarts:
        return problem
    count = len(run.restarts)
    return replace(
        problem,
        actual=f"{problem.actual}; it was evicted {count} time{'s' if count > 1 else ''} and began "
        "from the start each time",
        hint="save a checkpoint in ./outputs or in an output of the job, and go on from it at the "
        f"start; {problem.hint}",
    )


def warnings(run: Run, evictions: Evictions) -> tuple[Problem, ...]:
    """Return a warning if the run ended before the last requested preemption."""
    count, requested = len(run.restarts), len(evictions.after_s)
    if count >= requested:
        return ()
    return (
        Problem(
            "ended-before-eviction",
            f"the command had ended before eviction {count + 1} of {requested} "
            f"({evictions.after_s[count]:g} s after its start)",
            hint="use a shorter --evict-after",
            severity="warning",
        ),
    )
