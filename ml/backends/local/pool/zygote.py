"""A warm interpreter: imports what a script imports, once, and forks a process for every trial.

Started as a script by `pool.py`, as `python [flags] zygote.py FD`. What it reads and
writes on the socket FD are messages in `marshal`'s form, one a packet (see `serve`). It ends when
the socket closes. It imports nothing of the repository. When it forks it runs no thread, no device
or connection is open, and it has printed nothing: it says so when what it was told to import does
one of these things, and ends.
"""
# ruff: noqa: E402, PTH115, PTH123, PTH208

import sys

BASE = dict(sys.modules)  # what a fresh interpreter has imported
HERE = sys.path[0]
import forked  # type: ignore[import-not-found]

sys.path.remove(HERE)  # its modules must stand in front of nothing
sys.path_importer_cache.pop(HERE, None)

import _ctypes
import gc
import marshal
import os
import select

MYPY = False
if MYPY:
    from typing import Any

_ITSELF: "Any" = None
PROGRAM = _ctypes.dlopen(_ITSELF, 0)  # and with it the C library
PR_SET_CHILD_SUBREAPER = 36
LARGEST = 1 << 20
# Stands for the opening of MLflow's store among the imports.
STORE = "the tracking store"
# Threads of libraries that stop and start them around a fork (pthread_atfork).
HARMLESS = ("jemalloc_bg_thd",)
# Forks after which the memory is put into huge pages: that takes as long as some twenty forks save.
MANY = 32
NEVER = 10**8  # objects: no collection by itself
HUGE = 2 << 20
MADV_COLLAPSE = 25


class Zygote:
    """`socket` leads to the executor."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._hidden: forked.Warm | None = None
        self._pad = ""
        self._children: dict[int, tuple[str, int]] = {}  # pid → (id, pidfd)
        self._poll = select.poll()
        self._known = forked.Known()
        self._forks = 0

    def serve(self) -> None:
        """Answer ("prepare", …) once, then ("start", id, request) and ("drop", id) until the end.

        Says ("ready", modules), or ("unfit", package, why) or ("unusable", why) and ends;
        ("started", id, pid) and ("ended", id, exit code, whether it left processes behind).
        """
        self._poll.register(self._socket, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._socket:
                    packet = os.read(self._socket, LARGEST)
                    if not packet:
                        os._exit(0)
                    self._answer(*marshal.loads(packet))
            self._reap()

    def _say(self, *message: "Any") -> None:
        os.write(self._socket, marshal.dumps(message))

    def _answer(self, what: str, *said: "Any") -> None:
        if what == "prepare":
            self._prepare(*said)
        elif what == "start":
            self._start(*said)
        else:
            for pid, (name, _) in self._children.items():
                if name == said[0]:
                    os.kill(pid, 9)

    def _prepare(self, needs: "dict[str, Any]") -> None:
        """Import what is needed, and hide all but the `certain` first of it."""
        self._pad = needs["pad"]
        # What this program has for itself, the script imports for itself.
        for name in set(sys.modules) - set(BASE):
            del sys.modules[name]
        known, segments, state = set(sys.modules), [], _state()
        # Imports make much and leave little garbage: it is collected once, at the end.
        usual = gc.get_threshold()
        gc.set_threshold(NEVER, *usual[1:])
        for at, (name, parts) in enumerate([*needs["entries"], (STORE, None)]):
            try:
                if parts is not None:
                    __import__(name, fromlist=parts)
                elif needs["store"] and "mlflow" in sys.modules:
                    _rehearse(needs["store"])
            except BaseException:  # the script will see it, too
                pass
            found = {key: sys.modules[key] for key in list(sys.modules) if key not in known}
            if not found:
                continue
            before, state = state, _state()
            if harm := _harm(before, state):
                self._say("unfit", name, harm)
                os._exit(0)
            known |= found.keys()
            if at >= needs["certain"]:
                segments.append(found)
        tops = {name.partition(".")[0] for name in known - set(BASE)}
        if shadowed := sorted(tops & set(needs["names"])):
            self._say("unusable", f"`{shadowed[0]}` of the code may stand in front of another")
            os._exit(0)
        self._known = forked.Known()
        for found in segments:
            for name in found:
                del sys.modules[name]
        self._known.visible = len(sys.modules)
        cold = set(needs["cold"])
        offered = [
            {k: m for k, m in s.items() if k.partition(".")[0] not in cold} for s in segments
        ]
        self._hidden = forked.Warm([one for one in offered if one]) if any(offered) else None
        gc.collect()
        gc.freeze()
        if gc.get_threshold()[0] == NEVER:  # no package has set one of its own
            gc.set_threshold(*usual)
        self._say("ready", len(known))

    def _start(self, name: str, request: "dict[str, Any]") -> None:
        pid = os.fork()
        if pid == 0:
            self._be(request)
        handle = os.pidfd_open(pid)
        self._children[pid] = name, handle
        self._poll.register(handle, select.POLLIN)
        self._say("started", name, pid)
        self._forks += 1
        if self._forks == MANY:
            _collapse()

    def _be(self, request: "dict[str, Any]") -> None:
        for descriptor in (self._socket, *(handle for _, handle in self._children.values())):
            os.close(descriptor)
        try:
            forked.become(request, self._hidden, self._known, self._pad)
            code = forked.run(request)
        except BaseException as error:
            sys.__excepthook__(type(error), error, error.__traceback__)
            code = 1
        forked.leave(code, self._known)

    def _reap(self) -> None:
        """Collect every child that has ended, also those that trials have left behind."""
        while self._children or _orphans():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._children:
                name, handle = self._children.pop(pid)
                self._poll.unregister(handle)
                os.close(handle)
                left = bool(_orphans() - set(self._children))
                self._say("ended", name, os.waitstatus_to_exitcode(status), left)


def _rehearse(store: str) -> None:
    """Open MLflow's store and look into it, as the first call of a script does: 0.7 s, of which
    0.1 is left then. No connection is left open, and no store object: each trial makes its own.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    opened = SqlAlchemyStore(store, "mlruns")
    try:
        opened.search_experiments(max_results=1)
        opened.search_runs(["0"], "", 1, 1)
    finally:
        opened.engine.dispose()


