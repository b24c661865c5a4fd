"""Steps that need not run again: same command, code, environment, values and data, same outputs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.backends.local.environments.interpreters import HERE, Interpreter
from ml.backends.local.execution import Session
from ml.backends.local.runs import lineage, records
from ml.core import home
from ml.specs.assets import assets
from ml.specs.plan.plan import CommandPlan, Environment, InputPlan, SweepPlan

# What of a plan says nothing about what the step computes.
_APART = frozenset(
    {"place", "places", "display_name", "experiment", "tags", "compute", "code", "timeout_s"}
    | {"description"}
    | {"because", "file"}  # of hints: why, and where it says so
)


@dataclass(frozen=True)
class Kept:
    """A completed step whose outputs (by name, with their digests) are still what it wrote."""

    run: Run
    paths: Mapping[str, Path]


def key(
    plan: CommandPlan | SweepPlan,
    code: str,
    digest: Callable[[Path], str],
    interpreter: Interpreter = HERE,
) -> str:
    """The name of everything that the step's result depends on; `code` is its snapshot's digest.

    The environment is the spec's (with the content of its conda file) and the interpreter with
    the packages that are installed in it, since that is what runs the step.
    """
    said = [_said(plan, digest), code, interpreter.identity()]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def find(name: str) -> Kept | None:
    """The step of that key, if its record and its outputs are as they were; None otherwise."""
    try:
        data = json.loads((home.reusable() / name).read_text())
        run = records.read(Path(data["folder"]))
        paths = {name: Path(path) for name, (path, _) in data["outputs"].items()}
        digests = {name: digest for name, (_, digest) in data["outputs"].items()}
        intact = all(p.exists() and assets.digest(p) == digests[name] for name, p in paths.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Kept(run, paths) if intact and run.status == "Completed" else None


def keep(name: str, run: Run, paths: Mapping[str, Path], digest: Callable[[Path], str]) -> None:
    """Remember a completed step; one that left an output unwritten is not worth it."""
    if not all(path.exists() for path in paths.values()):
        return
    data = {
        "folder": str(run.folder),
        "outputs": {name: (str(path), digest(path)) for name, path in paths.items()},
    }
    home.reusable().mkdir(parents=True, exist_ok=True)
    unfinished = home.reusable() / f".{name}.{os.getpid()}"
    try:
        unfinished.write_text(json.dumps(data, indent=1))
        unfinished.replace(home.reusable() / name)
    finally:
        unfinished.unlink(missing_ok=True)


def take_over(
    kept: Kept, folder: Path, name: str, plan: CommandPlan | SweepPlan, session: Session
) -> Run:
    """A completed run in `folder` with the outputs, metrics and parameters of the kept one."""
    former = kept.run.reused_from or kept.run.name
    outputs = _outputs(kept, folder)
    run_id = session.tracking.start(
        plan.experiment,
        folder,
        name,
        {**plan.tags, **lineage.tags(session.lineage), "reused_from": former},
    )
    session.tracking.metrics(run_id, kept.run.metrics)
    session.tracking.end(run_id, "Completed", kept.run.parameters)
    now = time.time()
    run = Run(
        id=run_id,
        name=name,
        status="Completed",
        experiment=plan.experiment,
        folder=folder,
        started=now,
        ended=now,
        parameters=kept.run.parameters,
        metrics=kept.run.metrics,
        outputs=outputs,
        reused_from=former,
        registered=kept.run.registered,
    )
    records.write(run, session.lineage)
    return run


def _outputs(kept: Kept, folder: Path) -> dict[str, Path]:
    """The kept outputs in a new folder, without a second copy on the disk.

    They outlive the folder of the run that wrote them.
    """
    folder.mkdir(parents=True)
    found = {}
    for name, path in kept.run.outputs.items():
        found[name] = folder / "outputs" / name
        found[name].parent.mkdir(parents=True, exist_ok=True)
        source = path.resolve()
        if source.is_dir():
            shutil.copytree(source, found[name], copy_function=_link)
        elif source.exists():
            _link(str(source), str(found[name]))
    return found


def _link(source: str, target: str) -> None:
    with suppress(OSError):  # another disk, or more links than the file system allows
        os.link(source, target)
        return
    shutil.copy2(source, target)


def _said(value: Any, digest: Callable[[Path], str]) -> Any:
    """A plan (or a part of it) as JSON values that do not depend on where things lie."""
    if isinstance(value, InputPlan):
        if value.is_literal:
            return [value.type, None if value.value is None else str(value.value)]
        path = value.path
        return [value.type, value.mode, path.name if path else "", digest(path) if path else ""]
    if isinstance(value, Environment):
        asked = [f"{one.manager} {one.text}" for one in value.dependencies or ()]
        conda = value.conda_file if value.conda_file and value.conda_file.exists() else None
        return [value.reference, value.image, digest(conda) if conda else "", *asked]
    if is_dataclass(value):
        apart = {one.name for one in fields(value)} & _APART
        names = [one.name for one in fields(value) if one.name not in apart]
        return {name: _said(getattr(value, name), digest) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _said(one, digest) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_said(one, digest) for one in value]
    return value if isinstance(value, str | int | float | None) else str(value)
