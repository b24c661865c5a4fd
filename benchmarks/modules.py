"""Count the modules that a command executes, and the YAML files of the repository it opens.

A module counts if one of its functions runs, since a reader who follows the command has to open
it. Other processes (trials, servers, a stack's program) do not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ml.core.imports import BIND, FRAMEWORK

# Command → maximum modules and maximum opens of YAML files.
MOST = {
    "ml run": (70, 22),
    "ml release propose": (117, 28),
    "ml release apply": (82, 23),
    "infra preview": (35, 7),  # 14 are in the policy pack, one reads a fork's plug-ins
}
# Do not count bodies of modules and classes, which run at import.
_FOLLOWED = """\
import inspect, json, os, sys, threading
seen, opened = set(), []
def audit(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.append(os.path.abspath(arguments[0]))
sys.addaudithook(audit)
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
    json.dump([sorted(seen), opened], open({to!r}, "w"))
"""


def main(quick: bool) -> float:
    from tests.repository.forks import forks
    from tests.repository.scaffold import tables

    with tempfile.TemporaryDirectory() as folder:
        root = forks.fork(Path(folder) / "fork")
        os.environ["MLOPS_HOME"] = str(Path(folder) / "home")
        tables.churn(root / "churn.csv", 1_000 if quick else 6_000)
        _typed(root, "ml new churn --table churn.csv --target Churn")
        counts = {
            "ml run": _counts(root, "ml run ml/projects/churn/jobs/train.yml"),
            "ml release propose": _counts(root, "ml release propose churn --run latest"),
        }
        try:
            counts["ml release apply"] = _counts(root, "ml release apply churn --approved-by ana")
        finally:
            _typed(root, "ml serve --stop-all")
        counts["infra preview"] = _counts(FRAMEWORK, "infra preview")
    return max(
        count / most
        for command, pair in counts.items()
        for count, most in zip(pair, MOST[command], strict=True)
    )


def _typed(root: Path, words: str) -> None:
    program, *options = words.split()
    _done([str(Path(sys.executable).with_name(program)), *options], root)


def _done(command: Sequence[str], root: Path) -> None:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _counts(root: Path, words: str) -> tuple[int, int]:
    """Run a command, which must succeed; print and return its modules and opens of YAML files."""
    program, *options = words.split()
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "seen.json"
        module = {"ml": "ml.cli.entry", "infra": "infra.cli"}[program]
        code = f"{BIND}\n{_FOLLOWED.format(module=module, to=str(to))}"
        _done([sys.executable, "-c", code, *options], root)
        seen, opened = json.loads(to.read_text())
    paths = {Path(name).resolve() for name in seen}
    rooms = [FRAMEWORK / room for room in ("infra", "ml", "policies")]
    ours = [path for path in paths if any(map(path.is_relative_to, rooms))]
    lines = sum(path.read_text().count("\n") for path in ours)
    folders = {str(root.resolve()), str(FRAMEWORK)}
    is_ours = tuple(
        f"{folder}/{part}/" for folder in folders for part in ("ml", "infra", "policies")
    )
    yaml = Counter(
        name for name in opened if name.startswith(is_ours) and name.endswith((".yml", ".yaml"))
    )
    most = max(yaml.values(), default=0)
    print(
        f"{words}: {len(ours)} modules, {lines:,} lines; {len(yaml)} YAML files,"
        f" opened {yaml.total()} times, one at most {most} times"
    )
    return len(ours), yaml.total()
