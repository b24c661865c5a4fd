"""The model registry of this machine: MLflow's registered models on SQLite, and the files kept.

A version is found by its digest, so the same model is never registered twice. An alias per
environment (`local`) names the champion there.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ml.backends.local.tracking.tracking import Tracking
from ml.core import faults, home
from ml.core.errors import Exit, Problem, Refused
from ml.serving.scoring.manifest import DIGEST_PREFIX, ManifestError, verify

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

DIGEST = "digest"
PROJECT = "project"
EVIDENCE = "evidence"
# The output of a run that is a model, and the file that is kept with a version of it.
MODEL_OUTPUT = "model"
EVIDENCE_FILE = "evidence.json"
_NAME = re.compile(r"[\w.-]+")
# As many hexadecimal digits of a sha256 name a folder.
_NAMED = 16


@dataclass(frozen=True)
class Version:
    """A registered model version; `evidence` is the sha256 of its evidence.json, "" before."""

    model: str
    version: str
    digest: str
    project: str
    run: str
    evidence: str

    @property
    def folder(self) -> Path:
        """The model's files, in the registry's own store."""
        return place(self.digest)

    @property
    def papers(self) -> Path:
        """The folder of the evidence and its predictions, named after the evidence's sha256.

        What an environment declares stays when the version is measured again for another.
        """
        return home.home() / "evidence" / self.model / self.version / self.evidence[:_NAMED]


def store(folder: Path) -> str:
    """Copy a model folder into the registry's own store and return its digest.

    The place is named after the content, so a second copy is none. Raises Refused when the folder
    is not what its manifest says (model-corrupt) or the disk is full; nothing is left half copied.
    """
    with faults.as_refusals(), _sound(folder):
        digest = verify(folder)
        kept = place(digest)
        if kept.is_dir():
            verify(kept, digest)
            os.utime(kept)  # cleaning leaves what may be about to be registered
            return digest
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=kept.parent))
        try:
            _copy(folder, unfinished)
            verify(unfinished, digest)
            unfinished.chmod(0o755)
            try:
                unfinished.rename(kept)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody was faster
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return digest


class Registry:
    """The registered models; open one a command, opening takes a second."""

    def __init__(self) -> None:
        with faults.as_refusals():
            Tracking()  # makes the store when there is none, and says what is wrong with it
            from mlflow.tracking import MlflowClient

            self._client: MlflowClient = MlflowClient(home.tracking_uri(), home.tracking_uri())

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        """The version with that digest, made if there is none; its files are in the store."""
        with faults.as_refusals():
            known = [found for found in self.versions(model) if found.digest == digest]
            if known:
                return known[-1]
            if not self._exists(model):
                self._client.create_registered_model(model, tags={PROJECT: project})
            made = self._client.create_model_version(
                model,
                source=str(place(digest)),
                run_id=run,
                tags={DIGEST: digest, PROJECT: project},
            )
            return _version(made)

    def versions(self, model: str) -> Sequence[Version]:
        """Every version of the model, oldest first: 10 comes after 9."""
        if not _NAME.fullmatch(model):  # nothing has such a name, and the filter is a query
            return []
        with faults.as_refusals():
            found: list[ModelVersion] = []
            token = None
            while True:
                page = self._client.search_model_versions(f"name='{model}'", page_token=token)
                found += page
                token = page.token
                if not token:
                    break
        return sorted((_version(one) for one in found), key=lambda one: int(one.version))

    def find(self, model: str, version: str) -> Version:
        """That version; raises Refused when there is none."""
        every = self.versions(model)
        for one in every:
            if one.version == version:
                return one
        known = ", ".join(one.version for one in every)
        raise Refused(
            Problem(
                "no-such-version",
                f"there is no version {version} of `{model}` in the registry",
                f"one of: {known}" if known else "a registered model: this one has no version",
                "ml release propose PROJECT registers the best run",
            )
        )

    def champion(self, model: str, environment: str) -> Version | None:
        """The version that the environment's alias names; None before the first promotion."""
        with faults.as_refusals():
            if not self._exists(model):
                return None
            aliases: Mapping[str, str] = self._client.get_registered_model(model).aliases
            number = aliases.get(environment)
        return self.find(model, str(number)) if number is not None else None

    def promote(self, version: Version, environment: str) -> None:
        """Point the environment's alias at the version."""
        with faults.as_refusals():
            self._client.set_registered_model_alias(version.model, environment, version.version)

    def demote(self, model: str, environment: str) -> None:
        """Take the environment's alias away: nothing is champion there."""
        with faults.as_refusals():
            self._client.delete_registered_model_alias(model, environment)

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        """Record the hash of the version's evidence.json beside the version."""
        with faults.as_refusals():
            self._client.set_model_version_tag(version.model, version.version, EVIDENCE, sha256)
        return self.find(version.model, version.version)

    def _exists(self, model: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._client.get_registered_model(model)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True


def _version(found: ModelVersion) -> Version:
    return Version(
        model=found.name,
        version=str(found.version),
        digest=found.tags.get(DIGEST, ""),
        project=found.tags.get(PROJECT, ""),
        run=found.run_id or "",
        evidence=found.tags.get(EVIDENCE, ""),
    )


def stored() -> Path:
    """One folder a model, named by its digest."""
    return home.home() / "models"


def place(digest: str) -> Path:
    """Where the files of that digest are kept."""
    return stored() / digest.removeprefix(DIGEST_PREFIX)


def _copy(folder: Path, to: Path) -> None:
    # Not shutil.copytree: it gathers errors into a text of its own, and "disk full" is lost.
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = to / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    try:
        yield
    except ManifestError as error:
        raise Refused(
            Problem(
                "model-corrupt",
                str(error),
                "a model folder whose every file is the one that was written",
                f"train it again, or restore {error.folder}; nothing was loaded or registered",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None
    except NotADirectoryError:
        raise Refused(
            Problem("no-model", f"{folder} is no folder", "the run's output `model`")
        ) from None
