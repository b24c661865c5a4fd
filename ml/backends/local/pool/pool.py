"""Trials that start in milliseconds: forked by a process that has imported what they import.

`Pool.start` does that for trials whose command is a plain `python …` (`script.parse`), on Linux.
Every other command gets a shell, and the reason is kept with the run. So does a trial whose
forkserver ends before it has forked it. `MLOPS_POOL=off` turns the pool off.
tests/backends/test_pool_faithful.py lists what a script can see of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from ml.backends.local import process_environment
from ml.backends.local.pool import forkserver, script
from ml.backends.local.pool.script import Invocation, Unfit
from ml.backends.local.processes import reaper as reaper_script
from ml.backends.local.processes.process import Job, Reaper, RunProcess, Shell
from ml.backends.snapshot import Snapshot

SWITCH = "MLOPS_POOL"
FORKED = "forked after its imports"
SINGLE = "a single run would wait for the same imports"
# More than a pipeline has kinds of sweeps. Each forkserver holds the memory of its packages.
MOST = 4
# What packages import when they are first used.
_LAZY = {"mlflow": "mlflow.store.tracking.sqlalchemy_store"}
# Files of a working folder that Python or a package looks for when it starts or is imported.
_READ_AT_START = (process_environment.PACKAGES, "matplotlibrc", ".env")


@dataclass(frozen=True)
class ServerSettings:
    """What a forkserver is started with: trials that need the same share one."""

    program: str
    flags: tuple[str, ...]
    modules: tuple[str, ...]
    variables: frozenset[tuple[str, str]]


class Pool:
    """The forkservers of one executor. `close` it at the end."""

    def __init__(self, reaper: Reaper) -> None:
        self.reaper = reaper
        self._servers: dict[ServerSettings, ForkServer] = {}
        self._modules: dict[object, tuple[str, ...]] = {}
        self.running: set[Forked] = set()

    def start(self, job: Job, snapshot: Snapshot | None, is_one_of_many: bool) -> RunProcess:
        """Fork it if others like it follow and the script cannot tell; start a shell otherwise."""
        try:
            if not is_one_of_many:
                raise Unfit(SINGLE)
            invocation = script.parse(job.command)
            return Forked(job, invocation, self._server(invocation, job, snapshot), self)
        except Unfit as unfit:
            return self.shell(job, str(unfit))

    def warm(self, job: Job, snapshot: Snapshot | None) -> None:
        """Start a forkserver for such trials: it takes seconds in which others can work."""
        with contextlib.suppress(Unfit):
            self._server(script.parse(job.command), job, snapshot)

    def shell(self, job: Job, why: str) -> RunProcess:
        """Start it as if there were no pool."""
        return Shell(job, self.reaper, why)

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than until a process that it forked has begun or ended."""
        connection.wait([forked.connection for forked in self.running], seconds)

    def close(self) -> None:
        """End the forkservers; runs have ended before."""
        for server in self._servers.values():
            server.close()

    def _server(self, invocation: Invocation, job: Job, snapshot: Snapshot | None) -> ForkServer:
        """The forkserver for the trial, started if there is none; Unfit when there can be none."""
        settings = self._settings(invocation, job, snapshot)
        if settings not in self._servers:
            if len(self._servers) >= MOST:
                raise Unfit(f"{MOST} forkservers run for others")
            try:
                self._servers[settings] = ForkServer(settings, self.reaper)
            except OSError as error:
                raise Unfit(f"no forkserver could be started ({error.strerror})") from None
        if self._servers[settings].has_ended:
            raise Unfit(self._servers[settings].end())
        return self._servers[settings]

    def _settings(
        self, invocation: Invocation, job: Job, snapshot: Snapshot | None
    ) -> ServerSettings:
        """What the trial needs of a forkserver; Unfit when none can do what a shell does."""
        if os.environ.get(SWITCH, "").lower() in {"off", "0", "no", "false"}:
            raise Unfit(f"{SWITCH} turns the pool off")
        if sys.platform != "linux":
            raise Unfit("this system is not Linux")
        if snapshot is None:
            raise Unfit("the job has no code")
        for name in _READ_AT_START:
            if (snapshot.folder / name).exists():
                raise Unfit(f"the code has {name}, which is read before the script")
        program = shutil.which(invocation.program, path=job.environment["PATH"])
        # Environments that were built have links to the same Python: the folder tells them apart.
        if program is None or not Path(program).parent.samefile(Path(sys.executable).parent):
            raise Unfit(f"`{invocation.program}` is another interpreter")
        if job.environment["PYTHONPATH"] != str(job.cwd / process_environment.PACKAGES):
            raise Unfit("PYTHONPATH is set")
        shared = {
            name: value
            for name, value in job.environment.items()
            if not process_environment.is_of_a_run(name)
        }
        for name, value in shared.items():
            if name.startswith("PYTHON") and name not in {"PYTHONHASHSEED", "PYTHONUNBUFFERED"}:
                raise Unfit(f"{name} is set")
            if str(job.cwd.parent) in value:
                raise Unfit(f"{name} is another for every trial")
        key = (snapshot.digest, invocation.target, invocation.is_module)
        if key not in self._modules:
            self._modules[key] = script.imports(snapshot.folder, invocation)
        modules = self._modules[key]
        tops = {name.partition(".")[0] for name in modules}
        modules += tuple(later for top, later in _LAZY.items() if top in tops)
        return ServerSettings(program, invocation.flags, modules, frozenset(shared.items()))


