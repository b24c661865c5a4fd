"""Determines the kind of an Azure ML spec: by `$schema`, else by `type` and shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of spec, such as a command job or an online endpoint."""

    family: str  # selects the loader: `job`, `component`, `data` …
    type: str = ""  # variant of the family: `command`, `sweep` …; "" if it has none

    def __str__(self) -> str:
        name = _NAMES.get(self.family, self.family.replace("_", " "))
        return f"{self.type} {name}" if self.type and self.family in _TYPED else name

    @property
    def with_article(self) -> str:
        """Return the kind with its article: `a command job`, `an online endpoint`."""
        name = str(self)
        return f"{'an' if name[0] in 'aeio' else 'a'} {name}"

    @property
    def is_job(self) -> bool:
        """Return True if `az ml job create` accepts it."""
        return self.family == "job"


_TYPED = frozenset({"job", "component", "compute", "datastore"})
# Families that have another name in messages.
_NAMES = {
    "data": "data asset",
    "model_batch_deployment": "batch deployment",
    "pipeline_component_batch_deployment": "batch deployment",
}

JOBS = frozenset(
    {"command", "sweep", "pipeline", "automl", "spark", "import", "finetuning", "distillation"}
)
# Types of inputs and outputs that are models.
MODEL_TYPES = frozenset({"custom_model", "mlflow_model", "triton_model"})
COMPONENTS = frozenset(
    {"command", "pipeline", "parallel", "spark", "import", "automl", "data_transfer", "sweep"}
)
_COMPUTES = frozenset(
    {"amlcompute", "computeinstance", "virtualmachine", "kubernetes", "synapsespark"}
)
DATASTORES = frozenset(
    {"azure_blob", "azure_file", "azure_data_lake_gen1", "azure_data_lake_gen2", "one_lake"}
)
MODELS = frozenset({"custom_model", "mlflow_model", "triton_model"})
_DATA = frozenset({"uri_file", "uri_folder", "mltable"})
_CONNECTIONS = frozenset(
    {"container_registry", "git", "python_feed", "s3", "snowflake", "custom", "api_key", "open_ai"}
    | {"serp", "serverless", "azure_blob", "azure_data_lake_gen2", "azure_one_lake"}
    | {"azure_sql_db", "azure_synapse_analytics", "azure_my_sql_db", "azure_postgres_db"}
    | {"azure_open_ai", "azure_ai_services", "azure_ai_search", "azure_content_safety"}
    | {"azure_speech_services"}
)
# Keys of a connection that tell it from other YAML with, for example, `type: git`.
_CONNECTION_KEYS = frozenset({"target", "credentials", "api_key"})

# Suffix of a schema's file name → family; the longest match wins.
_SCHEMAS = {
    family.replace("_", ""): family
    for family in (
        *("job", "component", "environment", "data", "model", "online_endpoint", "batch_endpoint"),
        *("online_deployment", "batch_deployment", "schedule", "compute", "workspace", "registry"),
        *("connection", "feature_set", "feature_store", "feature_store_entity", "index"),
        *("serverless_endpoint", "capability_host", "datastore"),
        *("marketplace_subscription", "deployment_template"),
    )
} | {
    "featuresetbackfill": "feature_set_backfill_request",
    "dataimport": "data",
    "monitor": "schedule",
    "package": "model_package",
    "azureblob": "datastore",
    "azurefile": "datastore",
    "azuredatalakegen1": "datastore",
    "azuredatalakegen2": "datastore",
    "onelake": "datastore",
    "computeinstance": "compute",
    "sparkpool": "compute",
    "hub": "workspace",
    "project": "workspace",
}
_BATCH_TYPES = {
    "model": "model_batch_deployment",
    "pipeline": "pipeline_component_batch_deployment",
}
FAMILIES = frozenset({*_SCHEMAS.values(), *_BATCH_TYPES.values()})
# Values such as `azureml:cpu-cluster` occur only in Azure ML's YAML.
_REFERENCE = re.compile(r":\s*[\"']?azureml:")
_SCHEMA_NAME = re.compile(r"([A-Za-z0-9_]+)(?:\.schema)?\.json$")


def kind_of(data: Any) -> Kind | None:
    """Return the kind of a parsed document; None if azure-ai-ml has no loader for it."""
    if not isinstance(data, dict):
        return None
    family = _family_by_schema(data.get("$schema")) or _family_by_shape(data)
    if family is None:
        return None
    default = "command" if family in {"job", "component"} else ""
    written = _type(data) or default
    # In the SDK's older schema, a model deployment has its settings at the top level.
    is_flat = written == "model" and "settings" not in data
    if family == "batch_deployment" and written in _BATCH_TYPES and not is_flat:
        family = _BATCH_TYPES[written]
    return Kind(family, written)