def _orphans() -> set[int]:
    """The children of this process: of trials that have ended, their children come here."""
    try:
        with open("/proc/thread-self/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return {-1}  # nobody can tell


def _state() -> tuple[int, set[str], int, int]:
    """What an import may not change: bytes printed, threads, OpenBLAS' libraries, what is open.

    OpenBLAS ends its threads before a fork and starts them again when it needs them
    (openblas_fork_handler in its driver/others/memory.c): they do not count.
    """
    threads = set()
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            if file.read().strip() not in HARMLESS and task != str(os.getpid()):
                threads.add(task)
    opened = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            leads = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        opened += leads.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd", "socket:"))
    with open("/proc/self/maps") as file:
        blas = {line.split()[-1] for line in file if "openblas" in line}
    return os.fstat(1).st_size, threads, len(blas), opened


def _collapse() -> None:
    """Put what this process has allocated into huge pages, where the kernel does that (Linux 6.1).

    A fork copies a table with an entry for each page, and the end of a process takes it apart: with
    200 MB in pages of 4 kB that is half of what a trial that does nothing costs.
    """
    madvise = _ctypes.dlsym(PROGRAM, "madvise")
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for at, rights, _, _, _, *name in areas:
        if rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(end, 16) for end in at.split("-"))
        for start in range(-(-low // HUGE) * HUGE, high // HUGE * HUGE, HUGE):
            # What is not there yet cannot be collapsed, and is left as it is.
            _ctypes.call_function(madvise, (Word(start), Word(HUGE), MADV_COLLAPSE))


def _harm(before: "Any", after: "Any") -> str:
    """What an import did that it may not do, "" when it did nothing of the kind."""
    if before[0] != after[0]:
        return "prints something"
    count = int(os.environ.get("OPENBLAS_NUM_THREADS", "1"))
    if len(after[1] - before[1]) > (after[2] - before[2]) * (count - 1):
        return "starts a thread"
    return "opens a device or a connection" if before[3] != after[3] else ""


class Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A number of the size of an address, for a C function."""

    _type_ = "L"


if __name__ == "__main__":
    prctl = _ctypes.dlsym(PROGRAM, "prctl")
    _ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    Zygote(int(sys.argv[1])).serve()
