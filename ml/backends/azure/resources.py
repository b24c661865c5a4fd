"""Assets, schedules, batch endpoints and batch deployments: created from specs by azure-ai-ml."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ml.backends import snapshot
from ml.backends.azure import submission
from ml.backends.azure.errors import as_user_errors, or_none, retried
from ml.backends.azure.jobs import Outputs
from ml.backends.azure.workspace import Workspace
from ml.backends.base import Applied, AssetState, AssetStatus
from ml.backends.runs import Run, Watch, unwatched
from ml.core import faults, repository
from ml.core.errors import Problem, UserError
from ml.specs.assets import assets, feature_sets
from ml.specs.assets.assets import AssetSpec
from ml.specs.check.feature_sets import SPEC
from ml.specs.plan.batch import OUTPUT
from ml.specs.sdk import load
from ml.specs.sdk.load import Spec

# Tag of an asset's version: the digest of its spec and of the files that the spec names.
CONTENT = "content"
# Kind of spec → the operations of azure-ai-ml's MLClient. Models are registered by releases.
_OPERATIONS = {"environment": "environments", "data": "data", "component": "components"}
_OF_FEATURE_STORE = {
    "feature_store_entity": "feature_store_entities",
    "feature_set": "feature_sets",
}


class AzureAssets:
    """Implements `ml.backends.base.AssetStore`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def compare(self, root: Path) -> Sequence[AssetState]:
        """Return the state of each asset that a spec defines; send one request per asset."""
        order = [*_OPERATIONS, *_OF_FEATURE_STORE]
        specs = [spec for spec in assets.definitions(root) if spec.kind in order]
        if self._workspace.feature_store and any(spec.kind == "feature_set" for spec in specs):
            _ = self._workspace.offline_store  # raise UserError before anything is registered
        specs.sort(key=lambda spec: (order.index(spec.kind), spec.name, spec.version))
        return [self._compare(spec) for spec in specs]

    def create(self, state: AssetState) -> None:
        """Upload the files of the spec and register the version with its digest.

        A folder is uploaded from its snapshot: in the folder itself, azure-ai-ml would match every
        file against .amlignore several times, even those of `.venv`.
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
        with as_user_errors(), self._workspace.quiet():
            self._operations(spec).create_or_update(entity)

    def _create_features(self, state: AssetState) -> None:
        """Register a feature store entity, or a feature set that reads the materialised files.

        Remove `materialization_settings`, or Azure's Spark would materialise the values again.
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
            with as_user_errors(), self._workspace.quiet():
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
        # azure-ai-ml does not upload files that the folder's ignore file excludes.
        taken = snapshot.take(path) if path.is_dir() else None
        parts.append(taken.digest if taken else assets.digest(path))
    if spec.kind == "feature_set":
        parts += [assets.digest(path) for path in feature_sets.files(spec)]
    return sha256("\n".join(parts).encode()).hexdigest()


def _local(spec: AssetSpec) -> Iterator[tuple[str, Path]]:
    """Yield each field of the spec that names an existing local file or folder, and its path."""
    for field in ("conda_file", "path", "build.path", "code"):
        written = spec.get(*field.split("."))
        path = assets.local_path(written, spec.file.parent) if isinstance(written, str) else None
        if path is not None and path.exists():
            yield field, path.resolve()


# Seconds between two progress lines of an operation, and before a retry.
SAY_S, BUSY_POLL_S = 30.0, 15.0


@dataclass(frozen=True)
class _Declaration:
    """The request that a spec declares."""

    entity: Any  # azure-ai-ml's entity, with the tag `CONTENT`
    kind: str
    path: str  # ARM path below the workspace
    code: tuple[str, ...]  # lines about uploaded code


