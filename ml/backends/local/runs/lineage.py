"""The lineage of a run: code, data, environment and parent run."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ml.backends.local.environment import HERE, Interpreter
from ml.backends.local.snapshot import Snapshot
from ml.specs.plan.plan import CommandPlan, InputPlan, PipelinePlan, Plan, SweepPlan, commands


def of(
    plan: CommandPlan,
    snapshot: Snapshot | None,
    code: dict[str, Any] | None = None,
    interpreter: Interpreter = HERE,
) -> dict[str, Any]:
    """The lineage of a run of `plan`, as job.json keeps it (JSON values alone).

    `parent`, the MLflow run id of its sweep, is for a trial to fill in. `code` is `code_of` that
    folder, where that is known already.
    """
    dependencies = plan.environment.dependencies
    packages = "\n".join(f"{entry.manager} {entry.text}" for entry in dependencies or ())
    digest = f"sha256:{sha256(packages.encode()).hexdigest()}"
    folder = plan.code if plan.code and plan.code.is_dir() else Path(plan.place.path).parent
    return {
        **labels(plan),
        "spec": str(plan.place),
        "code": code or code_of(folder, snapshot),
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
            **{"algorithm": plan.algorithm, "rule": plan.rule, "seed": seed},
            **({"hints": plan.hints.file} if plan.hints else {}),
        },
        "objective": {"primary_metric": plan.primary_metric, "goal": plan.goal},
    }


def of_pipeline(plan: PipelinePlan, parent: str | None) -> dict[str, Any]:
    """The lineage of a pipeline; its steps have the code and the environment."""
    folder = next((c.code for c in commands(plan) if c.code), Path(plan.place.path).parent)
    return {
        **labels(plan),
        "spec": str(plan.place),
        "code": code_of(folder, None),
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


def code_of(folder: Path, snapshot: Snapshot | None) -> dict[str, Any]:
    """The code of a folder: commit, branch, whether it is dirty, digest of the snapshot.

    Outside of a git work tree `commit` is "" and `dirty` is true.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain")
    return {
        "commit": commit or "",
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "",
        "dirty": not commit or changes is None or bool(changes),
        "digest": snapshot.digest if snapshot else "",
    }


def tags(lineage: Mapping[str, Any]) -> dict[str, str]:
    """The same as MLflow tags; those of git by the names that Azure ML gives them."""
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


def _git(folder: Path, *words: str) -> str | None:
    """The output of git; None without git, outside of a work tree, or before the first commit."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
