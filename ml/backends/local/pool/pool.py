"""Trials that start in milliseconds: forked by a `multiprocessing` forkserver that has imported
what their script imports.

`Pool.start` does that for commands that are a plain `python …` (`script.parse`), on Linux. Every
other command gets a shell, and the reason is kept with the run. So does a trial whose forkserver
ends before it has forked it. `MLOPS_POOL=off` turns the pool off. What a script sees is the same
either way; tests/backends/test_pool_faithful.py lists the exceptions.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver, reduction
from pathlib import Path

from ml.backends.local import process_environment
from ml.backends.local.pool import script
from ml.backends.local.pool.child import Start
from ml.backends.local.pool.script import Invocation, Unfit
from ml.backends.local.processes.process import Job, Reaper, RunProcess, Shell
from ml.backends.snapshot import Snapshot
from ml.core.imports import BIND

SWITCH = "MLOPS_POOL"
FORKED = "forked after its imports"
NO_SERVER = "no forkserver is there for it"
# More than a pipeline has kinds of sweeps. Each forkserver holds the memory of its packages.
MOST = 4
# What packages import when they are first used.
_LAZY = {"mlflow": "mlflow.store.tracking.sqlalchemy_store"}
# Variables of Python that say nothing about where it looks for modules.
_HARMLESS = frozenset(
    {f"PYTHON{name}" for name in ("HASHSEED", "UNBUFFERED", "WARNINGS", "IOENCODING", "UTF8")}
    | {"PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE"}
)
# Files of a working folder that Python or a package looks for when it starts or is imported.
_READ_AT_START = (process_environment.PACKAGES, "matplotlibrc", ".env")
_SERVE = (
    "import sys; del sys.path[0]; {bind}; from ml.backends.local.pool import child; "
    "child.serve({listener}, {alive}, {modules!r})"
)


@dataclass(frozen=True)
class ServerSettings:
    """What a forkserver is started with: jobs that need the same share one."""

    program: str
    flags: tuple[str, ...]
    modules: tuple[str, ...]
    variables: frozenset[tuple[str, str]]


class Pool:
    """The forkservers of one executor. `close` it at the end.

    A `shared` one is for runs to come as well. It starts a forkserver for whatever logs: to import
    MLflow takes seconds.
    """

    def __init__(self, reaper: Reaper, shared: bool = False) -> None:
        self._reaper, self._shared = reaper, shared
        self._servers: dict[ServerSettings, Server] = {}
        self._modules: dict[object, tuple[str, ...]] = {}
        self.running: set[Forked] = set()

    def start(self, job: Job, snapshot: Snapshot | None, make: bool = True) -> RunProcess:
        """Fork it if that is the same to the script, start a shell otherwise.

        Without `make` no forkserver is started for it; one that fits is used.
        """
        try:
            invocation = script.parse(job.command)
            server = self._server(self._settings(invocation, job, snapshot), make)
            return Forked(job, invocation, server, self)
        except Unfit as unfit:
            return self.shell(job, str(unfit))

    def warm(self, job: Job, snapshot: Snapshot | None) -> None:
        """Start a forkserver for such jobs: it takes seconds in which others can work."""
        with contextlib.suppress(Unfit):
            self._server(self._settings(script.parse(job.command), job, snapshot), make=True)

    def shell(self, job: Job, why: str) -> RunProcess:
        """Start it as if there were no pool."""
        return Shell(job, self._reaper, why)

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than until a process that it forked has begun or ended."""
        connection.wait([forked.status for forked in self.running], seconds)

    def close(self) -> None:
        """End the forkservers; runs have ended before."""
        for server in self._servers.values():
            server.close()

    def _server(self, settings: ServerSettings, make: bool) -> Server:
        """The forkserver that has these settings; Unfit when there is none."""
        if settings not in self._servers:
            logs = any(name.startswith("mlflow") for name in settings.modules)
            if not (make or (self._shared and logs)) or len(self._servers) >= MOST:
                raise Unfit(NO_SERVER)
            try:
                self._servers[settings] = Server(settings, self._reaper)
            except OSError as error:
                raise Unfit(f"no forkserver could be started ({error.strerror})") from None
        if failure := self._servers[settings].failure:
            raise Unfit(failure)
        return self._servers[settings]

    def _settings(
        self, invocation: Invocation, job: Job, snapshot: Snapshot | None
    ) -> ServerSettings:
        """What the job needs of a forkserver; Unfit when none can do what a shell does."""
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
        own = process_environment.is_of_a_run
        shared = {name: value for name, value in job.environment.items() if not own(name)}
        for name, value in shared.items():
            if name.startswith("PYTHON") and name not in _HARMLESS:
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


