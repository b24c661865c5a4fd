"""Distributed jobs on one machine: what every process finds, and that they end together."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Options
from ml.backends.local import distribution, files
from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes.process import cores
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core.errors import Place
from ml.specs.plan.plans import CommandPlan, Distribution
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.backends.pipelines import RunPipeline, planned, repository, run_pipeline, statuses
from tests.backends.test_interruption import STUBBORN, ml_run, trial_logs, wait_for

__all__ = ["ml_run", "repository", "run_pipeline"]

PLACE = Place("jobs/job.yml", 12)
PRINT = "import json, os; print(json.dumps(dict(os.environ)))"
# Ranks 0 and 2 wait for ever, rank 1 fails.
ONE_FAILS = """
import os, subprocess, sys, time
if os.environ["RANK"] == "1":
    print("the cause")
    sys.exit(7)
subprocess.Popen(["sleep", "600"], start_new_session=True)
time.sleep(600)
"""
# An mpirun as Open MPI's is called, with what it sets: one node, so every rank is a local one.
OPEN_MPI = """#!/bin/bash
[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" && exit
while [ "$1" != -np ]; do shift; done
count=$2; shift 2
for ((rank = 0; rank < count; rank++)); do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$count OMPI_COMM_WORLD_LOCAL_RANK=$rank \\
        STARTED_BY_MPIRUN=yes "$@" &
done
wait
"""


def distributed(plan: CommandPlan, kind: str, nodes: int = 2, each: int = 2) -> CommandPlan:
    """The plan with a launcher."""
    return replace(plan, instance_count=nodes, distribution=Distribution(kind, each, PLACE))


def printed(run: Run, rank: str) -> dict[str, str]:
    """The environment that the rank printed."""
    assert run.status == "Completed", run.error
    found: dict[str, str] = json.loads(LocalRuns().logs(run)[rank].read_text())
    return found


def test_what_a_pytorch_process_finds(home: Path, command: Plans) -> None:
    """Azure ML's six variables, the one MLflow run, and its share of the cores."""
    run = LocalBackend().run(distributed(command(PRINT), "pytorch"))
    seen = [printed(run, str(rank)) for rank in range(4)]
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [[int(one[name]) for name in names] for one in seen] == [
        [0, 0, 0, 4, 2],
        [1, 1, 0, 4, 2],
        [2, 0, 1, 4, 2],
        [3, 1, 1, 4, 2],
    ]
    assert len({one["MASTER_PORT"] for one in seen}) == 1
    assert {one["MASTER_ADDR"] for one in seen} == {"127.0.0.1"}
    assert {one["MLFLOW_RUN_ID"] for one in seen} == {run.id}
    assert {one["OMP_NUM_THREADS"] for one in seen} == {str(max(1, cores() // 4))}
    first = run.folder / "logs" / "rank_0.txt"
    assert first.read_text() == files.log(run.folder).read_text()


@pytest.mark.parametrize(
    ("mpirun", "starts"), [(OPEN_MPI, True), ("#!/bin/bash\necho HYDRA; exit 1\n", False)]
)
def test_what_an_mpi_process_finds(
    home: Path,
    command: Plans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mpirun: str,
    starts: bool,
) -> None:
    """Open MPI's variables as on two nodes, whether its mpirun is there or another or none."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").write_text(mpirun)
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    run = LocalBackend().run(distributed(command(PRINT), "mpi"))
    seen = [printed(run, str(rank)) for rank in range(4)]
    found = [
        [int(one[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "LOCAL_RANK", "SIZE")]
        for one in seen
    ]
    assert found == [[0, 0, 4], [1, 1, 4], [2, 0, 4], [3, 1, 4]]
    assert {one["OMPI_COMM_WORLD_LOCAL_SIZE"] for one in seen} == {"2"}
    assert len({one["AZ_BATCH_MASTER_NODE"] for one in seen}) == 1
    assert all(("STARTED_BY_MPIRUN" in one) is starts for one in seen)


def test_what_a_tensorflow_process_finds(home: Path, command: Plans) -> None:
    """TF_CONFIG by kind and number; a parameter server that never ends is ended with the job."""
    served = home / "served"  # the workers wait for the parameter server, as training does
    script = (
        "import json, os, pathlib, time\n"
        "config = json.loads(os.environ['TF_CONFIG']); print(json.dumps(config), flush=True)\n"
        f"served = pathlib.Path({str(served)!r})\n"
        "if config['task']['type'] == 'ps': served.touch(); time.sleep(600)\n"
        "while not served.exists(): time.sleep(0.01)\n"
    )
    plan = command(script)
    launcher = Distribution("tensorflow", 1, PLACE, parameter_server_count=1)
    run = LocalBackend().run(replace(plan, instance_count=2, distribution=launcher))
    assert run.status == "Completed", run.error
    seen = [json.loads(LocalRuns().logs(run)[rank].read_text()) for rank in ("0", "1", "ps_0")]
    assert [one["task"] for one in seen] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]
    clusters = [one["cluster"] for one in seen]
    assert clusters[0] == clusters[1] == clusters[2]
    assert [len(clusters[0][kind]) for kind in ("worker", "ps")] == [2, 1]
    assert len({*clusters[0]["worker"], *clusters[0]["ps"]}) == 3
    assert processes_of(run.id) == []


def test_workers_by_number(command: Plans) -> None:
    """`worker_count` counts, whatever the nodes; without it there is one a node."""
    plan = replace(command(), instance_count=3)
    of = [Distribution("tensorflow", 1, PLACE, count, 2) for count in (None, 1)]
    assert [replace(plan, distribution=one).processes for one in of] == [5, 3]


def test_a_process_that_fails_ends_the_others(home: Path, command: Plans) -> None:
    """The error is the rank's that failed first: its number, its code, the end of its log."""
    run = LocalBackend().run(distributed(command(ONE_FAILS), "pytorch", 3, 1))
    assert run.status == "Failed"
    assert run.error is not None
    assert "rank 1 exited with 7" in run.error.actual
    assert "the cause" in run.error.actual
    assert "rank_1.txt" in run.error.hint
    assert processes_of(run.id) == []


def test_a_process_that_is_killed_ends_the_others(home: Path, command: Plans) -> None:
    """By a signal, as the system does when memory runs out."""
    script = ONE_FAILS.replace("sys.exit(7)", "os.kill(os.getpid(), 9)")
    run = LocalBackend().run(distributed(command(script), "pytorch", 1, 2))
    assert run.error is not None
    assert "rank 1 was ended by SIGKILL" in run.error.actual
    assert processes_of(run.id) == []


def test_a_distributed_job_that_takes_too_long(home: Path, command: Plans) -> None:
    """The time limit ends every process and what it started in sessions of its own."""
    script = "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '600']); time.sleep(60)"
    run = LocalBackend().run(replace(distributed(command(script), "pytorch"), timeout_s=0.5))
    assert run.status == "Canceled"
    assert run.error is not None and run.error.code == "timed-out"
    assert processes_of(run.id) == []


def test_a_launcher_that_is_killed_leaves_no_rank(home: Path, command: Plans) -> None:
    """SIGKILL of what started the ranks fails the run and ends them."""
    script = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpgid(0), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    run = LocalBackend().run(distributed(command(script), "pytorch", 1, 2))
    assert run.status == "Failed"
    assert run.error is not None and "SIGKILL" in run.error.actual
    assert processes_of(run.id) == []


def test_trials_are_distributed_too(home: Path, sweep: Sweeps) -> None:
    """Each trial is all of its processes, which log to the one run of the trial."""
    script = LOG + "log('score', float(sys.argv[1]) * (os.environ['RANK'] == '0'))"
    plan = sweep(script, max_total_trials=2)
    run = LocalBackend().run(replace(plan, trial=distributed(plan.trial, "pytorch", 1, 2)))
    assert run.status == "Completed", run.error
    for trial in run.trials:
        assert (trial.folder / "logs" / "rank_1.txt").is_file()


def test_steps_are_distributed_too(run_pipeline: RunPipeline) -> None:
    """With what the component says of its nodes; the next step finds what rank 0 wrote."""
    run = run_pipeline(
        "jobs:\n"
        "  train:\n"
        "    type: command\n"
        "    environment: azureml:e:1\n"
        "    command: echo $OMPI_COMM_WORLD_SIZE > ${{outputs.out}}/$OMPI_COMM_WORLD_RANK\n"
        "    outputs: {out: {type: uri_folder}}\n"
        "    resources: {instance_count: 3}\n"
        "    distribution: {type: mpi, process_count_per_instance: 1}\n"
        "  read: {@, command: 'cat ${{inputs.x}}/*', "
        "inputs: {x: '${{parent.jobs.train.outputs.out}}'}}\n"
    )
    assert statuses(run) == {"train": "Completed", "read": "Completed"}
    assert files.log(run.step("read").folder).read_text() == "3\n3\n3\n"


def test_a_launcher_in_the_command_runs_once_a_node(command: Plans, tmp_path: Path) -> None:
    """torchrun itself, with MASTER_PORT free for it to bind."""
    words = "torchrun --nnodes 2 --node_rank $NODE_RANK --master_port $MASTER_PORT train.py"
    plan = distributed(command(command=words), "pytorch", 2, 1)
    found = list(distribution.pytorch(plan, words, tmp_path, {}))
    assert [process.environment["NODE_RANK"] for process in found] == ["0", "1"]
    (port,) = {int(process.environment["MASTER_PORT"]) for process in found}
    with socket.socket() as master:
        master.bind((distribution.HOST, port))


def test_what_is_said_before(command: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many processes stand for how many nodes, and which launcher is not there."""
    monkeypatch.setenv("PATH", "/nowhere")
    distribution.open_mpi.cache_clear()
    told = {
        kind: " ".join(LocalBackend().differences(distributed(command(), kind)))
        for kind in distribution.LAUNCHERS
    }
    distribution.open_mpi.cache_clear()
    assert all("instead of 2 nodes" in one for one in told.values())
    assert "Open MPI's mpirun is not installed" in told["mpi"]
    alone = LocalBackend().differences(replace(command(), instance_count=2))
    assert any("2 nodes without `distribution` → the command runs once" in one for one in alone)


def test_other_launchers_are_refused(command: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this machine does not know; Ray only where it is not installed."""
    monkeypatch.setattr(distribution, "has_ray", lambda: True)
    (unknown,) = LocalBackend().refusals(distributed(command(), "horovod"))
    assert (unknown.code, unknown.place) == ("unsupported-distribution", PLACE)
    for kind in distribution.LAUNCHERS:
        assert LocalBackend().refusals(distributed(command(), kind)) == ()
    monkeypatch.setattr(distribution, "has_ray", lambda: False)
    (missing,) = LocalBackend().refusals(distributed(command(), "ray"))
    assert (missing.code, missing.place) == ("unsupported-distribution", PLACE)
    assert "uv pip install ray" in missing.hint


def test_the_nodes_of_a_ray_cluster(command: Plans, tmp_path: Path) -> None:
    """One process, which runs the command on the head; free ports, and a worker a further node."""
    plan = distributed(command(), "ray", 3, 1)
    (first,), (second,) = (list(distribution.ray(plan, "true", tmp_path, {})) for _ in "ab")
    assert first.environment["RAY_NODES_WORKERS"] == "2"
    assert first.environment["RAY_ADDRESS"] != second.environment["RAY_ADDRESS"]
    assert first.environment["RAY_NODES_CLIENT_PORT"] not in first.environment["RAY_ADDRESS"]


def test_fields_of_ray_that_do_nothing_here(repository: Path) -> None:
    """Each is said with its line."""
    settings = "type: ray, port: 6379, include_dashboard: true, head_node_additional_args: -v"
    plan = planned(repository, f"jobs: {{a: {{@, command: x, distribution: {{{settings}}}}}}}\n")
    said = "\n".join(LocalBackend().differences(plan))
    for name in ("port", "include_dashboard", "head_node_additional_args"):
        assert f"`distribution.{name}` (pipeline.yml:" in said
    assert "distribution.type" not in said


# A Python that plays Ray: it writes down how it was called; the second node does not start.
RAY_START = """#!/bin/bash
echo "$*" >>"{calls}"
mkdir -p ~/.ray && touch ~/.ray/auth_token
[ "$(wc -l <"{calls}")" -le {good} ]
"""


@pytest.mark.parametrize(("good", "status"), [(2, "Completed"), (1, "Failed")])
def test_the_command_runs_once_the_nodes_are_there(
    home: Path,
    command: Plans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    good: int,
    status: str,
) -> None:
    """Head first, then the worker, which joins it; a node that does not start fails the job."""
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(RAY_START.format(calls=calls, good=good))
    python.chmod(0o755)
    which = shutil.which
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(
        "shutil.which",
        lambda name, path=None: str(python) if name == "python" else which(name, path=path),
    )
    script = "import pathlib; print((pathlib.Path.home() / '.ray' / 'auth_token').exists())"
    run = LocalBackend().run(distributed(command(script), "ray", 2, 1))
    assert run.status == status
    head, worker = calls.read_text().splitlines()
    assert "start" in head and "--head" in head and "--head" not in worker
    port = head.split("--port ")[1].split()[0]
    assert worker.endswith(f"--address 127.0.0.1:{port}")
    ran = "True" in files.log(run.folder).read_text()
    assert ran is (status == "Completed")
    assert not Path(head.split("--temp-dir ")[1]).exists()
    assert not (home / ".ray").exists()


RAY = """
import os, ray, time
ray.init(logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
double = ray.remote(lambda number: 2 * number)
print(ray.get([double.remote(number) for number in range(4)]), flush=True)
ray.shutdown()
ray.init("local", num_cpus=1, include_dashboard=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not distribution.has_ray(), reason="ray is not installed: uv pip install ray")
def test_tasks_run_on_ray(home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head and a worker; none of their processes is left, and no token of a local cluster."""
    monkeypatch.setenv("HOME", str(home))
    run = LocalBackend().run(distributed(command(RAY), "ray", 2, 1))
    assert run.status == "Completed", run.error
    assert "[0, 2, 4, 6]" in files.log(run.folder).read_text()
    assert processes_of(run.id) == []
    assert not (home / ".ray").exists()


def test_ports_are_not_shared() -> None:
    """Several at a time are different ones."""
    found = distribution.free_ports(20)
    assert len(set(found)) == 20


# A rank that leaves the group to Python's teardown may end by SIGABRT: its threads still run.
ALL_REDUCE = """
import os, sys, torch
import torch.distributed as ranks
ranks.init_process_group("gloo")
total = torch.tensor([float(ranks.get_rank() + 1)])
ranks.all_reduce(total)
print(ranks.get_rank(), ranks.get_world_size(), os.environ["NODE_RANK"], int(total.item()))
if os.environ.get("FAILS") == os.environ["RANK"]:
    print("this rank has had enough", file=sys.stderr, flush=True)
    os._exit(1)
ranks.barrier()
ranks.destroy_process_group()
"""


@pytest.mark.slow
def test_processes_reduce_with_torch(home: Path, command: Plans) -> None:
    """gloo between the processes: 1 + 2 + 3 + 4 everywhere.

    Needs torch, which `make torch` installs (`make test` has done so).
    """
    import torch

    assert torch.distributed.is_gloo_available()
    plan = distributed(command(ALL_REDUCE), "pytorch")
    run = LocalBackend().run(plan)
    assert run.status == "Completed", run.error
    said = [LocalRuns().logs(run)[str(rank)].read_text().split() for rank in range(4)]
    assert said == [[str(rank), "4", str(rank // 2), "10"] for rank in range(4)]


@pytest.mark.slow
def test_a_rank_that_fails_under_torch(home: Path, command: Plans) -> None:
    """The others hang in a barrier and are ended; the error is the rank's."""
    plan = distributed(command(ALL_REDUCE), "pytorch", 2, 1)
    run = LocalBackend().run(replace(plan, environment_variables={"FAILS": "1"}))
    assert run.status == "Failed"
    assert run.error is not None
    assert "rank 1 exited with 1" in run.error.actual
    assert "this rank has had enough" in run.error.actual
    assert processes_of(run.id) == []


def test_every_rank_starts_again_after_an_eviction(home: Path, command: Plans) -> None:
    """What rank 0 had written is there for all; the logs go on."""
    script = (
        "import os, time\nfrom pathlib import Path\n"
        "note = Path('outputs', os.environ['RANK'])\n"
        "print('start', note.exists(), flush=True)\n"
        "if not note.exists(): note.touch(); time.sleep(600)\n"
    )
    plan = distributed(command(script), "pytorch", 2, 1)
    run = LocalBackend(Options(evict_after=(1.5,))).run(plan)
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1
    logs = [LocalRuns().logs(run)[str(rank)].read_text() for rank in range(2)]
    assert all("start False" in log and "start True" in log for log in logs)


@pytest.mark.slow
def test_a_time_limit_ends_ranks_under_torch(home: Path, command: Plans) -> None:
    """A time limit while the ranks wait for each other in torch's rendezvous."""
    script = ALL_REDUCE.replace("ranks.barrier()", "import time; time.sleep(600)")
    run = LocalBackend().run(replace(distributed(command(script), "pytorch"), timeout_s=8))
    assert run.error is not None and run.error.code == "timed-out"
    assert processes_of(run.id) == []


SPEC = """
type: command
code: ../code
command: python script.py
environment: azureml:ml-cpu:1
experiment_name: tests
resources: {instance_count: 2}
distribution: {type: mpi, process_count_per_instance: 2}
"""


@pytest.mark.slow
def test_a_killed_executor_leaves_no_rank(
    home: Path, ml_run: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGKILL of `ml run`: the reaper ends every process."""
    executor = ml_run(SPEC, STUBBORN)
    wait_for(lambda: trial_logs(home), executor)
    run = LocalRuns().find("latest")
    assert len(processes_of(run.id)) > 4
    executor.kill()
    executor.wait()
    deadline = time.monotonic() + 30
    while processes_of(run.id):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.1)