def _type(data: Mapping[str, Any]) -> str:
    """Return the `type` of a mapping; "" if it is not text."""
    written = data.get("type")
    return written if isinstance(written, str) else ""


def mentions_azure_ml(text: str) -> bool:
    """Return True if a text contains Azure ML's schema URL or an `azureml:` reference."""
    return "azuremlschemas" in text or _REFERENCE.search(text) is not None


def _family_by_schema(schema: Any) -> str | None:
    if not isinstance(schema, str) or "azureml" not in schema.lower():
        return None
    match = _SCHEMA_NAME.search(schema)
    if match is None:
        return None
    name = match[1].lower().replace("_", "")
    ends = [end for end in _SCHEMAS if name.endswith(end)]
    return _SCHEMAS[max(ends, key=len)] if ends else None


def _family_by_shape(data: Mapping[str, Any]) -> str | None:
    """Return the family of a document without `$schema`, from its keys and `type`; else None."""
    keys = {key for key in data if isinstance(key, str)}
    kind = _type(data)
    if "endpoint_name" in keys:
        is_batch = kind in _BATCH_TYPES or keys & _BATCH
        return "batch_deployment" if is_batch else "online_deployment"
    if kind in JOBS | COMPONENTS and keys & _WORK.get(kind, frozenset()):
        return "component" if _is_component(data, kind) else "job"
    for types, family in ((MODELS, "model"), (_DATA, "data")):
        if kind in types and "path" in keys:
            return family
    if kind in _COMPUTES and "name" in keys:
        return "compute"
    # `azure_blob` and `azure_data_lake_gen2` are types of datastores and of connections, but only a
    # connection has an address.
    has_address = kind in _CONNECTIONS and keys & {"target", "url"}
    if kind in DATASTORES | {"hdfs"} and not has_address:
        return "datastore"
    is_azure = kind.startswith("azure_")
    if kind in _CONNECTIONS and "name" in keys and (is_azure or keys & _CONNECTION_KEYS):
        return "connection"
    if "trigger" in keys and keys & {"create_job", "create_monitor", "import_data"}:
        return "schedule"
    if {"specification", "entities"} <= keys:
        return "feature_set"
    if {"index_columns", "name"} <= keys and "features" not in keys:
        return "feature_store_entity"
    defaults = data.get("defaults")
    if "name" in keys and isinstance(defaults, dict) and "deployment_name" in defaults:
        return "batch_endpoint"
    if "auth_mode" in keys and "name" in keys:
        return "serverless_endpoint" if "model_id" in keys else "online_endpoint"
    # Accept a misspelt field, so that the kind is known and the SDK reports the misspelling.
    replication = get_close_matches("replication_locations", keys, cutoff=0.8)
    if {"name", "location"} <= keys and replication:
        return "registry"
    environment = get_close_matches("environment", keys, cutoff=0.8)
    if isinstance(data.get("command"), str) and environment:
        return "component" if _is_component(data, "command") else "job"
    if "name" in keys and (keys & {"image", "build", "conda_file"}) and keys <= _ENVIRONMENT:
        return "environment"
    return None


# Type → keys of which a job or component of that type has at least one.
_WORK = {
    "command": frozenset({"command", "environment"}),
    "sweep": frozenset({"trial", "search_space", "objective"}),
    "pipeline": frozenset({"jobs", "settings", "component"}),
    "automl": frozenset({"task", "training_data"}),
    "spark": frozenset({"entry"}),
    "import": frozenset({"source"}),
    "parallel": frozenset({"task"}),
    "finetuning": frozenset({"task", "model"}),
    "distillation": frozenset({"teacher_model_endpoint_connection", "student_model"}),
    "data_transfer": frozenset({"task"}),
}
_BATCH = frozenset(
    {"mini_batch_size", "output_action", "output_file_name", "component", "job", "compute"}
    | {"settings"}
)
_ENVIRONMENT = frozenset(
    {"$schema", "name", "version", "image", "build", "conda_file", "inference_config"}
    | {"description", "tags", "os_type", "properties"}
)


def _is_component(data: Mapping[str, Any], kind: str) -> bool:
    """Return True if a document of this type is a component, not a job.

    It has a name, and a version or inputs that declare a type without a path.
    """
    if kind not in COMPONENTS or "name" not in data:
        return False
    if "version" in data or "is_deterministic" in data or kind in {"parallel", "data_transfer"}:
        return True
    inputs = data.get("inputs")
    if not isinstance(inputs, dict) or not inputs or kind == "automl":
        return False
    return all(
        isinstance(port, dict) and "type" in port and "path" not in port for port in inputs.values()
    )
