"""Which Python a job's processes find first: this one, or one built from the job's conda file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ml.specs.plan.plan import CommandPlan, Environment


@dataclass(frozen=True)
class Interpreter:
    """A Python. `built` is the digest of the environment that it was built for, "" for this one.

    `tracking_uri` is where MLflow's client in it has to turn, "" for the store itself.
    """

    python: Path
    version: str
    built: str = ""
    tracking_uri: str = ""

    @property
    def bin(self) -> Path:
        """The folder for the front of PATH. Not resolved: a link to Python makes its venv."""
        return self.python.parent

    def identity(self) -> list[str]:
        """The Python and the names and versions of what is installed for it."""
        return [self.version, *_installed(self.python)]


HERE = Interpreter(Path(sys.executable), platform.python_version())


@dataclass(frozen=True)
class Interpreters:
    """The interpreter of every command of one `ml run`."""

    built: Mapping[Environment, Interpreter] = field(default_factory=dict)

    def of(self, plan: CommandPlan) -> Interpreter:
        """The interpreter that runs the command: `HERE` unless one was built for it."""
        return self.built.get(plan.environment, HERE)


@cache
def _installed(python: Path) -> tuple[str, ...]:
    paths = (python.parent.parent / "lib").glob("python3*/site-packages/*.dist-info")
    return tuple(sorted(path.name for path in paths))
