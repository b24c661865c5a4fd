"""The record and the lineage of a run, as JSON in its folder, readable without MLflow.

`job.json` is the run, `sampling.json` the sample of a trial. The sample is written before the
trial's process starts, so that an interrupted trial can run again with the same values.
"""

from __future__ import annotations

import csv
import json
import math
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict

from ml.backends.local.process_environment import HERE, Interpreter
from ml.backends.runs import Entry, Pause, Run, Status
from ml.backends.snapshot import Snapshot
from ml.core import files, home, imports, repository, trees
from ml.core.errors import Place, Problem
from ml.core.files import content
from ml.core.names import is_name
from ml.core.trees import Commit
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.plan.plans import (
    CommandPlan,
    InputPlan,
    PipelinePlan,
    Plan,
    Sample,
    SweepPlan,
    commands,
)

FILE = "job.json"
SAMPLE = "sampling.json"
# Kind of a run with child runs → the folder of these.
PARTS = {"sweep": "trials", "pipeline": "steps"}
# The folder of interrupted attempts at trials and steps, named `CHILD.ATTEMPT`.
ATTEMPTS = "attempts"
# Fields of a run that are JSON values.
_AS_THEY_ARE = (
    *("id", "name", "status", "experiment", "started", "ended"),
    *("best", "ended_by", "reused_from"),
)
# Exceptions of reading a missing or damaged record.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def _name(text: str) -> str:
    if not is_name("job", text):
        raise ValueError("not a name")
    return text


def _inside(path: str) -> str:
    if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
        raise ValueError("a path out of the folder")
    return path


class _Record(TypedDict):
    """The schema of a record, to validate it."""

    id: str
    name: Annotated[str, AfterValidator(_name)]
    status: Status
    experiment: str
    started: FiniteFloat
    ended: FiniteFloat | None
    parameters: dict[str, str | bool | int | float | None]
    metrics: dict[str, float]
    outputs: dict[str, Annotated[str, AfterValidator(_inside)]]
    trials: list[_Record]
    best: str | None
    ended_by: str
    error: Problem | None
    warnings: list[Problem]
    steps: list[_Record]
    reused_from: str
    registered: dict[str, str]
    restarts: list[FiniteFloat]
    pauses: list[Pause]
    former: list[_Record]
    kind: str
    lineage: NotRequired[dict[str, Any]]


@cache
def _form() -> TypeAdapter[_Record]:
    return TypeAdapter(_Record)


def write(run: Run, lineage: Mapping[str, Any]) -> None:
    """Replace the run's record atomically.

    For a sweep or pipeline the write is durable. After a power failure the record of a trial, step
    or command may be damaged, and it runs again: syncing the disk would take longer than all other
    work of the executor for a trial.
    """
    data = to_json(run) | {"lineage": lineage}
    replace(run.folder / FILE, data, durable=data["kind"] in PARTS)


def replace(path: Path, data: Any, *, durable: bool) -> None:
    """Write JSON to a file atomically; if `durable`, it survives a power failure."""
    # One field per line without `indent`, which would use the slow encoder: that matters for a
    # sweep of a thousand trials.
    files.replace(path, json.dumps(data, separators=(",\n", ": ")) + "\n", durable)


def read(folder: Path) -> Run:
    """Return the run in the folder; if it is running, with its started trials and steps.

    Raise OSError or ValueError if the record is missing or cannot be read.
    """
    return from_json(folder, document(folder))


def read_if_whole(folder: Path) -> Run | None:
    """Return the run in the folder; None if its record is missing or damaged."""
    with suppress(*UNREADABLE):
        return read(folder)
    return None


def document(folder: Path) -> dict[str, Any]:
    """Return the record as JSON; if the run is running, with its children's current records.

    Raise as `read`.
    """
    try:
        data: dict[str, Any] = json.loads((folder / FILE).read_text())
        _form().validate_python(data)
    except RecursionError as error:
        raise ValueError(error) from None
    if data["ended"] is None:
        data["trials"] = sorted(_parts(folder / "trials"), key=lambda part: _number(part["name"]))
        data["steps"] = sorted(_parts(folder / "steps"), key=lambda part: float(part["started"]))
    return data