class ForkServer:
    """A process that runs `forkserver`, and ends with the executor."""

    def __init__(self, settings: ServerSettings, reaper: Reaper) -> None:
        self.program, self._reaper, self._name = settings.program, reaper, uuid.uuid4().hex
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._control, control = socket.socketpair()
        with control:
            words = [*settings.flags, forkserver.__file__, str(control.fileno())]
            self._process = subprocess.Popen(
                [settings.program, *words, *settings.modules],
                cwd="/",
                env={**dict(settings.variables), "MLFLOW_RUN_ID": self._name},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[control.fileno()],
            )
        reaper.tell("+", self._name, self._process.pid)

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be forked any more."""
        return self._process.poll() is not None

    def end(self) -> str:
        """End it, and say how it ended: its exit code and its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-1:]
        return f"the forkserver ended ({': '.join([f'exit code {code}', *lines])})"

    def fork(self) -> socket.socket:
        """Ask for a process, which sends its id and receives a run; then comes its exit code."""
        mine, its = socket.socketpair()
        with its, contextlib.suppress(OSError):  # it has ended: nothing will be sent
            socket.send_fds(self._control, [b"+"], [its.fileno()])
        return mine

    def close(self) -> None:
        """End it, and what forked processes have left in sessions of their own."""
        self._control.close()
        reaper_script.kill(self._name, self._process.pid)
        self._process.wait()
        self._reaper.tell("-", self._name)
        self._log.close()


class Forked(RunProcess):
    """A run whose process a forkserver forks, or a shell starts if the forkserver has ended.

    `connection` is readable when the process is there, and when it has ended.
    """

    def __init__(self, job: Job, invocation: Invocation, server: ForkServer, pool: Pool) -> None:
        super().__init__(job.run_id, pool.reaper)
        self._job, self._invocation, self._server, self._pool = job, invocation, server, pool
        self._shell: RunProcess | None = None
        self._pid: int | None = None
        self._code: int | None = None
        self.connection = server.fork()
        pool.running.add(self)

    @property
    def group(self) -> int | None:
        """See RunProcess."""
        return self._shell.group if self._shell else self._pid

    @property
    def way(self) -> str:
        """See RunProcess."""
        return self._shell.way if self._shell else FORKED

    def _first(self) -> int | None:
        if self._shell is None and self._code is None:
            if self._pid is None and self._kill_at is not None:
                is_killed = time.monotonic() >= self._kill_at
                self._end(-(signal.SIGKILL if is_killed else signal.SIGTERM))
            elif connection.wait([self.connection], 0):
                self._receive()
        return self._shell._first() if self._shell else self._code

    def _receive(self) -> None:
        number = self.connection.recv(32)
        if number and self._pid is None:
            self._pid = int(number)
            self._reaper.tell("+", self._run_id, self._pid)
            with contextlib.suppress(BrokenPipeError):
                self.connection.sendall(self._run())
                self.connection.shutdown(socket.SHUT_WR)
        elif number or self._pid is not None:
            # Without the number the forkserver was killed, and how the process ends is unknown.
            self._end(int(number or -signal.SIGKILL))
        else:
            self._end(None)
            self._shell = self._pool.shell(self._job, self._server.end())

    def _end(self, code: int | None) -> None:
        self._code = code
        self._pool.running.discard(self)
        self.connection.close()

    def _run(self) -> bytes:
        """The run, as `forkserver.execute` reads it."""
        cwd = str(self._job.cwd)
        # bash sets three variables when it executes a command.
        bash = {"PWD": cwd, "SHLVL": "0", "_": self._server.program}
        run = {
            "target": self._invocation.target,
            "is_module": self._invocation.is_module,
            "arguments": self._invocation.arguments,
            "cwd": cwd,
            "environment": {**self._job.environment, **bash},
            "log": str(self._job.log),
        }
        return json.dumps(run).encode()