class Server:
    """A process that runs `multiprocessing.forkserver`, and ends with the executor.

    `multiprocessing` itself starts one a program, with the program's environment. Here there is one
    for each `ServerSettings`: packages read the trials' environment when they are imported.
    """

    def __init__(self, settings: ServerSettings, reaper: Reaper) -> None:
        self.program, self.reaper = settings.program, reaper
        self._name = uuid.uuid4().hex  # as long as a run's id, which replaces it (child.py)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        alive, self._alive = os.pipe()
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen()
            # The file goes with its folder: only who holds this descriptor can connect.
            self._address = os.open(f"{folder}/socket", os.O_PATH)
            code = _SERVE.format(
                bind=BIND, listener=listener.fileno(), alive=alive, modules=list(settings.modules)
            )
            self._process = subprocess.Popen(
                [settings.program, *settings.flags, "-c", code],
                cwd="/",
                env={**dict(settings.variables), "MLFLOW_RUN_ID": self._name},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(listener.fileno(), alive),
            )
        os.close(alive)
        reaper.tell("+", self._name, self._process.pid)

    @property
    def failure(self) -> str:
        """Why nothing can be forked, "" if it can."""
        return self.end() if self._process.poll() is not None else ""

    def end(self) -> str:
        """How it ended, or does now: its exit code and its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-1:]
        return f"the forkserver ended ({': '.join([f'exit code {code}', *lines])})"

    def fork(self) -> tuple[int, int]:
        """Ask for a process: where its id and its exit code will be read (see `read_signed` of
        multiprocessing.forkserver), and where what it is to do is to be written."""
        status, its_status = os.pipe()
        its_work, work = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)  # it shares no resource tracker
        try:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(f"/proc/self/fd/{self._address}")
                reduction.sendfds(client, [its_work, its_status, self._alive, nothing])
        finally:
            for number in (its_work, its_status, nothing):
                os.close(number)
        return status, work

    def close(self) -> None:
        """End it."""
        os.close(self._alive)
        os.close(self._address)
        self._process.kill()  # it has nothing to write, and would first end its imports
        self._process.wait()
        self.reaper.tell("-", self._name)
        self._log.close()


class Forked(RunProcess):
    """A run whose process a forkserver forks, or a shell starts if the forkserver has ended.

    `status` is readable when the process is there, and when it has ended.
    """

    def __init__(self, job: Job, invocation: Invocation, server: Server, pool: Pool) -> None:
        super().__init__(job.run_id, server.reaper)
        self._job, self._invocation, self._server, self._pool = job, invocation, server, pool
        self._shell: RunProcess | None = None
        self._pid: int | None = None
        self._code: int | None = None
        self.status, self._work = server.fork()
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
                os.close(self._work)  # it reads that there is nothing to do
                is_killed = time.monotonic() >= self._kill_at
                self._end(-(signal.SIGKILL if is_killed else signal.SIGTERM))
            elif connection.wait([self.status], 0):
                self._read()
        return self._shell._first() if self._shell else self._code

    def _read(self) -> None:
        try:
            number = forkserver.read_signed(self.status)
        except EOFError:  # the forkserver was killed
            if self._pid is None:
                os.close(self._work)
                self._end(None)
                self._shell = self._pool.shell(self._job, self._server.end())
            else:  # who ends what it has forked, and how, nobody can tell any more
                self._end(-signal.SIGKILL)
            return
        if self._pid is not None:
            self._end(number)
            return
        self._pid = number
        self._reaper.tell("+", self._run_id, number)
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._work, "wb") as work:
            work.write(self._task())

    def _end(self, code: int | None) -> None:
        self._code = code
        self._pool.running.discard(self)
        os.close(self.status)

    def _task(self) -> bytes:
        """What `multiprocessing.spawn` reads in the forked process: what to prepare, and a call."""
        called, cwd = self._invocation, str(self._job.cwd)
        words = [*(["-m"] if called.is_module else []), called.target, *called.arguments]
        prepare = {
            "dir": cwd,
            "orig_dir": cwd,
            "sys_argv": [called.target, *called.arguments],
            "authkey": os.urandom(32),
        }
        # bash sets three variables when it executes a command.
        variables = {"PWD": cwd, "SHLVL": "0", "_": self._server.program}
        start = Start(
            called.target,
            called.is_module,
            [called.program, *called.flags, *words],
            {**self._job.environment, **variables},
            str(self._job.log),
        )
        return pickle.dumps(prepare) + pickle.dumps(start)


_shared: list[Pool] = []


@contextlib.contextmanager
def shared_pool() -> Iterator[None]:
    """Runs that this process starts within use one pool; its forkservers end with the context.

    For a program that carries out several runs of the same scripts.
    """
    with (
        contextlib.closing(Reaper()) as reaper,
        contextlib.closing(Pool(reaper, shared=True)) as pool,
    ):
        _shared.append(pool)
        try:
            yield
        finally:
            _shared.remove(pool)


def pool_of_a_run(reaper: Reaper) -> contextlib.AbstractContextManager[Pool]:
    """The shared pool, if there is one, else one that ends with the run."""
    return contextlib.nullcontext(_shared[-1]) if _shared else contextlib.closing(Pool(reaper))
