"""Functions run as the processes of a distributed job, forked from a server that has torch.

A process costs what its function does, and not the two seconds of its imports.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests import forks

forks.preload("tests.toolkit.torch.training")
TIMEOUT_S = 120.0


@dataclass
class Ranks:
    """The processes, and the folder of what they print."""

    processes: list[ForkServerProcess]
    logs: Path

    def wait(self, timeout_s: float = TIMEOUT_S) -> list[int]:
        """Every exit code; what has not ended by then is killed, and that is an error."""
        ends = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, ends - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        assert not late, f"{len(late)} ranks did not end:\n{self.text()}"
        return [int(process.exitcode or 0) for process in self.processes]

    def signal(self, number: int, *ranks: int) -> None:
        """Send a signal to these ranks that still run, or to all."""
        for rank in ranks or range(len(self.processes)):
            process = self.processes[rank]
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def text(self, rank: int | None = None) -> str:
        """What a rank has printed, or all, without the lines that name its device."""
        names = [f"{rank}.txt"] if rank is not None else sorted(p.name for p in self.logs.iterdir())
        printed = "".join((self.logs / name).read_text() for name in names)
        return re.sub(r"(?m)^process \d+ of \d+: .*\n", "", printed)


def start(function: Callable[..., Any], size: int, logs: Path, *arguments: Any) -> Ranks:
    """Start `size` processes of `function(*arguments)`, a function of a module."""
    logs.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(size):
        (logs / f"{rank}.txt").touch()
    return Ranks(
        [forks.start(_rank, function, rank, size, port, logs, arguments) for rank in range(size)],
        logs,
    )


def run(function: Callable[..., Any], size: int, logs: Path, *arguments: Any) -> Ranks:
    """The same, ended without an error."""
    ranks = start(function, size, logs, *arguments)
    codes = ranks.wait()
    assert codes == [0] * size, ranks.text()
    return ranks


def _rank(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    logs: Path,
    arguments: tuple[Any, ...],
) -> None:
    log = os.open(logs / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if size > 1:
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {name: str(number) for name, number in variables.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    if size > torch.cuda.device_count():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a machine with fewer GPUs: they meet on CPUs
    torch.set_num_threads(1)
    code = 0
    try:
        function(*arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        if not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; an error after TIMEOUT_S."""
    ends = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)