def entry(folder: Path) -> Entry:
    """Return the run in the folder with its kind and its lineage. Raise as `read`."""
    data = document(folder)
    return Entry(from_json(folder, data), data["kind"], data["lineage"])


def _parts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the readable records of the trials or steps in the folder."""
    for path in folder.glob(f"*/{FILE}"):
        with suppress(*UNREADABLE):
            yield document(path.parent)


def _number(name: str) -> int:
    """Return the number at the end of a trial's name: 3 for `SWEEP_3`."""
    return int(name.rpartition("_")[2])


def within(folder: Path) -> Iterator[Run]:
    """Yield a job's trials, steps and attempts with readable records; the job comes last."""
    for kind in (*PARTS.values(), ATTEMPTS):
        for part in sorted((folder / kind).glob("*")):
            yield from within(part)
    with suppress(*UNREADABLE):
        yield read(folder)


def original(run: Run) -> Run | None:
    """Return the run that wrote the outputs: `run`, or the step that it reuses; None if removed."""
    if not run.reused_from:
        return run
    name, *steps = run.reused_from.split(".")
    folder = home.jobs() / name
    for step in steps:
        folder = folder / PARTS["pipeline"] / step
    return read_if_whole(folder)


def is_damaged(folder: Path) -> bool:
    """Return whether the folder has a damaged record."""
    return (folder / FILE).exists() and read_if_whole(folder) is None


def lineage(folder: Path) -> dict[str, Any]:
    """Return the lineage in the record of the folder (see `lineage_of`)."""
    recorded: dict[str, Any] = json.loads((folder / FILE).read_text())["lineage"]
    return recorded


def to_json(run: Run) -> dict[str, Any]:
    """Return the run as JSON: paths relative to its folder, NaN and infinities as text."""
    return {
        "schema_version": 1,
        "kind": _kind(run.folder),
        **{name: getattr(run, name) for name in _AS_THEY_ARE},
        "parameters": dict(run.parameters),
        "metrics": {key: _finite(number) for key, number in run.metrics.items()},
        "outputs": {key: str(path.relative_to(run.folder)) for key, path in run.outputs.items()},
        "error": asdict(run.error) if run.error else None,
        "warnings": [asdict(problem) for problem in run.warnings],
        "trials": [to_json(trial) for trial in run.trials],
        "steps": [to_json(step) for step in run.steps],
        "pauses": [asdict(pause) for pause in run.pauses],
        "former": [to_json(attempt) for attempt in run.former],
        "registered": dict(run.registered),
        "restarts": list(run.restarts),
    }


def _kind(folder: Path) -> str:
    # Strings are faster than Path objects, for a thousand trials.
    kinds = (kind for kind, parts in PARTS.items() if os.path.isdir(f"{folder}/{parts}"))  # noqa: PTH112
    return next(kinds, "command")


def from_json(folder: Path, data: Mapping[str, Any]) -> Run:
    """Return the run that `to_json` encoded; `folder` is its current folder."""
    return Run(
        folder=folder,
        **{name: data[name] for name in (*_AS_THEY_ARE, "parameters", "registered")},
        metrics={key: float(number) for key, number in data["metrics"].items()},
        outputs={key: folder / path for key, path in data["outputs"].items()},
        trials=tuple(
            from_json(folder / "trials" / trial["name"].rpartition("_")[2], trial)
            for trial in data["trials"]
        ),
        steps=tuple(
            from_json(folder / "steps" / step["name"].rpartition(".")[2], step)
            for step in data["steps"]
        ),
        error=_problem(data["error"]) if data["error"] else None,
        warnings=tuple(_problem(problem) for problem in data["warnings"]),
        pauses=tuple(Pause(**pause) for pause in data["pauses"]),
        former=tuple(
            from_json(attempt_folder(folder, number), attempt)
            for number, attempt in enumerate(data["former"], 1)
        ),
        restarts=tuple(data["restarts"]),
    )


