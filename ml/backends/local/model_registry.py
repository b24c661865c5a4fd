"""The model registry of this machine: MLflow's registered models on SQLite.

Importing MLflow is slow, so only writes do it; `ml.backends.local.tracking.reader` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ml.backends.local.tracking import reader
from ml.backends.local.tracking.reader import DIGEST, EVIDENCE, PROJECT
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.model_registry import (
    Version,
    kept_tag,
    later_releases,
    model_folder,
    served_tag,
)
from ml.core import faults, home
from ml.core.errors import Problem, UserError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


class LocalRegistry:
    """Implements `model_registry.Registry`; methods raise UserError if the store fails."""

    shared = None

    def exists(self) -> bool:
        return home.database().is_file()

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        registered = [version for version in self.versions(model) if version.digest == digest]
        if registered:
            return registered[-1]
        with faults.as_user_errors():
            client = _client()
            if model not in reader.models():
                client.create_registered_model(model, tags={PROJECT: project})
            version = client.create_model_version(
                model,
                source=str(model_folder(digest)),
                run_id=run,
                tags={DIGEST: digest, PROJECT: project},
            )
        return self.find(model, str(version.version))

    def versions(self, model: str | None = None) -> Sequence[Version]:
        """Return the versions of a model, or of all; [] before the first run created the store."""
        if not self.exists():
            return []
        with faults.as_user_errors():
            versions = reader.model_versions()
        return [version for version in versions if model in (None, version.model)]

    def find(self, model: str, version: str) -> Version:
        versions = self.versions(model)
        for registered in versions:
            if registered.version == version:
                return registered
        names = ", ".join(registered.version for registered in versions)
        project = versions[-1].project if versions else "PROJECT"
        actual = f"the registry has no version {version} of `{model}`"
        expected = f"one of: {names}" if names else "a registered model: this one has no version"
        hint = f"ml release propose {project} registers the best run"
        raise UserError(Problem("no-such-version", actual, expected, hint))

    def champion(self, model: str, environment: str) -> Version | None:
        if not home.database().is_file():
            return None
        with faults.as_user_errors():
            aliases = reader.aliases()
        for alias, name, version in aliases:
            if (alias, name) == (environment, model):
                return self.find(model, version)
        return None

    def promote(self, version: Version, environment: str, deployment_digest: str = "") -> None:
        versions = self.versions(version.model)
        environments = self.find(version.model, version.version).served_in(deployment_digest)
        with faults.as_user_errors():
            client = _client()
            client.set_registered_model_alias(version.model, environment, version.version)
            for former, code in later_releases(versions, version, environment, deployment_digest):
                tag = served_tag(environment, code)
                client.delete_model_version_tag(former.model, former.version, tag)
            if environment not in environments:
                tag, now = served_tag(environment, deployment_digest), datetime.now(UTC).isoformat()
                client.set_model_version_tag(version.model, version.version, tag, now)

    def demote(self, model: str, environment: str) -> None:
        with faults.as_user_errors():
            _client().delete_registered_model_alias(model, environment)

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        with faults.as_user_errors():
            client, now = _client(), datetime.now(UTC).isoformat()
            for tag, value in ((kept_tag(sha256), now), (EVIDENCE, sha256)):
                client.set_model_version_tag(version.model, version.version, tag, value)
        return self.find(version.model, version.version)


def _client() -> MlflowClient:
    """Return an MLflow client for writing; raise UserError if the store is damaged.

    The first call takes a second.
    """
    with faults.as_user_errors():
        Tracking()  # creates a missing store
        from mlflow.tracking import MlflowClient

        return MlflowClient(home.tracking_uri(), home.tracking_uri())
