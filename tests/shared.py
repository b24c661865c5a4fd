"""Create folders once for all workers of a session, and copy packages for jobs and servers."""

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
    """Copy packages of the framework into the code folder of a job, which has no others."""
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            copied = code / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


def once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """Return the session's folder `name`; the first worker to ask fills it by `fill`.

    All workers share the folder, so tests must not change it. Other workers wait for the first.
    """
    base = factory.getbasetemp()
    # A worker's folder is inside the session's folder; a session without xdist has only the latter.
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
    """Write a copy of the stack file that declares only this endpoint."""
    document = yaml.safe_load((ROOT / "infra" / stack.name).read_text())
    document["config"]["platform:endpoints"] = [{"name": name}]
    stack.parent.mkdir(exist_ok=True)
    stack.write_text(yaml.safe_dump(document))
