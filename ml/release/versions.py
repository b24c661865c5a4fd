"""Registered versions: their model files, the runs they come from, and the files in use."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ml.backends.base import Backend
from ml.backends.model_registry import EVIDENCE_FILE, Registry, Version, model_folder
from ml.backends.runs import Run
from ml.backends.storage import Needed
from ml.core import faults, files, home
from ml.core.errors import Exit, UserError
from ml.release import audit, serving
from ml.release.declaration import desired_state
from ml.serving.scoring.manifest import ManifestError, verify

# The outputs of a run that a release reads.
MODEL, EVALUATION = "model", "evaluation"


Relation = Literal["made", "same files", "evaluated"]


@dataclass(frozen=True)
class Served:
    """An endpoint that sends requests to a version."""

    endpoint: str
    url: str | None  # None while its server is stopped


@dataclass(frozen=True)
class Descendant:
    """A registered version that is related to a run."""

    model: str
    version: str
    digest: str
    # "made": registered from the run or a part of it; "same files": registered from another run
    # that made the same files; "evaluated": the run measured it.
    relation: Relation
    declared: Sequence[str]  # environments
    champion: Sequence[str]  # environments
    serving: Sequence[Served]


def store(folder: Path) -> str:
    """Copy a model folder into the registry's own store and return its digest.

    The folder is named after the content, so a second copy changes nothing. Raises UserError when
    the folder differs from its manifest (model-corrupt) or the disk is full; no partial copy stays.
    """
    with faults.as_user_errors(), _as_user_errors(folder):
        digest = verify(folder)
        stored = model_folder(digest)
        if stored.is_dir():
            verify(stored, digest)
            os.utime(stored)  # cleaning keeps new folders, which may be registered next
            return digest
        stored.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=stored.parent))
        try:
            _copy(folder, unfinished)
            verify(unfinished, digest)
            unfinished.chmod(0o755)
            try:
                unfinished.rename(stored)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # stored by another process
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return digest


def _copy(folder: Path, to: Path) -> None:
    # shutil.copytree gathers errors into its own text, which hides a full disk.
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = to / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


@contextmanager
def _as_user_errors(folder: Path) -> Iterator[None]:
    """Turn errors about the model folder into UserError."""
    try:
        yield
    except ManifestError as error:
        raise UserError.with_code(
            "model-corrupt",
            str(error),
            "a model folder whose files match its manifest",
            f"train again, or restore {error.folder}; a train.py of your own must end with `seal` "
            "of ml.toolkit.training.model_folder",
            exit_code=Exit.RUN_FAILED,
        ) from None
    except NotADirectoryError:
        raise UserError.with_code(
            "no-model", f"{folder} is not a folder", "the run's output `model`"
        ) from None


def descendants(backend: Backend, run: Run) -> Sequence[Descendant]:
    """Return the versions related to the run, and where the backend serves them.

    Raises UserError when the registry or an endpoint cannot be read.
    """
    versions = backend.registry.versions()
    if not versions:
        return []
    ids = _ids(run)
    digests = {digest for part in parts(run, MODEL) if (digest := digest_of(part))}
    descended = []
    for version in versions:
        relation: Relation | None = None
        if version.run in ids:
            relation = "made"
        elif version.digest in digests:
            relation = "same files"
        elif _evaluation_run(version) in ids:
            relation = "evaluated"
        if relation:
            descended.append(_descendant(backend, version, relation))
    return descended


def _descendant(backend: Backend, version: Version, relation: Relation) -> Descendant:
    # The environment `local` exists only on this machine.
    environments = desired_state.ENVIRONMENTS if backend.simulated else desired_state.TRACKED
    endpoints = sorted(
        {backend.endpoints.name_of(version.model, environment) for environment in environments}
    )
    declared = [
        environment
        for environment in environments
        if (entry := desired_state.read(backend, version.project, environment))
        and entry.digest == version.digest
    ]
    return Descendant(
        model=version.model,
        version=version.version,
        digest=version.digest,
        relation=relation,
        declared=declared,
        champion=[
            environment
            for environment in desired_state.ENVIRONMENTS
            if (champion := backend.registry.champion(version.model, environment))
            and champion.version == version.version
        ],
        serving=[
            Served(name, backend.endpoints.url(name))
            for name in endpoints
            if _serves(backend, name, version)
        ],
    )


def _serves(backend: Backend, endpoint: str, version: Version) -> bool:
    """Return whether the endpoint sends requests to the model, also as the green of a canary."""
    live = backend.endpoints.live(endpoint, as_released=False)
    if live is None:
        return False
    green = live.canary
    digests = {live.deployment.digest, green.deployment.digest if green and green.weight else ""}
    return version.digest in digests


def version_of(registry: Registry, run: Run) -> Version | None:
    """Return the latest version with the run's model; None if no version is related to the run.

    If no version has the model, return the latest that was registered from a part of the run (such
    as a trial that is not the best), or else the latest that the run evaluated.
    """
    versions, ids = registry.versions(), _ids(run)
    digest = next((digest for part in parts(run, MODEL) if (digest := digest_of(part))), None)
    matches = (
        [version for version in versions if version.digest == digest]
        or [version for version in versions if version.run in ids]
        or [version for version in versions if _evaluation_run(version) in ids]
    )
    return matches[-1] if matches else None


def parts(run: Run, output: str) -> list[Run]:
    """Return those of the run and its steps that have the output, of a sweep its best trial's."""
    runs = [run] if output in run.outputs else []
    return runs + [part for step in run.steps for part in parts(step, output)]


