"""How many of our modules a command leads through: those in which a function ran, and their lines.

It is what a reader who follows the command has to open. What other processes run (trials, servers,
the program of a stack) does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ml.core.imports import BIND, FRAMEWORK

# The most modules of each command.
MOST = {"ml run": 72, "ml release apply": 64, "infra preview": 18}
# Bodies of modules and classes, which run when they are imported, are no functions.
_FOLLOWED = """\
import inspect, json, sys, threading
seen = set()
def see(frame, event, argument):
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):
        seen.add(code.co_filename)
threading.setprofile(see)
sys.setprofile(see)
from {module} import main
try:
    main()
finally:
    sys.setprofile(None)
    json.dump(sorted(seen), open({to!r}, "w"))
"""


def main(quick: bool) -> float:
    from tests.repository.forks import forks
    from tests.repository.scaffold import tables

    with tempfile.TemporaryDirectory() as folder:
        root = forks.fork(Path(folder) / "fork")
        os.environ["MLOPS_HOME"] = str(Path(folder) / "home")
        tables.churn(root / "churn.csv", 1_000 if quick else 6_000)
        _typed(root, "ml new churn --table churn.csv --target Churn")
        counts = {"ml run": _modules(root, "ml run ml/projects/churn/jobs/train.yml")}
        _typed(root, "ml release propose churn --run latest")
        try:
            counts["ml release apply"] = _modules(root, "ml release apply churn --approved-by ana")
        finally:
            _typed(root, "ml serve --stop-all")
        counts["infra preview"] = _modules(FRAMEWORK, "infra preview")
    return max(count / MOST[command] for command, count in counts.items())


def _typed(root: Path, words: str) -> None:
    program, *options = words.split()
    _done([str(Path(sys.executable).with_name(program)), *options], root)


def _done(command: Sequence[str], root: Path) -> None:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _modules(root: Path, words: str) -> int:
    """The modules of a command, which has to succeed; prints them as a number with their lines."""
    program, *options = words.split()
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "seen.json"
        module = {"ml": "ml.cli.entry", "infra": "infra.cli"}[program]
        code = f"{BIND}\n{_FOLLOWED.format(module=module, to=str(to))}"
        _done([sys.executable, "-c", code, *options], root)
        paths = {Path(name).resolve() for name in json.loads(to.read_text())}
    rooms = [FRAMEWORK / room for room in ("infra", "ml", "policies")]
    ours = [path for path in paths if any(map(path.is_relative_to, rooms))]
    lines = sum(path.read_text().count("\n") for path in ours)
    print(f"{words}: {len(ours)} modules, {lines:,} lines")
    return len(ours)
