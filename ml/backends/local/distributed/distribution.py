"""How a distributed job runs on one machine: its processes in one launch, and whose fault it was.

The nodes are this machine: they share one working copy, one MLflow run and 127.0.0.1. Who starts
the processes, and what each finds, is in `ml.backends.local.distributed.launchers`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from ml.backends.local import files
from ml.backends.local.distributed import launchers, ranks
from ml.backends.local.processes import reaper
from ml.specs.plan.plan import CommandPlan


def launched(plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The shell command that runs `command` as every process of the job in `folder`.

    A job without `distribution` is its own command. Raises OSError when the disk is full.
    """
    launcher = plan.distribution
    if launcher is None:
        return command
    (folder / "failed_rank").unlink(missing_ok=True)
    # Azure ML shows rank 0's log as the job's (user_logs/std_log_process_00.txt).
    first = folder / "logs" / "rank_0.txt"
    if not first.is_symlink():
        first.symlink_to(files.log(folder).name)
    start = launchers.BY_TYPE[launcher.type]
    found = start(plan, command, folder, environment)
    written = folder / "launch.json"
    written.write_text(
        json.dumps(
            {
                "processes": [asdict(process) for process in found],
                "grace_s": reaper.GRACE_S,
                "failed": str(folder / "failed_rank"),
            },
            indent=1,
        )
    )
    return "exec " + shlex.join([sys.executable, "-I", "-S", ranks.__file__, str(written)])


def culprit(folder: Path) -> tuple[Path, str]:
    """The log to read after a failure, and whose it is: the rank's that failed before the others.

    Of a job with one process it is the command's.
    """
    try:
        name = (folder / "failed_rank").read_text().split()[0]
    except FileNotFoundError:
        # Launchers write to logs of their own; torchrun may have failed before any rank began.
        own = [path for path in folder.glob("logs/node_*.txt") if path.stat().st_size]
        return (min(own), "the launcher") if own else (files.log(folder), "the command")
    log = folder / "logs" / f"{name}.txt"
    return log, name.replace("_", " ")


def differences(plan: CommandPlan) -> Iterator[str]:
    """What a person should know of how this machine stands in for the nodes."""
    nodes, launcher = plan.instance_count, plan.distribution
    if launcher is None:
        if nodes > 1 and plan.parallel is None:
            yield f"local: {nodes} nodes without `distribution` → the command runs once"
        return
    processes = f"{plan.processes} process{'' if plan.processes == 1 else 'es'}"
    many = f", standing for {nodes} nodes that share one working copy" if nodes > 1 else ""
    yield f"local: {launcher.type} → {processes} of this machine{many}"
    here = str(Path(sys.executable).parent)
    if launcher.type == "pytorch" and not shutil.which("torchrun", path=here):
        yield (
            "local: torchrun → not installed (`make torch`); the processes are started with the "
            "same variables"
        )
    if launcher.type == "mpi" and launchers.open_mpi(None) is None:
        yield (
            "local: mpirun of Open MPI → not on this machine; the processes are started with its "
            "variables, MPI itself is not there"
        )
