"""The model registry of this machine: MLflow's registered models on SQLite.

It reads the SQLite file directly, which takes milliseconds, and imports MLflow only to write. The
tables are MLflow 3.15's, which is pinned; a test compares the two.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ml.backends.local.tracking.tracking import Tracking
from ml.backends.registry import Version, model_folder
from ml.core import faults, home
from ml.core.errors import Problem, Refused
from ml.core.home import database

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# The tags of a registered version.
DIGEST, PROJECT, EVIDENCE = "digest", "project", "evidence"
_DELETED = "Deleted_Internal"
_NAME = re.compile(r"[\w.-]+")


class LocalRegistry:
    """Implements `ml.backends.registry.Registry`; every method raises Refused for a store that
    cannot be read or written.
    """

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        """See `Registry`."""
        registered = [version for version in self.versions(model) if version.digest == digest]
        if registered:
            return registered[-1]
        with faults.as_refusals():
            if not self._exists(model):
                _client().create_registered_model(model, tags={PROJECT: project})
            made = _client().create_model_version(
                model,
                source=str(model_folder(digest)),
                run_id=run,
                tags={DIGEST: digest, PROJECT: project},
            )
        return self.find(model, str(made.version))

    def versions(self, model: str | None = None) -> Sequence[Version]:
        """See `Registry`; none before the first run made the store."""
        tags: dict[tuple[str, int], dict[str, str]] = {}
        for name, number, key, value in _rows(
            "SELECT name, version, key, value FROM model_version_tags"
        ):
            tags.setdefault((name, number), {})[key] = value
        return [
            Version(
                model=name,
                version=str(number),
                digest=tags.get((name, number), {}).get(DIGEST, ""),
                project=tags.get((name, number), {}).get(PROJECT, ""),
                run=run or "",
                evidence=tags.get((name, number), {}).get(EVIDENCE, ""),
            )
            for name, number, run, _ in _registered()
            if model in (None, name)
        ]

    def find(self, model: str, version: str) -> Version:
        """See `Registry`."""
        versions = self.versions(model)
        for registered in versions:
            if registered.version == version:
                return registered
        names = ", ".join(registered.version for registered in versions)
        raise Refused(
            Problem(
                "no-such-version",
                f"there is no version {version} of `{model}` in the registry",
                f"one of: {names}" if names else "a registered model: this one has no version",
                "ml release propose PROJECT registers the best run",
            )
        )

    def champion(self, model: str, environment: str) -> Version | None:
        """See `Registry`."""
        for alias, name, version in self.champions():
            if (alias, name) == (environment, model):
                return self.find(model, version)
        return None

    def champions(self) -> Sequence[tuple[str, str, str]]:
        """See `Registry`."""
        return [
            (alias, model, str(number))
            for alias, model, number in _rows(
                "SELECT alias, name, version FROM registered_model_aliases ORDER BY name, alias"
            )
        ]

    def sources(self) -> Sequence[tuple[str, str]]:
        """See `Registry`. Ours are in the home; MLflow lets a person register any folder."""
        return [
            (f"{model} {number}", source.removeprefix("file://"))
            for model, number, _, source in _registered()
            if source
        ]

    def promote(self, version: Version, environment: str) -> None:
        """See `Registry`."""
        with faults.as_refusals():
            _client().set_registered_model_alias(version.model, environment, version.version)

    def demote(self, model: str, environment: str) -> None:
        """See `Registry`."""
        with faults.as_refusals():
            _client().delete_registered_model_alias(model, environment)

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        """See `Registry`."""
        with faults.as_refusals():
            _client().set_model_version_tag(version.model, version.version, EVIDENCE, sha256)
        return self.find(version.model, version.version)

    def _exists(self, model: str) -> bool:
        return bool(_rows("SELECT 1 FROM registered_models WHERE name = ?", model))


def _client() -> MlflowClient:
    """For writing: the first takes a second. Raises Refused for a damaged store."""
    with faults.as_refusals():
        Tracking()  # makes the store when there is none
        from mlflow.tracking import MlflowClient

        return MlflowClient(home.tracking_uri(), home.tracking_uri())


def _registered() -> list[Any]:
    """Model, version, run id and source of every version that was not deleted."""
    return _rows(
        "SELECT name, version, run_id, source FROM model_versions WHERE current_stage IS NOT ?"
        " ORDER BY name, version",
        _DELETED,
    )


def _rows(statement: str, *values: str) -> list[Any]:
    if not database().is_file():
        return []
    uri = f"file:{database()}?mode=ro"
    with faults.as_refusals(), closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
        return connection.execute(statement, values).fetchall()
