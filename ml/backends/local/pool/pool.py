"""Start trials in milliseconds, by forking a process that has loaded their imports.

`Pool.start` forks trials whose command is a plain `python …` (`parse_command`), on Linux. It parses
the scripts, without executing them, to find their imports. Every other command runs in a shell, and
so does a trial whose forkserver ends early; the run records the reason. `MLOPS_POOL=off` turns the
pool off. tests/backends/test_pool_faithful.py lists the differences that a script can observe.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from multiprocessing import connection
from pathlib import Path

from ml.backends.local import process_environment
from ml.backends.local.pool import forkserver
from ml.backends.local.processes import reaper as reaper_script
from ml.backends.local.processes.process import Job, Reaper, RunProcess, Shell
from ml.backends.snapshot import Snapshot

# Commands that bash and `shlex` split into the same words.
_WORDS = re.compile(r"""(?:[^\s'"\\$`!;&|<>(){}*?\[\]~#]|[ \t]|'[^'\n]*'|"[^"\\$`!\n]*"|\\\n)+""")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SITE = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
# Code that changes the environment, which packages read at import, or `sys.modules` or `sys.path`.
_STEERS_IMPORTS = re.compile(
    rb"environ\s*(\[[^\]\n]*\]\s*=[^=]|\.\s*(update|setdefault|pop|popitem|clear)\b|\|=)"
    rb"|\bdel\b.*environ|putenv|unsetenv|load_dotenv|sys\s*\.\s*(modules|path)\b"
)


@dataclass(frozen=True)
class Invocation:
    """A parsed command: `program flags target arguments`, with `-m` if `is_module`."""

    program: str
    flags: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


class NotForkable(Exception):
    """A command must run in a shell, with a new interpreter; the message says why."""


def parse_command(command: str) -> Invocation:
    """Parse a command that starts a Python script or module. Raise NotForkable for any other."""
    command = command.strip()
    if not _WORDS.fullmatch(command):
        raise NotForkable("the command needs a shell")
    program, *words = shlex.split(command.replace("\\\n", ""))
    if not _PYTHON.fullmatch(program):
        raise NotForkable("the command does not start with `python`")
    flags = tuple(words[:1]) if words[:1] == ["-u"] else ()
    is_module = words[len(flags) :][:1] == ["-m"]
    target, *arguments = words[len(flags) + is_module :] or [""]
    if not target or target.startswith("-") or not (is_module or target.endswith(".py")):
        raise NotForkable(
            "the command is neither `python [-u] FILE.py` nor `python [-u] -m MODULE`"
        )
    return Invocation(program, flags, target, is_module, tuple(arguments))


def script_imports(root: Path, invocation: Invocation) -> tuple[str, ...]:
    """Return the third-party modules that the command imports when it is started in `root`.

    `from a import b` counts as a and a.b. Imports inside functions count; those under `if
    TYPE_CHECKING` do not. A file that cannot be parsed is skipped. Raise NotForkable if importing
    the modules before the script could change its result.
    """
    path = root / invocation.target
    base = root if invocation.is_module else path.parent
    if invocation.is_module:
        files = [*_files(base, f"{invocation.target}.__main__")]
    elif path.resolve().is_relative_to(root.resolve()) and path.is_file():
        files = [path]
    else:
        raise NotForkable(f"`{invocation.target}` is not a file of the code")
    names: dict[str, None] = {}
    for file in files:  # the loop appends to it
        for name in _names(file, base):
            top = name.partition(".")[0]
            if (base / top).is_dir() or (base / f"{top}.py").is_file():
                files += [new for new in _files(base, name) if new not in files]
            elif top not in sys.stdlib_module_names:
                names[name] = None
    for file in base.iterdir():
        if file.suffix in {".py", ".so", ".pyc"} or (file / "__init__.py").is_file():
            spec = PathFinder.find_spec(file.name.partition(".")[0], _SITE)
            if spec is not None and spec.loader is not None:
                raise NotForkable(f"the code's module `{spec.name}` shadows an installed module")
    return tuple(names)


def _files(base: Path, name: str) -> Iterator[Path]:
    """Yield the files below `base` that `import name` executes."""
    for part in name.split("."):
        base /= part
        yield from filter(Path.is_file, (base / "__init__.py", base.with_suffix(".py")))


def _names(file: Path, base: Path) -> Iterator[str]:
    """Yield the modules that a file of the code imports.

    Raise NotForkable if the file changes the environment or the import path (`_STEERS_IMPORTS`).
    """
    try:
        source = file.read_bytes()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    if match := _STEERS_IMPORTS.search(source):
        line = source.count(b"\n", 0, match.start()) + 1
        raise NotForkable(f"{file.name}:{line} changes the environment, or where modules are found")
    package = file.relative_to(base).parts[:-1]
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join(filter(None, [*above, node.module]))
            yield from filter(None, [module])
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield node
            yield from _statements(node)


SWITCH = "MLOPS_POOL"
FORKED = "forked after its imports"
SINGLE = "a fork does not speed up a single run"
# The maximum number of forkservers: enough for a pipeline's sweeps, and each needs memory.
MOST = 4
# Package → a module that it imports lazily, to be imported too.
_LAZY = {"mlflow": "mlflow.store.tracking.sqlalchemy_store"}
# Files in the working directory that Python or a package reads at its start or import.
_READ_AT_START = (process_environment.PACKAGES, "matplotlibrc", ".env")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a forkserver; trials with equal settings share one."""

    program: str
    flags: tuple[str, ...]
    modules: tuple[str, ...]
    variables: frozenset[tuple[str, str]]


class Pool:
    """The forkservers of one job; call `close` at the end."""

    def __init__(self, reaper: Reaper) -> None:
        self.reaper = reaper
        self._servers: dict[ServerSettings, ForkServer] = {}
        self._modules: dict[object, tuple[str, ...]] = {}
        self.running: set[Forked] = set()

    def start(self, job: Job, snapshot: Snapshot | None, is_one_of_many: bool) -> RunProcess:
        """Fork the job if more follow and the script allows it; otherwise start a shell."""
        try:
            if not is_one_of_many:
                raise NotForkable(SINGLE)
            invocation = parse_command(job.command)
            return Forked(job, invocation, self._server(invocation, job, snapshot), self)
        except NotForkable as error:
            return self.shell(job, str(error))

    def warm(self, job: Job, snapshot: Snapshot | None) -> None:
        """Start a forkserver for trials like `job` in advance, since its imports take seconds."""
        with contextlib.suppress(NotForkable):
            self._server(parse_command(job.command), job, snapshot)

    def shell(self, job: Job, why: str) -> RunProcess:
        """Start the job in a shell; `why` is the reason, which the run records."""
        return Shell(job, self.reaper, why)

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a forked process has started or ended."""
        connection.wait([forked.connection for forked in self.running], seconds)

    def close(self) -> None:
        """End the forkservers; all runs must have ended."""
        for server in self._servers.values():
            server.close()

    def _server(self, invocation: Invocation, job: Job, snapshot: Snapshot | None) -> ForkServer:
        """Return the trial's forkserver, started if necessary; raise NotForkable if impossible."""
        settings = self._settings(invocation, job, snapshot)
        if settings not in self._servers:
            if len(self._servers) >= MOST:
                raise NotForkable(f"{MOST} forkservers are already running, the maximum")
            try:
                self._servers[settings] = ForkServer(settings, self.reaper)
            except OSError as error:
                raise NotForkable(f"no forkserver could be started ({error.strerror})") from None
        if self._servers[settings].has_ended:
            raise NotForkable(self._servers[settings].end())
        return self._servers[settings]

    def _settings(
        self, invocation: Invocation, job: Job, snapshot: Snapshot | None
    ) -> ServerSettings:
        """Return the settings of the trial's forkserver; raise NotForkable if it needs a shell."""
        if os.environ.get(SWITCH, "").lower() in {"off", "0", "no", "false"}:
            raise NotForkable(f"{SWITCH} turns the pool off")
        if sys.platform != "linux":
            raise NotForkable("this system is not Linux")
        if snapshot is None:
            raise NotForkable("the job has no code")
        for name in _READ_AT_START:
            if (snapshot.folder / name).exists():
                raise NotForkable(f"the code contains {name}, which Python reads at its start")
        program = shutil.which(invocation.program, path=job.environment["PATH"])
        # Built environments link to the same Python: compare the folders, not the resolved file.
        if program is None or not Path(program).parent.samefile(Path(sys.executable).parent):
            raise NotForkable(f"`{invocation.program}` is another interpreter")
        if job.environment["PYTHONPATH"] != str(job.cwd / process_environment.PACKAGES):
            raise NotForkable("PYTHONPATH is set")
        shared = {
            name: value
            for name, value in job.environment.items()
            if not process_environment.is_of_a_run(name)
        }
        for name, value in shared.items():
            if name.startswith("PYTHON") and name not in {"PYTHONHASHSEED", "PYTHONUNBUFFERED"}:
                raise NotForkable(f"{name} is set")
            if str(job.cwd.parent) in value:
                raise NotForkable(f"{name} differs between trials")
        key = (snapshot.digest, invocation.target, invocation.is_module)
        if key not in self._modules:
            self._modules[key] = script_imports(snapshot.folder, invocation)
        modules = self._modules[key]
        tops = {name.partition(".")[0] for name in modules}
        modules += tuple(later for top, later in _LAZY.items() if top in tops)
        return ServerSettings(program, invocation.flags, modules, frozenset(shared.items()))


class ForkServer:
    """A process that runs `forkserver`; it ends with this process."""

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
        """Whether the forkserver has exited."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Wait 5 s, then kill it; return a message with its exit code and last line of output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-1:]
        return f"the forkserver ended ({': '.join([f'exit code {code}', *lines])})"

    def fork(self) -> socket.socket:
        """Return a socket to a new process: read its pid, send a run, read its exit code."""
        mine, its = socket.socketpair()
        with its, contextlib.suppress(OSError):  # it has ended: the socket will be closed
            socket.send_fds(self._control, [b"+"], [its.fileno()])
        return mine

    def close(self) -> None:
        """End the forkserver, and remaining processes of its runs in other sessions."""
        self._control.close()
        reaper_script.kill(self._name, self._process.pid)
        self._process.wait()
        self._reaper.tell("-", self._name)
        self._log.close()


class Forked(RunProcess):
    """A run whose process a forkserver forks, or a shell starts if the forkserver has ended.

    `connection` becomes readable when the process has started, and when it has ended.
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
    def start_method(self) -> str:
        """See RunProcess."""
        return self._shell.start_method if self._shell else FORKED

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
            # Without a number the forkserver was killed, and the exit code is unknown.
            self._end(int(number or -signal.SIGKILL))
        else:
            self._end(None)
            self._shell = self._pool.shell(self._job, self._server.end())

    def _end(self, code: int | None) -> None:
        self._code = code
        self._pool.running.discard(self)
        self.connection.close()

    def _run(self) -> bytes:
        """Return the run as JSON, for `forkserver.execute`."""
        cwd = str(self._job.cwd)
        # The three variables that bash sets for a command.
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
