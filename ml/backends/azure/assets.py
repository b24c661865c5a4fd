"""Assets of a workspace and of its feature store, registered from the repository's specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ml.backends import snapshot
from ml.backends.azure.errors import as_refusals, or_none
from ml.backends.azure.workspace import Workspace
from ml.backends.resources import AssetState, AssetStatus
from ml.specs.assets import assets, feature_sets
from ml.specs.assets.assets import AssetSpec
from ml.specs.check.feature_sets import SPEC
from ml.specs.sdk import load

# The tag of a version with the digest of its spec and of all that the spec names.
CONTENT = "content"
# Kind of spec → the operations of azure-ai-ml's MLClient. Models are registered by releases.
_OPERATIONS = {"environment": "environments", "data": "data", "component": "components"}
_OF_FEATURE_STORE = {
    "feature_store_entity": "feature_store_entities",
    "feature_set": "feature_sets",
}


class AzureAssets:
    """Implements `ml.backends.resources.AssetStore`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def compare(self, root: Path) -> Sequence[AssetState]:
        """The state of every asset; one request for each."""
        order = [*_OPERATIONS, *_OF_FEATURE_STORE]
        specs = [spec for spec in assets.definitions(root) if spec.kind in order]
        if self._workspace.feature_store and any(spec.kind == "feature_set" for spec in specs):
            _ = self._workspace.offline_store  # Refused without one, before anything is registered
        specs.sort(key=lambda spec: (order.index(spec.kind), spec.name, spec.version))
        return [self._compare(spec) for spec in specs]

    def create(self, state: AssetState) -> None:
        """Upload what the spec names and register the version with its digest.

        A folder is uploaded as the snapshot of it: azure-ai-ml would match
        every file below it, those of `.venv` included, several times.
        """
        spec = state.spec
        if spec.kind in _OF_FEATURE_STORE:
            self._create_features(state)
            return
        snapshots = {
            field: str(taken.folder)
            for field, path in _local(spec)
            if field != "path" and path.is_dir() and (taken := snapshot.take(path)) is not None
        }
        with load.quiet():
            entity = load.load(spec.file, snapshots).entity
        entity.version = spec.version
        entity.tags = {**(entity.tags or {}), CONTENT: state.digest}
        with as_refusals(), self._workspace.quiet():
            self._operations(spec).create_or_update(entity)

    def _create_features(self, state: AssetState) -> None:
        """Register an entity, or a set with the FeatureSetSpec of its materialised files.

        Without `materialization_settings`: Azure's Spark would materialise the values again.
        """
        spec = state.spec
        with TemporaryDirectory() as folder:
            with load.quiet():
                entity = load.load(spec.file).entity
            entity.tags = {**(entity.tags or {}), CONTENT: state.digest}
            if spec.kind == "feature_set":
                document = feature_sets.registered(spec, self._workspace.offline_store)
                Path(folder, SPEC).write_text(yaml.safe_dump(document, sort_keys=False))
                entity.path = entity.specification.path = folder
                entity.materialization_settings = None
            with as_refusals(), self._workspace.quiet():
                self._operations(spec).begin_create_or_update(entity).result()

    def _compare(self, spec: AssetSpec) -> AssetState:
        if spec.kind in _OF_FEATURE_STORE and not self._workspace.feature_store:
            return AssetState(spec, "", "no-feature-store")
        digest = _digest(spec)
        asset = or_none(lambda: self._operations(spec).get(spec.name, spec.version))
        if asset is None:
            return AssetState(spec, digest, "missing")
        same: AssetStatus = "unchanged" if (asset.tags or {}).get(CONTENT) == digest else "changed"
        return AssetState(spec, digest, same)

    def _operations(self, spec: AssetSpec) -> Any:
        if spec.kind in _OF_FEATURE_STORE:
            return getattr(self._workspace.features, _OF_FEATURE_STORE[spec.kind])
        return getattr(self._workspace.client, _OPERATIONS[spec.kind])


def _digest(spec: AssetSpec) -> str:
    """Return the sha256 of the spec's fields and of the files and folders that they name."""
    parts = [repr(sorted(spec.document.data.items(), key=str))]
    for _, path in _local(spec):
        # As azure-ai-ml uploads it: without what the folder's ignore file leaves out.
        taken = snapshot.take(path) if path.is_dir() else None
        parts.append(taken.digest if taken else assets.digest(path))
    if spec.kind == "feature_set":
        parts += [assets.digest(path) for path in feature_sets.files(spec)]
    return sha256("\n".join(parts).encode()).hexdigest()


def _local(spec: AssetSpec) -> Iterator[tuple[str, Path]]:
    """The fields that name a file or folder of this machine, with what they name."""
    for field in ("conda_file", "path", "build.path", "code"):
        written = spec.get(*field.split("."))
        path = assets.local(written, spec.file.parent) if isinstance(written, str) else None
        if path is not None and path.exists():
            yield field, path.resolve()
