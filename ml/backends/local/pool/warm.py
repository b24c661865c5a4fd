"""The executor's end of a warm interpreter (see `ml.backends.local.pool.zygote`)."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml.backends.local import environment
from ml.backends.local.pool.imports import Imports
from ml.backends.local.pool.plain_python import Invocation
from ml.backends.local.processes.process import Watchman
from ml.core import home

FORKED = "forked from a warm interpreter"
# What stands for the folder of a run's own packages until there is one.
PAD = "/.packages-of-a-run"
# Keeps room where the system looks up the environment of a process (see `forked`).
ROOM = "MLOPS_ROOM"
ZYGOTE = Path(__file__).with_name("zygote.py")
LARGEST = 1 << 20  # bytes of a message
STORE = "the tracking store"  # as the zygote calls it
# How often one is made again without what it should not have imported.
TRIES = 8


@dataclass(frozen=True)
class Ask:
    """A command for a warm interpreter; those with the same `key` can be forked from the same."""

    called: Invocation
    program: str
    imports: Imports
    variables: Mapping[str, str]
    key: object

    @staticmethod
    def of(
        called: Invocation,
        program: str,
        found: Imports,
        variables: Mapping[str, str],
    ) -> Ask:
        """`variables` are one run's: those that every run has its own of are left out."""
        same = {k: v for k, v in variables.items() if not environment.is_of_a_run(k)}
        key = (program, called.flags, tuple(found.entries), found.names, frozenset(same.items()))
        return Ask(called, program, found, same, (*key, found.certain, frozenset(found.cold)))

    def request(self, log: str, cwd: str, variables: Mapping[str, str]) -> dict[str, Any]:
        """What the forked process has to know."""
        called = self.called
        started = [called.program, *called.flags, *(["-m"] if called.is_module else [])]
        return {
            "log": log,
            "cwd": cwd,
            # bash sets these three when it executes a command.
            "environment": {**variables, "PWD": cwd, "SHLVL": "0", "_": self.program},
            "target": called.target,
            "is_module": called.is_module,
            "arguments": list(called.arguments),
            "started": [*started, called.target, *called.arguments],
        }


@dataclass
class Child:
    """A process that was asked for: its `pid` once it is there, its `code` once it has ended.

    `left` is whether it may have left processes behind.
    """

    name: str
    request: dict[str, Any]
    pid: int | None = None
    code: int | None = None
    left: bool = True


@dataclass
class Interpreter:
    """A zygote that was started; `failure` says why it is of no use, "" while it is."""

    ask: Ask
    watchman: Watchman
    failure: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    _children: dict[str, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._is_ready = False
        self._name = f"pool-{uuid.uuid4().hex}"
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.watchman.tell("+", self._name)
        size = sum(len(key) + len(value) + 2 for key, value in self.ask.variables.items())
        with theirs:
            self._process = subprocess.Popen(
                [self.ask.program, *self.ask.called.flags, str(ZYGOTE), str(theirs.fileno())],
                cwd=home.home(),
                env={
                    **self.ask.variables,
                    "MLFLOW_RUN_ID": self._name,  # by which the watchman finds it
                    "PYTHONPATH": PAD,
                    ROOM: "x" * (2 * size + 16384),
                },
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self.watchman.tell("+", self._name, self._process.pid)
        needs = self.ask.imports
        self._say(
            "prepare",
            {
                "entries": [(name, list(parts)) for name, parts in needs.entries],
                "certain": needs.certain,
                "cold": sorted(needs.cold),
                "names": sorted(needs.names),
                "pad": PAD,
                "store": "" if STORE in self.left_out else self._store(),
            },
        )

    def _store(self) -> str:
        uri = self.ask.variables.get("MLFLOW_TRACKING_URI", "")
        return uri if uri.startswith("sqlite:///") else ""

    def _say(self, *message: Any) -> None:
        try:
            self.socket.send(marshal.dumps(message))
        except ConnectionError:
            self._gone(f"the warm interpreter ended{self._last_words()}")
        except OSError as error:
            self._gone(f"the warm interpreter does not listen ({error.strerror})")

    @property
    def way(self) -> str:
        """How its processes are started, for the record of a run."""
        apart = [f"; `{name}` is not warm: it {why}" for name, why in self.left_out.items()]
        return "".join([FORKED, *apart])

    def fork(self, name: str, request: dict[str, Any]) -> Child:
        """Ask for a process; `listen` says when it is there."""
        child = self._children[name] = Child(name, request)
        self._say("start", name, request)
        return child

    def drop(self, child: Child) -> int:
        """Take back what was asked for and is not there yet; the exit code that stands for it."""
        self._say("drop", child.name)
        child.code, child.left = -signal.SIGTERM, False
        self._children.pop(child.name, None)
        return child.code

    def listen(self) -> None:
        """Take in what it has said; never waits."""
        while not self.failure:
            try:
                packet = self.socket.recv(LARGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it ended with something unread; what it said comes next
                continue
            except OSError:
                packet = b""
            if not packet:
                self._gone(f"the warm interpreter ended{self._last_words()}")
                break
            self._hear(*marshal.loads(packet))
        if self.failure:
            self._look_after_orphans()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            code = self._process.wait(5)
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").splitlines()[-1:]
            return f" ({': '.join([f'exit code {code}', *said])})"
        return ""

    def _hear(self, what: str, *said: Any) -> None:
        if what == "started":
            if child := self._children.get(said[0]):
                child.pid = said[1]
                self.watchman.tell("+", child.name, child.pid)
        elif what == "ended":
            if child := self._children.pop(said[0], None):
                child.code, child.left = said[1:]
        elif what == "ready":
            self._is_ready = True
        elif what == "unfit":
            self._leave_out(*said)
        elif what == "unusable":
            self._gone(said[0])

    def _leave_out(self, name: str, why: str) -> None:
        """Begin again without a package that is not to be imported before a fork."""
        top = name.partition(".")[0]
        self.left_out[top] = why
        self._close()
        if len(self.left_out) > TRIES:
            self._gone(f"importing `{top}` {why}")
            return
        self.ask = replace(self.ask, imports=self.ask.imports.without({top}))
        self._open()
        for child in self._children.values():
            self._say("start", child.name, child.request)

    def _gone(self, why: str) -> None:
        if not self.failure:
            self.failure = why
            self._close()

    def _look_after_orphans(self) -> None:
        """What it had forked goes on, as this process's own."""
        for name, child in list(self._children.items()):
            if child.pid is None:
                continue
            try:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # nobody adopted it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, 0)
                    continue
                pid, code = child.pid, -signal.SIGKILL
            if pid:
                child.code = code
                del self._children[name]

    def close(self) -> None:
        """End it."""
        self._gone("it was closed")

    def _close(self) -> None:
        self.socket.close()
        if not self._is_ready:  # it would read of the end only after all of its imports
            self._process.kill()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.watchman.tell("-", self._name)
        self._log.close()
