"""Launch a distributed job on one machine, and find the rank that failed first.

All nodes are this machine: they share one working copy, one MLflow run and 127.0.0.1. Processes get
the environment variables of Azure ML's guide how-to-train-distributed-gpu: for pytorch MASTER_ADDR,
MASTER_PORT, WORLD_SIZE, NODE_RANK, RANK and LOCAL_RANK; for mpi Open MPI's OMPI_COMM_WORLD_* and
AZ_BATCH_MASTER_NODE; for tensorflow TF_CONFIG. A ray job is one process on the head of a Ray
cluster, whose nodes are processes of this machine.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ml.backends.local import files, ranks
from ml.backends.local.processes import reaper
from ml.backends.local.processes.process import cores
from ml.specs import torchrun
from ml.specs.plan.plans import CommandPlan


def launch_command(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> str:
    """Write launch settings to `folder`; return the shell command that starts all processes.

    Without `distribution`, return `command`. Raise OSError if the disk is full.
    """
    launcher = plan.distribution
    if launcher is None:
        return command
    (folder / "failed_rank").unlink(missing_ok=True)
    # Azure ML shows rank 0's log as the job's (user_logs/std_log_process_00.txt).
    first = folder / "logs" / "rank_0.txt"
    if not first.is_symlink():
        first.symlink_to(files.log(folder).name)
    processes = LAUNCHERS[launcher.type](plan, command, folder, environment)
    settings = folder / "launch.json"
    launch = {
        "processes": [asdict(process) for process in processes],
        "grace_s": reaper.GRACE_S,
        "failed": str(folder / "failed_rank"),
        "evicted": str(evicted_node(folder)),
    }
    settings.write_text(json.dumps(launch, indent=1))
    return "exec " + shlex.join([sys.executable, "-I", "-S", ranks.__file__, str(settings)])


def evicted_node(folder: Path) -> Path:
    """Return the file with the number of the preempted node of an elastic job; `ranks` reads it."""
    return folder / "evicted_node"


def elastic_node(plan: CommandPlan) -> int | None:
    """Return the node of an elastic job that a preemption ends; None for any other job.

    It is the last one: the first one has the rendezvous.
    """
    is_elastic = torchrun.elastic(plan.command) and plan.distribution is not None
    return plan.instance_count - 1 if is_elastic and plan.instance_count > 1 else None


def failed_log(folder: Path) -> tuple[Path, str]:
    """Return the log to show after a failure, and its name: that of the rank that failed first.

    If no rank failed, it is mpirun's log (if any), or the log of the command.
    """
    try:
        name = (folder / "failed_rank").read_text().split()[0]
    except FileNotFoundError:
        # mpirun has a separate log; it may fail before any rank starts.
        logs = [path for path in folder.glob("logs/node_*.txt") if path.stat().st_size]
        return (min(logs), "the launcher") if logs else (files.log(folder), "the command")
    return folder / "logs" / f"{name}.txt", name.replace("_", " ")


def differences(plan: CommandPlan) -> Iterator[str]:
    """Yield a line for the user for each difference from the job's nodes on Azure."""
    nodes, launcher = plan.instance_count, plan.distribution
    if launcher is None:
        if nodes > 1 and plan.parallel is None:
            yield f"local: {nodes} nodes without `distribution` → the command runs once"
        return
    processes = f"{plan.processes} process{'' if plan.processes == 1 else 'es'}"
    many = f", instead of {nodes} nodes; they share one working copy" if nodes > 1 else ""
    yield f"local: {launcher.type} → {processes} of this machine{many}"
    if launcher.type == "mpi" and open_mpi(None) is None:
        yield (
            "local: Open MPI's mpirun is not installed → the processes start with its variables, "
            "but without MPI"
        )


HOST = "127.0.0.1"
# The script of one rank: `$0` is the job's folder, `$1` the command, `$2` the rank's name if it has
# no number. The first failing rank writes its name and exit code (noclobber prevents others). On
# SIGTERM, which the command receives too, it waits for the command.
_RANK = """\
name="${2:-rank_${RANK:-$OMPI_COMM_WORLD_RANK}}"
exec >>"$0/logs/$name.txt" 3>&1 2>/dev/null
trap : TERM
bash -c "$1" 2>&3 3>&-
code=$?
[ $code = 0 ] || { set -o noclobber; echo "$name $code" >"$0/failed_rank"; } 2>/dev/null
exit $code
"""


