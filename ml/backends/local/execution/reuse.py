"""The step cache: a step with equal command, code, environment, values and data is reused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends import snapshot
from ml.backends.local import files
from ml.backends.local.execution.binding import bind
from ml.backends.local.execution.command import Session
from ml.backends.local.process_environment import HERE, Interpreter
from ml.backends.local.runs import lifecycle, records
from ml.backends.runs import Run
from ml.core import home
from ml.specs.assets import assets
from ml.specs.plan.plans import (
    CommandPlan,
    Environment,
    FromStep,
    InputPlan,
    PipelinePlan,
    SweepPlan,
)

# Fields of a plan that do not change what the step computes.
_IGNORED_FIELDS = frozenset(
    {"place", "places", "display_name", "experiment", "tags", "compute", "code", "timeout_s"}
    | {"description"}
    | {"because", "file"}  # of hints: the reason and the file
)

# The record in a completed step's folder: its key, and its outputs with their digests.
RECORD = "reuse.json"


@dataclass(frozen=True)
class CachedStep:
    """A completed step in the cache, with the paths of its unchanged outputs by name."""

    run: Run
    paths: Mapping[str, Path]


def key(
    plan: CommandPlan | SweepPlan,
    code: str,
    digest: Callable[[Path], str],
    interpreter: Interpreter = HERE,
) -> str:
    """Return the cache key: a hash of everything that the result depends on.

    `code` is the snapshot's digest. The environment is hashed as the content of its conda file, and
    as the interpreter with its installed packages.
    """
    content = [_content(plan, digest), code, interpreter.identity()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find(name: str) -> CachedStep | None:
    """Return the cached step with the key `name`; None if it is missing or has changed.

    The outputs are hashed again. The index and the record in the step's folder must be equal.
    """
    try:
        text = (home.step_cache() / name).read_text()
        data = json.loads(text)
        run = records.read(Path(data["folder"]))
        paths = {name: Path(path) for name, (path, _) in data["outputs"].items()}
        digests = {name: digest for name, (_, digest) in data["outputs"].items()}
        intact = (
            data["key"] == name
            and (run.folder / RECORD).read_text() == text
            and all(paths[name] == path.resolve() for name, path in run.outputs.items())
            and all(p.exists() and assets.digest(p) == digests[name] for name, p in paths.items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return CachedStep(run, paths) if intact and run.status == "Completed" else None


def keep(name: str, run: Run, paths: Mapping[str, Path], digest: Callable[[Path], str]) -> None:
    """Add a completed step to the cache under the key `name`, unless an output is missing."""
    if not all(path.exists() for path in paths.values()):
        return
    data = {
        "key": name,
        "folder": str(run.folder),
        "outputs": {name: (str(path), digest(path)) for name, path in paths.items()},
    }
    home.step_cache().mkdir(parents=True, exist_ok=True)
    for place in (run.folder / RECORD, home.step_cache() / name):
        records.replace(place, data, durable=False)


def take_over(
    cached: CachedStep, folder: Path, name: str, plan: CommandPlan | SweepPlan, session: Session
) -> Run:
    """Create a completed run in `folder` with outputs, metrics and parameters of the cached one."""
    former = cached.run.reused_from or cached.run.name
    outputs = _outputs(cached, folder)
    tracking, tags = session.tracking, {"reused_from": former}
    run = lifecycle.start(
        tracking, plan, folder, name, session.lineage, cached.run.parameters, outputs, tags=tags
    )
    tracking.metrics(run.id, cached.run.metrics)
    run = replace(
        run,
        status="Completed",
        ended=run.started,
        metrics=cached.run.metrics,
        reused_from=former,
        registered=cached.run.registered,
    )
    return lifecycle.finish(tracking, run, session.lineage, {})


def _outputs(cached: CachedStep, folder: Path) -> dict[str, Path]:
    """Create `folder` with the cached outputs as hard links; return their paths by name.

    Hard links stay valid after the original run is removed.
    """
    folder.mkdir(parents=True)
    outputs = {name: folder / "outputs" / name for name in cached.run.outputs}
    for name, path in cached.run.outputs.items():
        outputs[name].parent.mkdir(parents=True, exist_ok=True)
        source = path.resolve()
        if source.is_dir():
            shutil.copytree(source, outputs[name], copy_function=files.link)
        elif source.exists():
            files.link(str(source), str(outputs[name]))
    return outputs


def _content(value: Any, digest: Callable[[Path], str]) -> Any:
    """Return the value of a plan as JSON for hashing, without absolute paths."""
    if isinstance(value, InputPlan):
        if value.is_literal:
            return [value.type, None if value.value is None else str(value.value)]
        path = value.path
        return [value.type, value.mode, path.name if path else "", digest(path) if path else ""]
    if isinstance(value, Environment):
        return [value.reference, *value.content]
    if is_dataclass(value):
        names = {field.name for field in fields(value) if field.compare} - _IGNORED_FIELDS
        return {name: _content(getattr(value, name), digest) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _content(part, digest) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_content(part, digest) for part in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def find_job(plan: CommandPlan | PipelinePlan, output: str) -> Run | None:
    """Return the cached command, or the pipeline's cached step that wrote `output`.

    Return None unless all steps are cached.
    """
    if isinstance(plan, CommandPlan):
        hit = _find_now(plan)
        return hit.run if hit else None
    steps: dict[str, CachedStep] = {}
    written: dict[FromStep, Path] = {}
    waiting = dict(plan.steps)
    while waiting and not plan.force_rerun:
        # A plan has no cycles, so one of the remaining steps has all its dependencies.
        name = next(n for n, step in waiting.items() if not waiting.keys() & set(step.after))
        step = waiting.pop(name)
        complete = bind(step, plan, written)
        if isinstance(complete, PipelinePlan) or not step.is_deterministic:
            return None
        if (hit := _find_now(complete)) is None:
            return None
        steps[name] = hit
        written |= {FromStep(name, wrote): path for wrote, path in hit.paths.items()}
    origin = plan.origins.get(output)
    hit = steps.get(origin.step) if origin is not None else None
    return hit.run if hit else None


def _find_now(plan: CommandPlan | SweepPlan) -> CachedStep | None:
    """Return the cached step of this plan with the current code; None if it is not cached."""
    (copy,) = snapshot.of_plan(plan).values()
    return find(key(plan, copy.digest if copy else "", assets.digest))
