"""Who starts the processes of a distributed job, and what each finds in its environment.

What Azure ML gives to a process is in its distributed GPU training guide
(how-to-train-distributed-gpu): for pytorch MASTER_ADDR, MASTER_PORT, WORLD_SIZE, NODE_RANK, RANK
and LOCAL_RANK; for mpi Open MPI's OMPI_COMM_WORLD_* and AZ_BATCH_MASTER_NODE; for tensorflow
TF_CONFIG.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ml.backends.local import files
from ml.specs.plan.plan import CommandPlan

HOST = "127.0.0.1"
# Per-node-launch: the command is a launcher itself, which Azure ML starts once on each node and
# which binds MASTER_PORT (how-to-train-distributed-gpu, "Using torch.distributed.launch").
_OWN_LAUNCHER = re.compile(
    r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate\s+launch|deepspeed)\s"
)
# What runs as one rank: `$0` is the job's folder, `$1` the command, `$2` the rank's name if it has
# no number. The first that fails leaves its name and its code: noclobber lets only one do it.
_RANK = """\
name="${2:-rank_${RANK:-$OMPI_COMM_WORLD_RANK}}"
exec >>"$0/logs/$name.txt" 2>&1
bash -c "$1"
code=$?
[ $code = 0 ] || { set -o noclobber; echo "$name $code" >"$0/failed_rank"; } 2>/dev/null
exit $code
"""


@dataclass(frozen=True)
class Process:
    """One process to start: its words, what it finds besides the job's environment, its log.

    The job is over when all that it `waits` for have ended; the others are servers.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: str
    waits: bool = True


def pytorch(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """torchrun once a node, or the ranks themselves where it is not there or would be in the way.

    The ranks of node 0 come first, as Azure ML numbers them: rendezvous is static.
    """
    nodes, each = plan.instance_count, _each(plan)
    torchrun = None if _OWN_LAUNCHER.search(command) else _torchrun(environment)
    port = str(free_ports(1)[0])
    for node in range(nodes):
        if torchrun is not None:
            words = ("--nnodes", nodes, "--node-rank", node, "--nproc-per-node", each)
            where = ("--master-addr", HOST, "--master-port", port)
            # In the working copy, which goes when the run ends: torchrun leaves it behind.
            leaves = ("--log-dir", str(folder / "work" / ".torchrun"), "--no-python")
            argv = (torchrun, *map(str, words), *where, *leaves, *_rank(folder, command))
            log = str(folder / "logs" / f"node_{node}.txt")
            yield Process(argv, {"NODE_RANK": str(node)}, log)
            continue
        for local in range(each):
            rank = node * each + local
            seen = {
                "RANK": rank,
                "LOCAL_RANK": local,
                "NODE_RANK": node,
                "GROUP_RANK": node,
                "WORLD_SIZE": nodes * each,
                "LOCAL_WORLD_SIZE": each,
            }
            variables = {name: str(number) for name, number in seen.items()}
            variables |= {"MASTER_ADDR": HOST, "MASTER_PORT": port}
            yield Process(_rank(folder, command), variables, str(files.log(folder)))


def mpi(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """One mpirun, or without Open MPI the ranks with the variables that it would have set.

    mpirun knows one node, so the local ranks are set anew for as many as the job asks for.
    """
    total, each = plan.instance_count * _each(plan), _each(plan)
    master = {"AZ_BATCH_MASTER_NODE": f"{HOST}:{free_ports(1)[0]}"}
    mpirun = open_mpi(environment.get("PATH"))
    if mpirun is not None:
        local = (
            f"export OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % {each}))"
            f" OMPI_COMM_WORLD_LOCAL_SIZE={each}\n"
        )
        flags = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(total))
        argv = (mpirun, *flags, *_rank(folder, command, local))
        yield Process(argv, master, str(folder / "logs" / "node_0.txt"))
        return
    for rank in range(total):
        seen = {
            "RANK": rank,
            "SIZE": total,
            "LOCAL_RANK": rank % each,
            "LOCAL_SIZE": each,
            # "Despite the name, [it] does not correspond to the NODE_RANK" (the guide).
            "NODE_RANK": rank % each,
        }
        variables = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in seen.items()}
        yield Process(_rank(folder, command), variables | master, str(files.log(folder)))


def tensorflow(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Workers, then parameter servers, which are ended when the workers have ended."""
    assert plan.distribution is not None
    workers = plan.distribution.workers(plan.instance_count)
    servers = plan.distribution.parameter_server_count
    hosts = [f"{HOST}:{port}" for port in free_ports(workers + servers)]
    cluster = {"worker": hosts[:workers], "ps": hosts[workers:]}
    for kind, count in (("worker", workers), ("ps", servers)):
        for index in range(count):
            task = {
                "cluster": {name: addresses for name, addresses in cluster.items() if addresses},
                "task": {"type": kind, "index": index},
                "environment": "cloud",
            }
            name = f"rank_{index}" if kind == "worker" else f"ps_{index}"
            argv = (*_rank(folder, command), name)
            variables = {"TF_CONFIG": json.dumps(task)}
            yield Process(argv, variables, str(files.log(folder)), kind == "worker")


def _rank(folder: Path, command: str, before: str = "") -> tuple[str, ...]:
    return ("bash", "-c", before + _RANK, str(folder), command)


def _each(plan: CommandPlan) -> int:
    return plan.distribution.process_count_per_instance if plan.distribution else 1


def _torchrun(environment: Mapping[str, str]) -> str | None:
    """The torchrun that lies beside the job's `python`; another's could not import its torch."""
    python = shutil.which("python", path=environment.get("PATH"))
    return shutil.which("torchrun", path=str(Path(python).parent)) if python else None


@cache
def open_mpi(path: str | None) -> str | None:
    """Open MPI's mpirun; others set other variables."""
    found = shutil.which("mpirun", path=path)
    if found is None:
        return None
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if "Open MPI" in said.stdout else None


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on: different for two jobs that start at the same time."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


# The types of `distribution:` that this machine can start.
BY_TYPE = {"pytorch": pytorch, "mpi": mpi, "tensorflow": tensorflow}