# All torchrun agents share one host, so any could bind MASTER_PORT: wait for the first node.
_WAIT_FOR_MASTER = """\
for ((tries = 0; tries < 600; tries++)); do
    (exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null && break
    sleep 0.1
done
"""
# Ray's sockets are in `scratch`, since their paths may have at most 107 characters and job folders
# are longer. `scratch` is also HOME: Ray and the command share `~/.ray/auth_token` there, and the
# user's token is not used. By default, each node's object store would take a third of the memory.
_RAY = """\
scratch=$(mktemp -d "${TMPDIR:-/tmp}/ray-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export HOME=$scratch
node() {
    "$RAY_NODES_PYTHON" -m ray.scripts.scripts start --disable-usage-stats \\
        --num-cpus "$RAY_NODES_CPUS" --object-store-memory 200000000 "$@" || exit 1
}
{
    node --head --node-ip-address "${RAY_ADDRESS%:*}" --port "${RAY_ADDRESS#*:}" \\
        --ray-client-server-port "$RAY_NODES_CLIENT_PORT" --include-dashboard false \\
        --temp-dir "$scratch"
    for ((worker = 0; worker < RAY_NODES_WORKERS; worker++)); do
        node --address "$RAY_ADDRESS"
    done
} >>"$0/logs/node_0.txt" 2>&1
"""


@dataclass(frozen=True)
class Process:
    """One process to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]  # additional environment variables
    log: str  # file name
    # The job ends with its last process that has `waits`; the others are servers.
    waits: bool = True


def pytorch(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Yield the ranks, node by node, with Azure ML's environment variables.

    As on Azure, the command needs no launcher. A command that is one (torchrun, accelerate) runs
    once per node, and MASTER_PORT is free for it to bind. In an elastic job the first node binds
    it, and the other nodes wait for that.
    """
    nodes, per_node, port = plan.instance_count, _processes_per_node(plan), str(free_ports(1)[0])
    for rank in range(nodes * per_node):
        node, local = divmod(rank, per_node)
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "NODE_RANK": node,
            "GROUP_RANK": node,
            "WORLD_SIZE": nodes * per_node,
            "LOCAL_WORLD_SIZE": per_node,
        }
        variables = {name: str(number) for name, number in numbers.items()}
        variables |= {"MASTER_ADDR": HOST, "MASTER_PORT": port}
        before = _WAIT_FOR_MASTER if node and elastic_node(plan) is not None else ""
        yield Process(_rank(folder, command, before), variables, str(files.log(folder)))


def mpi(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Yield one mpirun; without Open MPI, yield the ranks with Open MPI's variables.

    mpirun sees one node, so the script sets the local ranks by the job's number of nodes.
    """
    total, per_node = plan.instance_count * _processes_per_node(plan), _processes_per_node(plan)
    master = {"AZ_BATCH_MASTER_NODE": f"{HOST}:{free_ports(1)[0]}"}
    mpirun = open_mpi(environment.get("PATH"))
    if mpirun is not None:
        local = (
            f"export OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % {per_node}))"
            f" OMPI_COMM_WORLD_LOCAL_SIZE={per_node}\n"
        )
        flags = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(total))
        argv = (mpirun, *flags, *_rank(folder, command, local))
        yield Process(argv, master, str(folder / "logs" / "node_0.txt"))
        return
    for rank in range(total):
        numbers = {
            "RANK": rank,
            "SIZE": total,
            "LOCAL_RANK": rank % per_node,
            "LOCAL_SIZE": per_node,
            # "Despite the name, [it] does not correspond to the NODE_RANK" (the guide).
            "NODE_RANK": rank % per_node,
        }
        variables = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}
        yield Process(_rank(folder, command), variables | master, str(files.log(folder)))


def tensorflow(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Yield the workers, then the parameter servers, which are ended after the workers."""
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


def ray(
    plan: CommandPlan, command: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Process]:
    """Yield one process: it starts Ray's head and a worker per other node, then the command.

    Ray's processes leave the process group; the reaper ends them with the run.
    """
    port, client = free_ports(2)
    settings = {
        "PYTHON": shutil.which("python", path=environment.get("PATH")) or sys.executable,
        "WORKERS": str(plan.instance_count - 1),
        "CPUS": str(max(1, cores() // plan.instance_count)),
        "CLIENT_PORT": str(client),
    }
    variables = {f"RAY_NODES_{name}": value for name, value in settings.items()}
    variables["RAY_ADDRESS"] = f"{HOST}:{port}"
    argv = (*_rank(folder, command, _RAY), "rank_0")
    yield Process(argv, variables, str(files.log(folder)))


def has_ray() -> bool:
    """Return whether Ray is installed in this environment."""
    return find_spec("ray") is not None


def _rank(folder: Path, command: str, before: str = "") -> tuple[str, ...]:
    return ("bash", "-c", before + _RANK, str(folder), command)


def _processes_per_node(plan: CommandPlan) -> int:
    return plan.distribution.process_count_per_instance if plan.distribution else 1


@cache
def open_mpi(path: str | None) -> str | None:
    """Return the path of Open MPI's mpirun; None for other MPIs, which set other variables."""
    mpirun = shutil.which("mpirun", path=path)
    if mpirun is None:
        return None
    try:
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return mpirun if "Open MPI" in version.stdout else None


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of `HOST`."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in sockets]


# The types of `distribution:` that this machine can start.
LAUNCHERS = {"pytorch": pytorch, "mpi": mpi, "tensorflow": tensorflow, "ray": ray}
