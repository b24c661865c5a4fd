"""The lineage of a run: code, data, environment and parent run."""

from __future__ import annotations

import csv
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ml.backends.local.process_environment import HERE, Interpreter
from ml.backends.snapshot import Snapshot
from ml.core import imports, repository, trees
from ml.core.files import content
from ml.core.trees import Commit
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.plan.plans import CommandPlan, InputPlan, PipelinePlan, Plan, SweepPlan, commands


def of(
    plan: CommandPlan,
    snapshot: Snapshot | None,
    code: dict[str, Any] | None = None,
    interpreter: Interpreter = HERE,
) -> dict[str, Any]:
    """The lineage of a run of `plan`, as job.json keeps it (JSON values alone).

    `parent`, the MLflow run id of its sweep, is for a trial to fill in. `code` is `code_of` its
    code, where that is known already. The spec and the conda file count as code.
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
        **labels(plan),
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


def of_sweep(plan: SweepPlan, origin: Mapping[str, Any]) -> dict[str, Any]:
    """The lineage of a sweep: that of its trials (`origin`), and how they are sampled."""
    seed = plan.seed if plan.seed is not None else secrets.randbelow(2**32)
    return {
        **origin,
        **labels(plan),
        "spec": str(plan.place),
        "sampling": {
            **{"algorithm": plan.hints.sampler or plan.algorithm, "rule": plan.rule, "seed": seed},
            **({"hints": plan.hints.file} if plan.hints else {}),
        },
        "objective": {"primary_metric": plan.primary_metric, "goal": plan.goal},
    }


def of_pipeline(
    plan: PipelinePlan, parent: str | None, code: Mapping[Path | None, Mapping[str, Any]]
) -> dict[str, Any]:
    """The lineage of a pipeline; its steps have the environment, and their `code` by its folder.

    It is dirty where one of them is.
    """
    steps = [code[command.code] for command in commands(plan)]
    spec = Path(plan.place.path)
    commit = trees.commit(repository.folder_of(spec))
    dirty = any(step["dirty"] for step in steps) or not _are_committed(commit, spec)
    return {
        **labels(plan),
        "spec": str(plan.place),
        "code": {**steps[0], "digest": "", "dirty": dirty},
        "data": data_of(plan.inputs),
        "environment": "",
        "parent": parent,
    }


def labels(plan: Plan) -> dict[str, Any]:
    """The display name, description and tags of the spec."""
    description = {"description": plan.description} if plan.description else {}
    return {"display_name": plan.display_name, **description, "tags": dict(plan.tags)}


def data_of(inputs: Mapping[str, InputPlan]) -> dict[str, Any]:
    """The data of the inputs."""
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
    """The code (a folder or a file): commit, branch, whether it is dirty, digest of the snapshot.

    It is dirty unless every file of the snapshot is in the commit with the same content; what does
    not run does not count. Outside of a git work tree `commit` is "" and `dirty` is true.
    """
    return {
        "commit": commit.id if commit else "",
        "branch": commit.branch if commit else "",
        "dirty": not commit or not _is_committed(code, snapshot, commit),
        "digest": snapshot.digest if snapshot else "",
    }


def _is_committed(code: Path, snapshot: Snapshot | None, commit: Commit) -> bool:
    """Whether what was copied is what the commit has, and what says which files are copied too."""
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
    """Whether what was copied is the wheel whose version the commit of a thin fork locks."""
    # Not by importlib.metadata: its backport, where something imported it, skips missing files.
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
    """Whether the commit has those of the specs that are files."""
    files = [path for path in specs if path is not None and path.is_file()]
    return commit is not None and all(map(commit.has, files))


def tags(lineage: Mapping[str, Any]) -> dict[str, str]:
    """Return the lineage as MLflow tags; those of git have Azure ML's names."""
    code = lineage["code"]
    tags = {
        "mlflow.source.name": lineage["spec"],
        "mlflow.source.git.commit": code["commit"],
        "mlflow.source.git.branch": code["branch"],
        "azureml.git.dirty": str(code["dirty"]),
        "code.digest": code["digest"],
        "environment": lineage["environment"],
        "mlflow.parentRunId": lineage["parent"] or "",
        # What MLflow shows as a run's description.
        "mlflow.note.content": lineage.get("description") or "",
    }
    for name, data in lineage["data"].items():
        tags[f"data.{name}"] = data["asset"] or data["source"]
        tags[f"data.{name}.digest"] = data["digest"]
    return {key: value for key, value in tags.items() if value}
