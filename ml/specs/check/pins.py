"""The versions in conda files, which a node installs, beside those of the locks, which run here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.core.errors import Problem
from ml.specs.assets import conda

# Beside the main lock: the packages of the targets of make that install more.
_MORE = ("torch.lock", "torch.txt", "images.txt", "automl.lock")
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.M)
_PIN = re.compile(r"(?:[\w./-]+::)?([\w.-]+)(?:\[[\w,. -]+\])? *={1,2} *([\w.!+]+)")


def problems(root: Path) -> Iterator[Problem]:
    """Each pin of a locked package to another version than its lock's; none without a lock."""
    main = repository.lock(root)
    locked: dict[str, tuple[str, str]] = {}
    for file in (main, *map(main.with_name, _MORE)):
        for name, version in _LOCKED.findall(file.read_text("utf-8") if file.is_file() else ""):
            locked.setdefault(_name(name), (version, f"requirements/{file.name}"))
    for path in sorted((root / "ml/environments").glob("*/*conda*.y*ml")):
        for dependency in conda.of_file(path).dependencies:
            pin = _PIN.match(dependency.text)
            version, source = locked.get(_name(pin[1]), (pin[2], "")) if pin else ("", "")
            if pin and pin[2] != version:
                actual = f"{pin[1]} {pin[2]} is installed on nodes"
                expected = f"{version}, as in {source}"
                hint = "set that version, and increment the environment's version"
                yield Problem("pin-mismatch", actual, expected, hint, dependency.place)


def _name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
