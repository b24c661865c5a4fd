"""What the steps of a pipeline share, and the session that each of them gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml.backends.local import lineage
from ml.backends.local.execution import Session
from ml.backends.local.interpreters import Interpreters
from ml.backends.local.process import Watchman
from ml.backends.local.snapshot import Snapshot
from ml.backends.local.tracking import Tracking
from ml.specs import assets
from ml.specs.plan import CommandPlan


@dataclass
class Preparation:
    """Code is taken once, before the first step: a file that is saved later changes no step."""

    tracking: Tracking
    watchman: Watchman
    snapshots: Mapping[Path | None, Snapshot | None]
    interpreters: Interpreters = field(default_factory=Interpreters)
    _code: dict[Path | None, dict[str, Any]] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def session(self, plan: CommandPlan, parent: str, threads: int) -> Session:
        """What a step runs with: its code, its share of the cores, and where it comes from."""
        taken = self.snapshots[plan.code]
        interpreter = self.interpreters.of(plan)
        origin = lineage.of(plan, taken, self._code.get(plan.code), interpreter)
        self._code[plan.code] = origin["code"]
        for name, data in plan.inputs.items():
            if data.path is not None and not data.is_literal:
                origin["data"][name]["digest"] = self.digest(data.path)
        origin["parent"] = parent
        return Session(self.tracking, self.watchman, taken, origin, threads, interpreter)

    def digest(self, path: Path) -> str:
        """sha256 of data as it was when it was first asked for; "" of what is not there.

        Steps write each output once, and one pipeline sees its data as one state.
        """
        if path not in self._digests:
            self._digests[path] = assets.digest(path) if path.exists() else ""
        return self._digests[path]