def attempt_folder(part: Path, number: int) -> Path:
    """Return the folder to which attempt `number` (from 1) of a trial or step was moved."""
    return part.parent.parent / ATTEMPTS / f"{part.name}.{number}"


def _problem(data: Mapping[str, Any]) -> Problem:
    place = data["place"]
    return Problem(**{**data, "place": Place(**place) if place else None})


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def write_sample(folder: Path, sample: Sample) -> None:
    """Write the sample to a trial's folder; create the folder if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without `indent`, json uses its fast C encoder.
    (folder / SAMPLE).write_text(json.dumps(asdict(sample)) + "\n")


def read_sample(folder: Path) -> Sample | None:
    """Return the sample in a trial's folder; None if it is missing or incomplete."""
    with suppress(*UNREADABLE):
        data = json.loads((folder / SAMPLE).read_text())
        return Sample(data["number"], data["values"], data["origin"])
    return None


def lineage_of(
    plan: CommandPlan,
    snapshot: Snapshot | None,
    code: dict[str, Any] | None = None,
    interpreter: Interpreter = HERE,
) -> dict[str, Any]:
    """Return the lineage of a run of `plan` for job.json (JSON values only).

    `parent` is None: the caller sets it. `code` is the result of `code_of`, if already known. An
    uncommitted spec or conda file makes the code dirty.
    """
    dependencies = plan.environment.dependencies
    packages = "\n".join(f"{entry.manager} {entry.text}" for entry in dependencies or ())
    digest = f"sha256:{sha256(packages.encode()).hexdigest()}"
    spec = Path(plan.place.path)
    commit = trees.commit(repository.folder_of(plan.code or spec))
    code = code or code_of(plan.code or spec, snapshot, commit)
    conda = plan.environment.conda_file
    dirty = code["dirty"] or not _are_committed(commit, spec, conda)
    return {
        **plan_labels(plan),
        "spec": str(plan.place),
        "code": {**code, "dirty": dirty},
        "data": data_of(plan.inputs),
        "compute": plan.compute,
        "nodes": plan.instance_count,
        "environment": plan.environment.reference,
        "environment_digest": digest if dependencies else "",
        "interpreter": {"python": interpreter.version, "built": interpreter.built},
        "parent": None,
    }


