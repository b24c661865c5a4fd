"""Job folders: a unique name for every run, and a lock that its executor holds."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ml.backends.runs import Run
from ml.core import files, home
from ml.core.errors import Problem, UserError

# The saved plan of a run, the first file in its folder.
PLAN = "plan.json"

_ADJECTIVES = (
    "amber azure bold brave bright brisk calm clear clever cool crisp eager fair fine gentle "
    "glad golden green happy honest jolly keen kind light lively lucky mellow neat noble plucky "
    "proud quick quiet rapid ready silver smart solid steady sunny swift tidy warm wise witty"
)
_NOUNS = (
    "acorn basin beach birch brook canyon cedar cliff cloud comet coral creek delta dune falcon "
    "fern field fjord forest garden glacier grove harbor hill island lagoon lake leaf maple "
    "meadow moon orchard otter peak pine plum prairie reef ridge river shore star stone valley"
)


# How long to wait for a lock in seconds: `is_alive` holds it for some microseconds.
_PATIENCE_S = 1.0


class Held(Exception):
    """Another process executes the run; `executor` is its process id, None if unknown."""

    def __init__(self, executor: int | None) -> None:
        super().__init__(f"process {executor}")
        self.executor = executor


@contextmanager
def new() -> Iterator[Path]:
    """Create the folder of a new run and lock the run while the block runs.

    The system releases the lock when this process ends. The lock file is removed when the run is
    closed; an unlocked lock file marks an abandoned run. If an error occurs before anything but the
    plan is written, the folder is removed.
    """
    folder = _new_folder()
    with hold(folder.name):
        try:
            yield folder
        except BaseException:
            if {path.name for path in folder.iterdir()} <= {PLAN}:
                shutil.rmtree(folder, ignore_errors=True)
                forget(folder.name)
            raise


@contextmanager
def hold(name: str) -> Iterator[float | None]:
    """Lock a run while this process works on it; raise Held if another process has the lock.

    Yield the time (epoch seconds) of a killed executor's last heartbeat; None without a lock file.
    After an error in the block the lock file remains and marks an abandoned run.
    """
    home.run_locks().mkdir(parents=True, exist_ok=True)
    path = home.run_locks() / name
    sign = last_sign(name)
    with _locked(path) as lock:
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield sign
        path.unlink(missing_ok=True)


def _locked(path: Path) -> TextIO:
    """Open and lock the lock file; retry if it was replaced at `path` meanwhile."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file after it was opened here.
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = executor(path.name)
                lock.close()
                raise Held(holder) from None
            time.sleep(0.01)
        except FileNotFoundError:
            pass
        lock.close()


def beat(name: str) -> None:
    """Touch the lock file as a heartbeat; a killed run counts as ended at its last heartbeat."""
    with suppress(FileNotFoundError):
        os.utime(home.run_locks() / name)


def last_sign(name: str) -> float | None:
    """Return the time (epoch seconds) of the run's last heartbeat; None without a lock file."""
    try:
        return (home.run_locks() / name).stat().st_mtime
    except FileNotFoundError:
        return None


def is_alive(name: str) -> bool:
    """Return whether a process holds the run's lock."""
    return files.is_locked(home.run_locks() / name)


def executor(name: str) -> int | None:
    """Return the id of the process that executes the run; None if there is none."""
    try:
        number = int((home.run_locks() / name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return number if is_alive(name) else None


def abandoned() -> list[str]:
    """Return the runs whose executor was killed before it could close them.

    A child between fork and exec may still hold the lock, so check the executor's process too.
    """
    if not home.run_locks().is_dir():
        return []
    names = (path.name for path in sorted(home.run_locks().iterdir()))
    return [name for name in names if not is_alive(name) or _is_gone(executor(name))]


def _is_gone(process: int | None) -> bool:
    """Return whether the process is known and has ended."""
    from psutil import pid_exists

    return process is not None and not pid_exists(process)


def check_is_root(run: Run, command: str, what: str) -> None:
    """Raise UserError for a step or trial, which cannot be canceled or resumed alone.

    `command` is the subcommand of `ml runs` to suggest; `what` is the verb of the message.
    """
    name = run.folder.relative_to(home.jobs()).parts[0]
    if name != run.name:
        actual = f"{run.name} is a part of {name} and {what} with it"
        expected = "a run that was started by itself"
        raise UserError(Problem("child-run", actual, expected, f"ml runs {command} {name}"))


def forget(name: str) -> None:
    """Remove the lock file of a run."""
    (home.run_locks() / name).unlink(missing_ok=True)


def _new_folder() -> Path:
    """Create a run folder with a new name, such as `calm_river_03`."""
    home.jobs().mkdir(parents=True, exist_ok=True)
    # Use the operating system's randomness, since a seeded `random` would repeat names.
    generator = random.SystemRandom()
    while True:
        words = [generator.choice(words.split()) for words in (_ADJECTIVES, _NOUNS)]
        folder = home.jobs() / "_".join([*words, f"{generator.randrange(100):02}"])
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
