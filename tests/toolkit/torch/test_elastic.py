"""Elastic trainings: agents of torchrun go and come, and no row is lost or counted twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ml.backends.local import distribution
from ml.backends.local.processes import reaper
from ml.toolkit.torch import generations
from tests.conftest import ROOT
from tests.shared import once
from tests.toolkit.torch import elastic, ranks

# Rehearsals in `make torture`, with `--quick`, and cases that share them.
REHEARSALS, QUICK, CASES = 100, 20, 4
EPOCHS, STEPS = 6, 60
# Timeouts as short as a rehearsal of seconds needs them.
TORCHRUN = [
    *("-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"),
    *("--max-restarts", "50", "--rdzv-backend", "c10d", "--rdzv-id", "rehearsal"),
    *("--rdzv-conf", "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"),
]


class Agents:
    """Two agents of one training, with all that they start; each stands for a node."""

    def __init__(self, folder: Path, data: Path, pause_s: float) -> None:
        (self._port,) = distribution.free_ports(1)
        self.others: list[Agents] = []  # that write to the same folder
        self._folder, self._data, self._pause_s = folder, data, pause_s
        self._logs = folder.with_name(f"{folder.name}-logs")
        self._logs.mkdir(exist_ok=True)
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        """Start the agent of a node; the first one has the rendezvous."""
        script = [elastic.__file__, self._folder, self._data, EPOCHS, self._pause_s]
        endpoint = ["--rdzv-endpoint", f"{distribution.HOST}:{self._port}"]
        with (self._logs / f"{self._port}-{node}.txt").open("ab") as log:
            self.running[node] = subprocess.Popen(
                [sys.executable, *TORCHRUN, *endpoint, *map(str, script)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    "MLFLOW_RUN_ID": self._id,
                    "NODE_RANK": str(node),
                    # torch 2.13 cannot grow a world whose agents share the store.
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                },
            )
        if node == 0:
            ranks.wait_for(lambda: self._is_host() or self.running[0].poll() is not None)

    def _is_host(self) -> bool:
        # 0A: listening.
        wanted = f":{self._port:04X} "
        lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        return any(wanted in line.split(" 0A ")[0] for line in lines.splitlines() if " 0A " in line)

    @property
    def _id(self) -> str:
        return f"elastic-{os.getpid()}-{self._port}"

    def signal(self, number: int, node: int) -> None:
        """To the agent of a node and all that it has started."""
        reaper.send(number, self._id, None, node)

    def kill(self, node: int) -> None:
        """Lose a node."""
        reaper.kill(self._id, None, node)
        self.running.pop(node).wait()

    def workers(self, node: int) -> list[int]:
        """The training processes of a node."""
        numbers = reaper.processes_of(self._id, None, node)
        return [number for number in numbers if number != self.running[node].pid]

    def start_again(self) -> None:
        """Start the same training, one agent, while this one goes on."""
        self.others.append(Agents(self._folder, self._data, self._pause_s))
        self.others[-1].start(0)

    def end(self) -> None:
        """End all that is left."""
        for other in self.others:
            other.end()
        for node in [*self.running]:
            self.kill(node)

    @property
    def steps(self) -> dict[int, int]:
        """The last step by the size of its world."""
        journal = self._folder / "journal.jsonl"
        entries = elastic.entries(journal) if journal.exists() else ()
        return {of["size"]: of["step"] for of in entries if "step" in of}

    def text(self) -> str:
        """What the agents and the trainings have printed."""
        return "".join(path.read_text() for path in sorted(self._logs.iterdir()))


@pytest.fixture
def rehearse(tmp_path: Path) -> Iterator[Callable[..., Agents]]:
    """Start two agents, which are ended after the test."""
    every: list[Agents] = []

    def start(folder: Path, data: Path, pause_s: float) -> Agents:
        agents = Agents(folder, data, pause_s)
        every.append(agents)
        agents.start(0)
        agents.start(1)
        return agents

    yield start
    for agents in every:
        agents.end()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, elastic.Account]:
    """The data, and a training of two processes that nothing interrupted."""

    def fill(folder: Path) -> None:
        data = elastic.write_rows(folder / "data")
        ranks.run(elastic.main, 2, folder / "logs", folder / "whole", data, EPOCHS, 0.0)

    folder = once(tmp_path_factory, "elastic", fill)
    account = elastic.account(folder / "whole", folder / "data", EPOCHS)
    assert account.repeated == 0 and len(account.losses) == STEPS
    return folder / "data", account


@pytest.mark.slow
def test_the_world_shrinks_and_grows(
    tmp_path: Path, whole: tuple[Path, elastic.Account], rehearse: Callable[..., Agents]
) -> None:
    """A node is lost and the other goes on alone; another node comes, and both go on."""
    data, uninterrupted = whole
    agents = rehearse(tmp_path / "training", data, 0.4)
    ranks.wait_for(lambda: 2 in agents.steps)
    agents.kill(1)
    ranks.wait_for(lambda: 1 in agents.steps)
    agents.start(1)
    before = agents.steps[1]
    ranks.wait_for(lambda: agents.steps.get(2, 0) > before)
    assert [agents.running[node].wait(300) for node in (0, 1)] == [0, 0], agents.text()
    account = elastic.account(tmp_path / "training", data, EPOCHS)
    assert account.sizes == (2, 1, 2)
    assert account.losses == pytest.approx(uninterrupted.losses, rel=1e-3)
    assert account.repeated <= elastic.EVERY * elastic.BATCH


@pytest.mark.slow
def test_the_rendezvous_is_lost(
    tmp_path: Path, whole: tuple[Path, elastic.Account], rehearse: Callable[..., Agents]
) -> None:
    """The other agent ends within a minute, with an error that names the rendezvous."""
    data, _ = whole
    agents = rehearse(tmp_path / "training", data, 0.4)
    ranks.wait_for(lambda: 2 in agents.steps)
    agents.kill(0)
    assert agents.running[1].wait(60) == 1, agents.text()
    assert agents.workers(1) == []
    assert "RendezvousConnectionError" in agents.text()


# What happens to a node → how, and whether its agent is gone.
HARMS: dict[str, Callable[[Agents, int], bool]] = {}


def harm(act: Callable[[Agents, int], bool]) -> Callable[[Agents, int], bool]:
    """Register it by its name."""
    HARMS[act.__name__] = act
    return act


@harm
def node_lost(agents: Agents, node: int) -> bool:
    """SIGKILL to the agent and its process."""
    agents.kill(node)
    return True


@harm
def agent_killed(agents: Agents, node: int) -> bool:
    """Its process goes on without it for a while."""
    agents.running[node].kill()
    time.sleep(2)
    agents.kill(node)
    return True


@harm
def evicted_with_notice(agents: Agents, node: int) -> bool:
    """SIGTERM, and a few seconds to save."""
    agents.signal(signal.SIGTERM, node)
    time.sleep(5)
    agents.kill(node)
    return True


@harm
def process_killed(agents: Agents, node: int) -> bool:
    """The agent starts it again."""
    for number in agents.workers(node):
        os.kill(number, signal.SIGKILL)
    return False


@harm
def stopped(agents: Agents, node: int) -> bool:
    """So long that the others hold it for dead, and then it goes on."""
    agents.signal(signal.SIGSTOP, node)
    time.sleep(10)
    agents.signal(signal.SIGCONT, node)
    return False


@harm
def started_twice(agents: Agents, node: int) -> bool:
    """Two worlds train into one folder: each start supersedes the other."""
    agents.start_again()
    return False


@pytest.mark.torture(only=True)
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", range(CASES))
def test_rehearsals_with_random_kills(
    tmp_path: Path,
    whole: tuple[Path, elastic.Account],
    rehearse: Callable[..., Agents],
    case: int,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever happens to the nodes, every row counts once, and the losses are those of a training
    that nothing interrupted. Where the rendezvous is lost, the job starts again, as on Azure ML.
    """
    data, uninterrupted = whole
    draw = random.Random(case)
    count = (QUICK if request.config.getoption("--quick") else REHEARSALS) // CASES
    done: dict[str, int] = dict.fromkeys(
        ["rehearsals", *HARMS, "job restarted", "rows repeated"], 0
    )
    # Also when a rehearsal fails.
    record_property("elastic", done)
    for number in range(count):
        folder = tmp_path / str(number)
        name, node = draw.choice([*HARMS]), int(draw.random() < 0.75)
        # A second start needs seconds until it trains, and the first one is not to end before.
        agents = rehearse(folder, data, 0.8 if name == "started_twice" else 0.2)
        ranks.wait_for(lambda agents=agents: bool(agents.steps))  # type: ignore[misc]
        time.sleep(draw.uniform(0, 4))
        done[name] += 1
        if HARMS[name](agents, node):
            time.sleep(draw.uniform(0, 12))
            if node == 1:
                agents.start(1)
        ends = time.monotonic() + 240
        while len([*folder.glob(f"step-{STEPS:08}")]) == 0:
            assert time.monotonic() < ends, agents.text()
            if agents.running.get(0) is None or agents.running[0].poll() is not None:
                agents.end()
                done["job restarted"] += 1
                agents.start(0)
                agents.start(1)
            time.sleep(0.1)
        agents.end()
        account = elastic.account(folder, data, EPOCHS)
        assert account.losses == pytest.approx(uninterrupted.losses, rel=1e-3)
        # A write of a superseded start may have made its folder again: the next start deletes it.
        last = generations.Generation.claim(folder)
        assert [*(folder / generations.FOLDER).iterdir()] == [last.path]
        done["rehearsals"] += 1
        done["rows repeated"] += account.repeated
