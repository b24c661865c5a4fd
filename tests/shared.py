"""What is made once for all workers of a session: the first that needs it makes it, others wait.

And what the code of a test's job or server brings along, as the code of every project does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ON_THE_NODE = ("ml/toolkit", "ml/serving/scoring")


def bring(code: Path, *packages: str) -> None:
    """Copy packages of the framework into a folder of code: a run finds no other."""
    for package in packages:
        for path in (ROOT / package).glob("*.py"):
            (code / package).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, code / package / path.name)


def once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """The session's folder of that name, which `fill` was called with once.

    It is read by every worker: tests copy what they change.
    """
    base = factory.getbasetemp()
    # A worker's own folder is in that of the session; a session that a test starts has no workers.
    if base.name == f"popen-{os.environ.get('PYTEST_XDIST_WORKER')}":
        base = base.parent
    folder, filled = base / "shared" / name, base / "shared" / f"{name}.filled"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not filled.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            filled.touch()
    return folder
