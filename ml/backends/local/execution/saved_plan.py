"""`plan.json`: the plan with which a run was started, saved before the run starts.

A run is resumed with this plan, even if the spec was edited, and only with unchanged code and data.
A command's data is not compared, since it would have to be hashed at every start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ml.backends import snapshot
from ml.backends.local.process_environment import HERE
from ml.backends.local.runs import records
from ml.backends.local.runs.jobs import PLAN
from ml.backends.snapshot import Snapshot
from ml.core import home
from ml.core.errors import Problem, UserError
from ml.core.repository import shown
from ml.specs.assets import assets
from ml.specs.plan.plans import (
    CommandPlan,
    Frozen,
    PipelinePlan,
    SweepPlan,
    supplied_inputs,
)

# A plan in which AutoML jobs are compiled to sweeps.
CompiledPlan = CommandPlan | SweepPlan | PipelinePlan
# The number of changed packages to name in a message.
_NAMED = 5


@dataclass(frozen=True)
class Data:
    """An input of the spec when the run was started."""

    field: str  # field of the spec, such as `jobs.train.inputs.x`
    path: Path
    digest: str  # sha256 of the file or folder


@dataclass(frozen=True)
class SavedPlan:
    """The plan with which a run was started, to resume it."""

    plan: CompiledPlan
    # Code folder → its lineage, with the digest of its snapshot.
    code: Mapping[Path | None, dict[str, Any]]
    data: tuple[Data, ...]
    isolated: bool = False  # whether commands ran in environments that were built for them
    # Python version and `*.dist-info` names of this interpreter at the start.
    packages: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Yield a line about changed packages, which do not prevent resuming the run."""
        changed = sorted(set(self.packages) ^ set(HERE.identity()))
        if self.packages and not self.isolated and changed:
            names = ", ".join(name.removesuffix(".dist-info") for name in changed[:_NAMED])
            more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            yield f"this interpreter has changed since the run was started: {names}{more}"

    def snapshots(self) -> dict[Path | None, Snapshot | None]:
        """Return code folder → its snapshot. Raise UserError if code or data has changed."""
        problems = [*self._changed(), *self._gone()]
        if problems:
            raise UserError(*problems)
        return {folder: _snapshot(code["digest"]) for folder, code in self.code.items()}

    def _changed(self) -> Iterator[Problem]:
        for data in self.data:
            if not data.path.exists():
                change, expected = "is gone", "the data that the run was started with"
            elif assets.digest(data.path) != data.digest:
                change, expected = "was changed", f"data with sha256 {data.digest[:12]}…, as before"
            else:
                continue
            yield Problem(
                "data-changed",
                f"`{data.field}`: {shown(data.path)} {change} since the run was started",
                expected,
                "restore it, or run the spec again to use the new data",
            )

    def _gone(self) -> Iterator[Problem]:
        for folder, code in self.code.items():
            digest = code["digest"]
            if not digest or folder is None:
                continue
            copy = _snapshot(digest)
            if copy is not None and snapshot.is_whole(copy):
                continue
            is_there = folder.exists() and copy is None
            current = snapshot.of_plan(self.plan).get(folder) if is_there else None
            if current is None or current.digest != digest:
                change = "is gone" if copy is None else "was changed"
                yield Problem(
                    "code-changed",
                    f"the copy of `{shown(folder)}` that the run was started with {change}: "
                    f"{shown(home.snapshots() / digest.removeprefix('sha256:'))}",
                    f"code with the digest {digest[:19]}…, as before",
                    "restore that code and resume again, or run the spec again",
                )


def save(
    folder: Path,
    plan: CompiledPlan,
    code: Mapping[Path | None, dict[str, Any]],
    digest: Callable[[Path], str] = assets.digest,
    isolated: bool = False,
) -> None:
    """Save the plan in the job folder, with the code's lineage and the digests of data."""
    data = [
        {"field": field, "path": str(source.path), "digest": digest(source.path)}
        for field, source in supplied_inputs(plan)
        if source.path is not None and not source.is_literal and not isinstance(plan, CommandPlan)
    ]
    codes = [
        {"folder": str(path) if path else None, "code": origin} for path, origin in code.items()
    ]
    document = {"schema_version": 1, "plan": to_json(plan), "code": codes, "data": data}
    document |= {"isolated": isolated, "packages": HERE.identity()}
    records.replace(folder / PLAN, document, durable=True)


def read(folder: Path) -> SavedPlan:
    """Return the saved plan of a job folder. Raise UserError if there is none or it is invalid."""
    try:
        document = json.loads((folder / PLAN).read_text())
        return SavedPlan(
            from_json(document["plan"]),
            {_path(row["folder"]): row["code"] for row in document["code"]},
            tuple(Data(row["field"], Path(row["path"]), row["digest"]) for row in document["data"]),
            bool(document.get("isolated")),
            tuple(document.get("packages", ())),
        )
    except FileNotFoundError:
        reason = f"{folder.name} has no saved plan: an older version of `ml` started it"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"the plan of {folder.name} cannot be read ({error}): {shown(folder / PLAN)}"
    expected = "the plan that the run was started with"
    hint = "start a new run: ml run SPEC; the logs and outputs of this one are kept"
    raise UserError(Problem("no-plan", reason, expected, hint))


def _snapshot(digest: str) -> Snapshot | None:
    folder = home.snapshots() / digest.removeprefix("sha256:")
    return Snapshot(folder, digest) if digest and folder.is_dir() else None


def _path(text: str | None) -> Path | None:
    return Path(text) if text is not None else None


# Plans are encoded as JSON without loss. Every value carries its type: a dataclass is
# `{"is": "InputPlan", "with": …}`, and a mapping keeps its order and the types of its keys.


@cache
def kinds() -> dict[str, Any]:
    """Return every dataclass that a plan may contain, by its name."""
    classes: dict[str, Any] = {}
    open_ends: list[Any] = [PipelinePlan, SweepPlan, CommandPlan]
    while open_ends:
        hint = open_ends.pop()
        open_ends += get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint) and hint.__name__ not in classes:
            classes[hint.__name__] = hint
            open_ends += get_type_hints(hint).values()
    return classes


def to_json(value: Any) -> Any:
    """Encode a plan or a value in it as JSON; raise TypeError for an unknown type."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return {"is": "path", "with": str(value)}
    if isinstance(value, Mapping):
        return {"is": "mapping", "with": [[to_json(k), to_json(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, list):
        return {"is": "list", "with": [to_json(item) for item in value]}
    name = type(value).__name__
    if kinds().get(name) is not type(value):
        raise TypeError(f"a plan cannot contain {type(value)}")
    return {
        "is": name,
        # Leave out fields that comparisons ignore, such as the plan's spec.
        "with": {
            item.name: to_json(getattr(value, item.name)) for item in fields(value) if item.compare
        },
    }


def from_json(data: Any) -> CompiledPlan:
    """Decode a plan that `to_json` encoded; raise ValueError for another format."""
    try:
        decoded = _value(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a plan of this version: {error}") from error
    if not isinstance(decoded, CompiledPlan):
        raise ValueError("this is not a plan")
    return decoded


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_value(item) for item in data)
    if not isinstance(data, dict):
        return data
    kind, content = data["is"], data["with"]
    if kind == "path":
        return Path(content)
    if kind == "mapping":
        return Frozen((_value(key), _value(item)) for key, item in content)
    if kind == "list":
        return [_value(item) for item in content]
    return kinds()[kind](**{name: _value(item) for name, item in content.items()})
