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
import yaml

ROOT = Path(__file__).parent.parent
ON_THE_NODE = ("ml/measures", "ml/toolkit", "ml/serving/scoring")


def bring(code: Path, *packages: str) -> None:
    """Copy packages of the framework into a folder of code: a run finds no other."""
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            copied = code / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


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


def declare_endpoint(name: str, stack: Path) -> None:
    """Let a stack file declare that endpoint alone, whichever a fork has."""
    document = yaml.safe_load((ROOT / "infra" / stack.name).read_text())
    document["config"]["platform:endpoints"] = [{"name": name}]
    stack.parent.mkdir(exist_ok=True)
    stack.write_text(yaml.safe_dump(document))
