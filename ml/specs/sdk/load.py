"""Azure ML YAML → azure-ai-ml's own entity, offline. The one place that calls the SDK's loaders.

The file is composed once, with libyaml, and the SDK receives the same data as from its own (pure
Python) reader; a test compares the two on every sample spec.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Document, read
from ml.core.errors import Place, Problem, Refused
from ml.specs.check import kinds
from ml.specs.check.kinds import Kind
from ml.specs.plan import overrides
from ml.specs.sdk.errors import translate

# family → (module under azure.ai.ml.entities, class): what `load_job`, `load_component` … pass to
# the SDK's `load_common`.
_ENTITIES = {
    "job": "_job.job:Job",
    "component": "_component.component:Component",
    "environment": "_assets.environment:Environment",
    "data": "_assets._artifacts.data:Data",
    "model": "_assets._artifacts.model:Model",
    "index": "_assets._artifacts.index:Index",
    "online_endpoint": "_endpoint.online_endpoint:OnlineEndpoint",
    "batch_endpoint": "_endpoint.batch_endpoint:BatchEndpoint",
    "online_deployment": "_deployment.online_deployment:OnlineDeployment",
    "batch_deployment": "_deployment.batch_deployment:BatchDeployment",
    "model_batch_deployment": "_deployment.model_batch_deployment:ModelBatchDeployment",
    "pipeline_component_batch_deployment": (
        "_deployment.pipeline_component_batch_deployment:PipelineComponentBatchDeployment"
    ),
    "deployment_template": "_deployment.deployment_template:DeploymentTemplate",
    "schedule": "_schedule.schedule:Schedule",
    "datastore": "_datastore.datastore:Datastore",
    "compute": "_compute.compute:Compute",
    "workspace": "_workspace.workspace:Workspace",
    "connection": "_workspace.connections.workspace_connection:WorkspaceConnection",
    "capability_host": "_workspace._ai_workspaces.capability_host:CapabilityHost",
    "registry": "_registry.registry:Registry",
    "feature_set": "_assets._artifacts.feature_set:FeatureSet",
    "feature_set_backfill": "_feature_set.feature_set_backfill_request:FeatureSetBackfillRequest",
    "feature_store": "_feature_store.feature_store:FeatureStore",
    "feature_store_entity": "_feature_store_entity.feature_store_entity:FeatureStoreEntity",
    "model_package": "_assets._artifacts._package.model_package:ModelPackage",
    "serverless_endpoint": "_autogen_entities.models:ServerlessEndpoint",
    "marketplace_subscription": "_autogen_entities.models:MarketplaceSubscription",
}
# These two are typed dictionaries, not schemas: `load_from_autogen_entity` only constructs them.
_TYPED_DICTIONARIES = frozenset({"serverless_endpoint", "marketplace_subscription"})


@dataclass(frozen=True)
class Spec:
    """A loaded spec: the SDK's entity (None when the SDK refused it) and the document.

    `problems` are the SDK's messages, translated; `document.data` is the YAML with the overrides
    applied. `boundary` is the folder that its paths may not leave; None when it is unknown.
    """

    file: Path
    kind: Kind
    document: Document
    entity: Any
    problems: tuple[Problem, ...] = ()
    boundary: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of relative paths in the spec."""
        return self.file.parent

    def place(self, *keys: str | int) -> Place:
        """The line of a field."""
        return self.document.place(*keys)

    def get(self, *keys: str | int) -> Any:
        """A field as it is written (or overridden)."""
        return self.document.get(*keys)


def load(path: Path, overrides: Mapping[str, str] | None = None) -> Spec:
    """Load one spec. `problems` has what the SDK refuses; `check` and `plan` report it.

    Raises Refused when nothing can be loaded: no such file, unreadable or ambiguous YAML, not an
    Azure ML spec, an override of an unknown field.
    """
    document = read(path, repository.shown(path))
    return from_document(document, path.absolute(), overrides or {})


def from_document(document: Document, file: Path, changes: Mapping[str, str]) -> Spec:
    """Load a composed document; as `load`."""
    kind = kinds.kind_of(document.data)
    if kind is None:
        raise Refused(_no_spec(document))
    if changes:
        overrides.apply(document.data, changes)
        document = replace(document, changed=tuple(changes))
        kind = kinds.kind_of(document.data) or kind
    kind, entity, problems = _entity(kind, document, file)
    return Spec(file, kind, document, entity, problems, repository.boundary(file))


def _entity(kind: Kind, document: Document, file: Path) -> tuple[Kind, Any, tuple[Problem, ...]]:
    """The entity, or the problems; a `$schema` of the wrong family is corrected."""
    entity, problems = _load_as(kind, document, file)
    other = {"job": "component", "component": "job"}.get(kind.family)
    if problems and other and "$schema" in document.data:
        second = Kind(other, kind.type)
        other_entity, other_problems = _load_as(second, document, file)
        if not other_problems:
            return second, other_entity, ()
    return kind, entity, problems


def _load_as(kind: Kind, document: Document, file: Path) -> tuple[Any, tuple[Problem, ...]]:
    module, _, name = _ENTITIES[kind.family].partition(":")
    with quiet():
        base = getattr(importlib.import_module(f"azure.ai.ml.entities.{module}"), name)
        data = document.copy()
        try:
            if kind.family in _TYPED_DICTIONARIES:
                entity = base(data)
                entity._validate()
                return entity, ()
            # As `azure.ai.ml.entities._load_functions.load_common` does once it has read the file.
            entity_class, _ = base._resolve_cls_and_type(data=data, params_override=[])
            return entity_class._load(data=data, yaml_path=str(file), params_override=[]), ()
        except Exception as error:  # the SDK raises what its fields raise: anything
            return None, translate(error, kind, document, file)


def stays_behind(file: Path, code: Path) -> bool:
    """Whether azure-ai-ml leaves a file of `code:` out (`.amlignore` in it, else `.gitignore`)."""
    ignoring = importlib.import_module("azure.ai.ml._utils._asset_utils")
    return bool(ignoring.get_ignore_file(code).is_file_excluded(file))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the SDK's warnings of experimental classes; use it once around many loads."""
    if _quiet.get():
        yield
        return
    importlib.import_module("azure.ai.ml")  # it sets its logger's level when it is imported
    logger = logging.getLogger("azure.ai.ml")
    level, token = logger.level, _quiet.set(True)
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        _quiet.reset(token)


_quiet = ContextVar("quiet", default=False)


def _no_spec(document: Document) -> Problem:
    message = "no Azure ML spec"
    if isinstance(document.data, dict):
        schema = document.data.get("$schema")
        keys = ", ".join(str(key) for key in list(document.data)[:5])
        message = f"`$schema: {schema}`" if schema else f"a mapping of {keys or 'nothing'}"
    elif document.data is not None:
        message = f"a {type(document.data).__name__}, not a mapping"
    return Problem(
        "not-a-spec",
        message,
        "an Azure ML v2 spec: a job, component, environment, data asset, endpoint …",
        "start the file with `$schema: https://azuremlschemas.azureedge.net/latest/"
        "commandJob.schema.json` (or the schema of what it is)",
        document.place(),
    )