def digest_of(run: Run) -> str:
    """Return the digest of the run's model, "" when it has none or its files were changed."""
    try:
        return verify(run.outputs[MODEL]) if MODEL in run.outputs else ""
    except (ManifestError, OSError):
        return ""


def _ids(run: Run) -> set[str]:
    return {part.id for part in (run, *run.below()) if part.id}


def _evaluation_run(version: Version) -> str:
    try:
        return str(_lineage(version).get("evaluation_run") or "")
    except UserError:
        return ""


def find_in_use(backend: Backend) -> Needed:
    """Return the files and runs that releases use, each with the reason.

    Raise UserError when they cannot be determined; then nothing is safe to remove.
    """
    paths: dict[Path, str] = {}
    runs: dict[str, str] = {}
    _check_registry(backend.registry)
    for version in backend.registry.versions():
        why = f"{version.model} {version.version} is registered"
        lineage = _lineage(version)
        snapshots = [
            home.snapshots() / str(lineage.get(name) or "").removeprefix("sha256:")
            for name in ("code_snapshot", "evaluation_snapshot")
        ]
        # The framework's versions are in the local home; people may register any folder.
        if Path(version.source).is_absolute():
            paths[Path(version.source)] = why
        for path in (version.folder, version.evidence_folder, *snapshots):
            if path not in (home.models(), home.snapshots()):
                paths[path] = why
        for run in (
            version.run,
            *(lineage.get(f"{kind}run") for kind in ("", "parent_", "evaluation_")),
        ):
            if run:
                runs[str(run)] = why
    for project in desired_state.projects(backend):
        for environment in desired_state.ENVIRONMENTS:
            entry = desired_state.read(backend, project, environment)
            if entry and entry.digest:
                why = f"{project} declares it in {environment}"
                paths[model_folder(entry.digest)] = why
                paths.update(dict.fromkeys(_code(entry.deployment_digest), why))
    for line in audit.verify(backend.audit_log):
        if line["event"] == "applied":
            why = f"{line['model']} {line['version']} served with it: a rollback may need it"
            paths.update(dict.fromkeys(_code(str(line.get("deployment_digest", ""))), why))
    for name in backend.servers.names() if backend.servers else ():
        live = backend.endpoints.live(name)
        if live:
            for deployment in (live.deployment, *([live.canary.deployment] if live.canary else [])):
                for path in (deployment.model_folder, deployment.code):
                    paths[path] = f"the endpoint {name} serves from it"
    for lock in sorted((home.home() / "release").glob("*.lock")):
        if files.is_locked(lock):  # a proposal or an apply is in progress
            why = f"{lock.name.partition('.')[0]} is being released now"
            paths |= dict.fromkeys((home.models(), home.snapshots()), why)
    return Needed(paths, runs, home.models())


def _code(digest: str) -> list[Path]:
    """Return [the code snapshot of the deployment with that digest], or [] if none is stored."""
    proposed = serving.find(digest) if digest else None
    return [proposed.code] if proposed else []


def _check_registry(registry: Registry) -> None:
    """Raise UserError if models exist without a registry, which may have been moved."""
    is_gone = registry.exists is not None and not registry.exists()
    if is_gone and home.models().is_dir() and any(home.models().iterdir()):
        raise UserError.with_code(
            "registry-missing",
            f"{home.models()} has models, but the registry that lists them is missing",
            "the tracking store that they were registered in",
            "restore the store; nothing was removed",
            exit_code=Exit.RUN_FAILED,
        )


def _lineage(version: Version) -> dict[str, Any]:
    try:
        document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text(encoding="utf-8"))
        return dict(document["lineage"])
    except FileNotFoundError:
        return {}  # the proposal was killed before it stored evidence: the gates reject the version
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError.with_code(
            "evidence-unreadable",
            f"the evidence of {version.model} {version.version} cannot be read: {error}",
            f"{version.evidence_folder / EVIDENCE_FILE} as it was written",
            "restore it: it lists the files the version needs; nothing was removed",
            exit_code=Exit.RUN_FAILED,
        ) from None