def sweep_lineage(plan: SweepPlan, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lineage of a sweep: that of its trials (`origin`), sampling and objective."""
    seed = plan.seed if plan.seed is not None else secrets.randbelow(2**32)
    return {
        **origin,
        **plan_labels(plan),
        "spec": str(plan.place),
        "sampling": {
            **{"algorithm": plan.hints.sampler or plan.algorithm, "rule": plan.rule, "seed": seed},
            **({"hints": plan.hints.file} if plan.hints else {}),
        },
        "objective": {"primary_metric": plan.primary_metric, "goal": plan.goal},
    }


def pipeline_lineage(
    plan: PipelinePlan, parent: str | None, code: Mapping[Path | None, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the lineage of a pipeline; environments and code digests are in those of its steps.

    `parent` is the run id of the enclosing pipeline; None for a root run. `code` maps code folders
    to the result of `code_of`. The pipeline is dirty if a step is, or if its spec is not committed.
    """
    steps = [code[command.code] for command in commands(plan)]
    spec = Path(plan.place.path)
    commit = trees.commit(repository.folder_of(spec))
    dirty = any(step["dirty"] for step in steps) or not _are_committed(commit, spec)
    return {
        **plan_labels(plan),
        "spec": str(plan.place),
        "code": {**steps[0], "digest": "", "dirty": dirty},
        "data": data_of(plan.inputs),
        "environment": "",
        "parent": parent,
    }


def plan_labels(plan: Plan) -> dict[str, Any]:
    """Return the display name, description and tags of the spec."""
    description = {"description": plan.description} if plan.description else {}
    return {"display_name": plan.display_name, **description, "tags": dict(plan.tags)}


def data_of(inputs: Mapping[str, InputPlan]) -> dict[str, Any]:
    """Return the lineage of data inputs: asset, source, digest and the run that made it."""
    return {
        name: {
            "asset": str(data.asset) if data.asset else "",
            "source": data.source,
            "digest": data.asset.digest if data.asset else "",
            "made_by": data.asset.made_by if data.asset else "",
        }
        for name, data in inputs.items()
        if not data.is_literal
    }


def code_of(code: Path, snapshot: Snapshot | None, commit: Commit | None) -> dict[str, Any]:
    """Return the lineage of code (a folder or a file): commit, branch, dirty, snapshot's digest.

    It is dirty if a file of the snapshot differs from the commit; ignored files do not count.
    Without a git work tree, `commit` is "" and `dirty` is True.
    """
    return {
        "commit": commit.id if commit else "",
        "branch": commit.branch if commit else "",
        "dirty": not commit or not _is_committed(code, snapshot, commit),
        "digest": snapshot.digest if snapshot else "",
    }


def _is_committed(code: Path, snapshot: Snapshot | None, commit: Commit) -> bool:
    """Return whether the commit contains the snapshot's files and the ignore file."""
    if snapshot is None:
        return True
    if code.is_file():
        return commit.has(code, snapshot.folder / code.name)
    if code == imports.FRAMEWORK != imports.ROOT:
        return _is_locked(snapshot, commit)
    ignored = IgnoreFile(code)
    gone = (name for name in commit.below(code) if not os.path.lexists(code / name))
    return (
        all(commit.has(code / name, copy) for name, copy in trees.files(snapshot.folder))
        and (ignored.file is None or commit.has(ignored.file))
        and all(map(ignored.excludes, gone))
    )


def _is_locked(snapshot: Snapshot, commit: Commit) -> bool:
    """Return whether the copied framework is the wheel that the commit of a thin fork locks."""
    # importlib.metadata is not used: its backport, if it was imported, skips missing files.
    (record,) = imports.FRAMEWORK.glob("*.dist-info/RECORD")
    ignored, lock = IgnoreFile(imports.FRAMEWORK), imports.ROOT / repository.FRAMEWORK_LOCK
    rows = csv.reader(record.read_text().splitlines())
    installed = {name: value.removeprefix("sha256=") for name, value, _ in rows}
    copied = {
        name: urlsafe_b64encode(sha256(content(copy)).digest()).decode().rstrip("=")
        for name, copy in trees.files(snapshot.folder)
    }
    return (
        commit.has(lock)
        and f"{record.parent.stem}-" in lock.read_text()
        and copied == {name: installed[name] for name in installed if not ignored.excludes(name)}
    )


def _are_committed(commit: Commit | None, *specs: Path | None) -> bool:
    """Return whether the commit has those of `specs` that are files, with their current content."""
    files = [path for path in specs if path is not None and path.is_file()]
    return commit is not None and all(map(commit.has, files))


def lineage_tags(lineage: Mapping[str, Any]) -> dict[str, str]:
    """Return the lineage as MLflow tags; git's tags have Azure ML's names."""
    code = lineage["code"]
    tags = {
        "mlflow.source.name": lineage["spec"],
        "mlflow.source.git.commit": code["commit"],
        "mlflow.source.git.branch": code["branch"],
        "azureml.git.dirty": str(code["dirty"]),
        "code.digest": code["digest"],
        "environment": lineage["environment"],
        "mlflow.parentRunId": lineage["parent"] or "",
        # MLflow shows this tag as the run's description.
        "mlflow.note.content": lineage.get("description") or "",
    }
    for name, data in lineage["data"].items():
        tags[f"data.{name}"] = data["asset"] or data["source"]
        tags[f"data.{name}.digest"] = data["digest"]
    return {key: value for key, value in tags.items() if value}
