"""`plan.json`: the plan that a run with parts was begun with, kept before anything else is made.

A run is gone on with by this very plan, whatever became of the spec since, and only with the code
and the data that it was begun with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.local import snapshot
from ml.backends.local.environments.interpreters import HERE
from ml.backends.local.runs import records
from ml.backends.local.runs.jobs import PLAN
from ml.backends.local.snapshot import Snapshot
from ml.core import home
from ml.core.errors import Exit, Problem, Refused
from ml.core.repository import shown
from ml.specs.assets import assets
from ml.specs.plan.json import from_json, to_json
from ml.specs.plan.plan import CommandPlan, PipelinePlan, SweepPlan, given

# So many packages are named that changed.
_NAMED = 5


@dataclass(frozen=True)
class Data:
    """An input that the spec gives: sha256 of what lay at `path` when the run was begun."""

    field: str
    path: Path
    digest: str


@dataclass(frozen=True)
class Begun:
    """What a run was begun with; `code` has the lineage of every folder of code.

    `isolated` says that its commands ran in environments that were built for them; `packages` are
    those of this interpreter then.
    """

    plan: SweepPlan | PipelinePlan
    code: Mapping[Path | None, dict[str, Any]]
    data: tuple[Data, ...]
    isolated: bool = False
    packages: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """What else is not as it was, and no reason not to go on."""
        changed = sorted(set(self.packages) ^ set(HERE.identity()))
        if self.packages and not self.isolated and changed:
            names = ", ".join(name.removesuffix(".dist-info") for name in changed[:_NAMED])
            more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            yield f"this interpreter has changed since the run was begun: {names}{more}"

    def snapshots(self) -> dict[Path | None, Snapshot | None]:
        """The code as it was; Refused when it, or the data, is not what it was any more."""
        problems = [*self._changed(), *self._gone()]
        if problems:
            raise Refused(*problems)
        return {folder: _snapshot(code["digest"]) for folder, code in self.code.items()}

    def _changed(self) -> Iterator[Problem]:
        for one in self.data:
            if not one.path.exists():
                what, expected = "is gone", "the data that the run was begun with"
            elif assets.digest(one.path) != one.digest:
                what, expected = "was changed", f"data with sha256 {one.digest[:12]}…, as before"
            else:
                continue
            yield Problem(
                "data-changed",
                f"`{one.field}`: {shown(one.path)} {what} since the run was begun",
                expected,
                "put it back; to use what is there now, run the spec again",
            )

    def _gone(self) -> Iterator[Problem]:
        for folder, code in self.code.items():
            digest = code["digest"]
            if not digest or folder is None:
                continue
            kept = _snapshot(digest)
            if kept is not None and snapshot.is_whole(kept):
                continue
            now = snapshot.take(folder) if folder.exists() and kept is None else None
            if now is None or now.digest != digest:
                what = "is gone" if kept is None else "was changed"
                yield Problem(
                    "code-changed",
                    f"the copy of `{shown(folder)}` that the run was begun with {what}: "
                    f"{shown(home.snapshots() / digest.removeprefix('sha256:'))}",
                    f"code with the digest {digest[:19]}…, as before",
                    "go back to that code and resume again, or run the spec again",
                )


def keep(
    folder: Path,
    plan: SweepPlan | PipelinePlan,
    code: Mapping[Path | None, dict[str, Any]],
    digest: Callable[[Path], str] = assets.digest,
    isolated: bool = False,
) -> None:
    """Write down what a run is begun with, in its job folder. Data is read once for its digest."""
    data = [
        {"field": field, "path": str(one.path), "digest": digest(one.path)}
        for field, one in given(plan)
        if one.path is not None and not one.is_literal
    ]
    codes = [{"folder": str(path) if path else None, "code": one} for path, one in code.items()]
    document = {"schema_version": 1, "plan": to_json(plan), "code": codes, "data": data}
    document |= {"isolated": isolated, "packages": HERE.identity()}
    records.replace(folder / PLAN, document, durable=True)


def read(folder: Path) -> Begun:
    """What the run of that job folder was begun with. Refused when that cannot be told."""
    try:
        document = json.loads((folder / PLAN).read_text())
        plan = from_json(document["plan"])
        if isinstance(plan, CommandPlan):
            raise ValueError("it is a command's")
        return Begun(
            plan,
            {_path(one["folder"]): one["code"] for one in document["code"]},
            tuple(Data(one["field"], Path(one["path"]), one["digest"]) for one in document["data"]),
            bool(document.get("isolated")),
            tuple(document.get("packages", ())),
        )
    except FileNotFoundError:
        found = f"{folder.name} was begun by a version that kept no plans"
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = f"the plan of {folder.name} cannot be read ({error}): {shown(folder / PLAN)}"
    raise Refused(
        Problem(
            "no-plan",
            found,
            "the plan that the run was begun with",
            "run the spec again; what was logged and written is kept",
        ),
        exit_code=Exit.WRONG_CALL,
    )


def _snapshot(digest: str) -> Snapshot | None:
    folder = home.snapshots() / digest.removeprefix("sha256:")
    return Snapshot(folder, digest) if digest and folder.is_dir() else None


def _path(text: str | None) -> Path | None:
    return Path(text) if text is not None else None