@dataclass(frozen=True)
class AzureResources:
    """Implements `ml.backends.base.Resources`."""

    workspace: Workspace
    follow: Callable[[str, Watch], Run]  # follows a job, by its name
    # Receives a line every 30 seconds during an operation on Azure.
    say: Callable[[str], None] = lambda line: None

    def requests(self, spec: Spec) -> tuple[str, ...]:
        declared = self._declaration(spec)
        with load.quiet():
            content = json.dumps(load.fields_of(declared.entity), indent=2, default=str)
        url = f"https://management.azure.com{self.workspace.id}/{declared.path}"
        return (*declared.code, f"PUT {url}, from", content)

    def apply(self, spec: Spec) -> Applied:
        declared, client = self._declaration(spec), self.workspace.client
        entity, name = declared.entity, str(declared.entity.name)
        with as_user_errors(), self.workspace.quiet():
            if declared.kind == "schedule":
                before = or_none(lambda: client.schedules.get(name))
                put = client.schedules.begin_create_or_update
                commands = (f"az ml schedule show --name {name}",)
                return Applied("schedule", name, self._put(entity, before, put), commands)
            if declared.kind == "batch endpoint":
                before = or_none(lambda: client.batch_endpoints.get(name))
                put = client.batch_endpoints.begin_create_or_update
                return Applied("batch endpoint", name, self._put(entity, before, put))
            return self._deploy(declared)

    def _deploy(self, declared: _Declaration) -> Applied:
        """Create or update a batch deployment; an endpoint's first one becomes its default."""
        client, entity = self.workspace.client, declared.entity
        endpoint = or_none(lambda: client.batch_endpoints.get(entity.endpoint_name))
        if endpoint is None:
            raise UserError(_no_endpoint(entity.endpoint_name))
        listed = client.batch_deployments.list(entity.endpoint_name)
        deployments = {deployment.name: deployment for deployment in listed}
        put = client.batch_deployments.begin_create_or_update
        change = self._put(entity, deployments.get(entity.name), put)
        if not (endpoint.defaults or {}).get("deployment_name"):
            endpoint.defaults = {"deployment_name": entity.name}
            self._carry_out(endpoint, client.batch_endpoints.begin_create_or_update)
        command = f"ml invoke {entity.endpoint_name} --input DATA --on azure"
        return Applied(declared.kind, entity.name, change, (command,))

    def _put(self, entity: Any, before: Any, put: Callable[[Any], Any]) -> Any:
        """Create or update the entity unless `before` has its content; return which was done."""
        if before is not None and (before.tags or {}).get(CONTENT) == entity.tags[CONTENT]:
            return "unchanged"
        self._carry_out(entity, put)
        return "updated" if before is not None else "created"

    def _carry_out(self, entity: Any, put: Callable[[Any], Any]) -> None:
        """Send the entity and wait; retry transient errors, such as a concurrent operation."""
        retried(lambda: ended(put(entity), entity.name, self.say), BUSY_POLL_S)

    def score(self, endpoint: str, deployment: str, data: str, watch: Watch = unwatched) -> Run:
        from azure.ai.ml import Input

        key, equals, value = data.partition("=")
        name, data = (key, value) if equals and key.isidentifier() else ("input", data)
        path = assets.local_path(data, Path.cwd())
        if path is not None and not path.exists():
            raise UserError.with_code(
                "missing-file", f"no `{data}`", "a file or folder", "--input PATH"
            )
        kind = "uri_file" if path is not None and path.is_file() else "uri_folder"
        source = Input(type=kind, path=str(path.resolve()) if path is not None else data)
        with as_user_errors(), self.workspace.quiet():
            if or_none(lambda: self.workspace.client.batch_endpoints.get(endpoint)) is None:
                raise UserError(_no_endpoint(endpoint))
            job = self.workspace.client.batch_endpoints.invoke(
                endpoint, deployment_name=deployment or None, inputs={name: source}
            )
        run = self.follow(str(job.name), watch)
        if run.outputs or run.status != "Completed":
            return run
        # A model deployment's job has one step, with the output "score"
        # (how-to-use-batch-model-deployments).
        (step,) = run.steps
        types = {OUTPUT: "uri_folder"}
        return replace(run, outputs=Outputs(self.workspace, step.id, types, step.folder))

    def _declaration(self, spec: Spec) -> _Declaration:
        """Return the request of a spec; its code is replaced by a snapshot, as in jobs."""
        with load.quiet():
            entity = load.from_document(spec.document, spec.file, {}).entity
            content = json.dumps(load.fields_of(entity), sort_keys=True, default=str)
        digests: dict[Path, str] = {}
        with as_user_errors(), faults.as_user_errors():
            if spec.kind.family == "schedule":
                kind, path = "schedule", f"schedules/{entity.name}"
                if not isinstance(entity.create_job, str):
                    digests = submission.freeze(entity.create_job)
            elif spec.kind.family == "batch_endpoint":
                kind, path = "batch endpoint", f"batchEndpoints/{entity.name}"
            else:
                kind = "batch deployment"
                path = f"batchEndpoints/{entity.endpoint_name}/deployments/{entity.name}"
                digests = _freeze(entity, spec.folder)
        content = content.replace(str(repository.root(spec.file)), "")
        digest = submission.hashed([content, sorted(digests.values())])
        entity.tags = {**(entity.tags or {}), CONTENT: digest.removeprefix("sha256:")}
        uploads = (submission.upload(folder, digest) for folder, digest in digests.items())
        return _Declaration(entity, kind, path, tuple(uploads))


def ended(poller: Any, name: str, say: Callable[[str], None], every_s: float = SAY_S) -> Any:
    """Wait for a long-running operation and return its result; `say` receives the progress."""
    began = time.monotonic()
    while True:
        poller.wait(every_s)
        if poller.done():
            return poller.result()
        say(f"{name}: waiting for Azure, {time.monotonic() - began:.0f} s so far")


def _freeze(deployment: Any, folder: Path) -> dict[Path, str]:
    """Replace a batch deployment's code by its snapshot; return the digests of local files.

    They are those of the code folder and of the model, by path.
    """
    digests: dict[Path, str] = {}
    configuration = getattr(deployment, "code_configuration", None)
    if configuration is not None and configuration.code:
        code = assets.local_path(str(configuration.code), folder)
        if code is not None and (taken := snapshot.take(code.resolve())) is not None:
            digests[code.resolve()] = taken.digest
            configuration.code = str(taken.folder)
    model = getattr(getattr(deployment, "model", None), "path", None)
    if model and (path := assets.local_path(str(model), folder)) and path.exists():
        digests[path.resolve()] = assets.digest(path)
    return digests


def _no_endpoint(name: str) -> Problem:
    actual = f"no batch endpoint `{name}`"
    expected, hint = "an endpoint before its deployment", "ml run ENDPOINT.yml --on azure"
    return Problem("no-batch-endpoint", actual, expected, hint)
