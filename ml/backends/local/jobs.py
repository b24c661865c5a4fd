"""Job folders: a name for every run, and a lock that tells whether its executor still lives."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ml.backends.local import home

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


@contextmanager
def new() -> Iterator[Path]:
    """The empty folder of a new run, and its lock, which the system frees when this process ends.

    The lock file goes when the run was closed: one that stays behind unlocked is abandoned. A run
    that was refused before it wrote anything leaves nothing behind.
    """
    folder = _new_folder()
    home.live().mkdir(parents=True, exist_ok=True)
    path = home.live() / folder.name
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        try:
            yield folder
        except BaseException:
            with suppress(OSError):
                folder.rmdir()
                path.unlink()
            raise
        path.unlink(missing_ok=True)


def is_alive(name: str) -> bool:
    """Whether some process holds the run's lock."""
    try:
        with (home.live() / name).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def executor(name: str) -> int | None:
    """The process that runs the run; None when nobody does."""
    try:
        number = int((home.live() / name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return number if is_alive(name) else None


def abandoned() -> list[str]:
    """The runs whose executor was killed before it could close them."""
    if not home.live().is_dir():
        return []
    return [path.name for path in sorted(home.live().iterdir()) if not is_alive(path.name)]


def forget(name: str) -> None:
    """Drop the lock file of a run that has been closed for its executor."""
    (home.live() / name).unlink(missing_ok=True)


def _new_folder() -> Path:
    """Under a name that no run on this machine has, such as `calm_river_03`."""
    home.jobs().mkdir(parents=True, exist_ok=True)
    # The operating system's randomness: a job that seeds `random` must not repeat names.
    chance = random.SystemRandom()
    while True:
        words = [chance.choice(words.split()) for words in (_ADJECTIVES, _NOUNS)]
        folder = home.jobs() / "_".join([*words, f"{chance.randrange(100):02}"])
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
