"""Loads Azure ML YAML as azure-ai-ml's entity, offline; no other module calls the SDK's loaders.

libyaml parses the file once, and the SDK receives the same data as from its slower pure Python
parser; a test compares the two on every sample spec.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from ml.core import repository
from ml.core.documents import LOADER, Document, read, strings
from ml.core.errors import Problem, UserError
from ml.specs import kinds
from ml.specs.assets import assets
from ml.specs.expressions import did_you_mean
from ml.specs.kinds import Kind
from ml.specs.sdk.errors import translate
from ml.specs.yaml_node import YamlNode

# Family → its class in azure.ai.ml.entities, if the name differs; and classes by a key of the spec.
_CLASSES = {"connection": "WorkspaceConnection", "schedule": "JobSchedule"}
_CLASSES_BY_KEY = {
    "schedule": {"create_monitor": "MonitorSchedule", "import_data": "ImportDataSchedule"},
    "data": {"source": "DataImport"},
}
# Families whose SDK classes are typed dictionaries without a marshmallow schema.
_TYPED_DICTIONARIES = frozenset({"serverless_endpoint", "marketplace_subscription"})
# azure-ai-ml 1.35 loads a pipeline component about three times per enclosing pipeline; a
# thousand loads take several seconds.
_LOADS, _MAX_LOADS, _MAX_FILES = 3, 1000, 200
_RUNS = frozenset({"component", "trial", "job", "create_job"})


@dataclass(frozen=True, kw_only=True)
class Spec(YamlNode):
    """A loaded spec; `document` is the YAML with the overrides applied."""

    kind: Kind
    entity: Any  # azure-ai-ml's object; None if azure-ai-ml rejected the spec
    problems: tuple[Problem, ...] = ()  # azure-ai-ml's messages, translated

    @cached_property
    def boundary(self) -> Path | None:
        """Return the folder that local paths must not leave; None outside a repository."""
        return repository.boundary(self.file)


def load(path: Path, overrides: Mapping[str, str] | None = None) -> Spec:
    """Load one spec; the SDK's errors are in its `problems`, which `check` and `plan` report.

    Raises UserError for a missing file, invalid or ambiguous YAML, YAML that is not an Azure ML
    spec, and an override of an unknown field.
    """
    document = read(path)
    return from_document(document, path.absolute(), overrides or {})


def from_document(document: Document, file: Path, changes: Mapping[str, str]) -> Spec:
    """Load a spec from a parsed document, with overrides; raises UserError like `load`."""
    kind = kinds.kind_of(document.data)
    if kind is None:
        raise UserError(_no_spec(document))
    if changes:
        _apply(document.data, changes)
        document = replace(document, changed=tuple(changes))
        kind = kinds.kind_of(document.data) or kind
    if (count := _count_loads(YamlNode(document, file), repository.root(file), {})) > _MAX_LOADS:
        actual = "the pipelines nested in it have too many steps for azure-ai-ml to load"
        expected = f"at most {_MAX_LOADS} steps; here {count:,}, {_LOADS} times more a level"
        hint = "nest fewer levels, or submit pipelines of their own"
        raise UserError(Problem("nested-too-deep", actual, expected, hint, document.place("jobs")))
    kind, entity, problems = _entity(kind, document, file)
    return Spec(document, file, kind=kind, entity=entity, problems=problems)


def _count_loads(node: YamlNode, root: Path, counted: dict[Path, int]) -> int:
    """Return the number of times that the SDK would load steps for a file.

    `counted` caches the result per file. A recursive reference counts 0: a rule reports it.
    """
    total, counted[node.file.resolve()] = 0, 0
    for keys, text in strings(node.document.data):
        level, key = keys.count("jobs"), keys[-1] if keys else ""
        if total > _MAX_LOADS or (key not in _RUNS and not (level and key == "command")):
            continue
        inner = assets.read_referenced(text, node.folder) or assets.find(text, "component", root)
        nested = counted.get(inner.file.resolve()) if inner else 0
        if nested is None:
            assert inner is not None
            deep = len(counted) > _MAX_FILES
            nested = _MAX_LOADS if deep else _count_loads(inner, root, counted)
        total += _LOADS ** max(0, level - 1) * (1 + _LOADS * nested)
    counted[node.file.resolve()] = total
    return total


def _entity(kind: Kind, document: Document, file: Path) -> tuple[Kind, Any, tuple[Problem, ...]]:
    """Return (kind, entity, problems); a job with a component's `$schema`, or vice versa, loads."""
    entity, problems = _load_as(kind, document, file)
    other_family = {"job": "component", "component": "job"}.get(kind.family)
    if problems and other_family and "$schema" in document.data:
        second = Kind(other_family, kind.type)
        other_entity, other_problems = _load_as(second, document, file)
        if not other_problems:
            return second, other_entity, ()
    return kind, entity, problems


def _load_as(kind: Kind, document: Document, file: Path) -> tuple[Any, tuple[Problem, ...]]:
    with quiet():
        data = document.copy()
        try:
            if kind.family in _TYPED_DICTIONARIES:
                loader = getattr(importlib.import_module("azure.ai.ml"), f"load_{kind.family}")
                return loader(StringIO(yaml.safe_dump(data))), ()
            return _entity_class(kind, data)._load(data=data, yaml_path=str(file)), ()
        except Exception as error:  # the SDK may raise any exception
            return None, translate(error, kind, document, file)


def _entity_class(kind: Kind, data: Mapping[str, Any]) -> Any:
    """Return the entity class whose `_load` accepts parsed data.

    The SDK's public loaders accept only YAML, which they would parse again with pure Python PyYAML:
    `ml check` of 100 specs would take 1.9 × the SDK's time instead of 1.4 ×.
    """
    name = _CLASSES.get(kind.family, kind.family.title().replace("_", ""))
    by_key = _CLASSES_BY_KEY.get(kind.family, {})
    name = next((by_key[key] for key in by_key if key in data), name)
    return getattr(importlib.import_module("azure.ai.ml.entities"), name)


def request(spec: Spec) -> dict[str, Any]:
    """Return the request that azure-ai-ml would send for a job, as plain data, without sending it.

    Components and environments are inline or references, as in the spec, since nothing is
    registered. `name` is None if the spec has no name.
    """
    with quiet():
        # Load a separate entity, since azure-ai-ml changes the one that it converts.
        entity = from_document(spec.document, spec.file, {}).entity
        name = entity.name
        return {**request_of(entity), "name": name}


def request_of(entity: Any) -> dict[str, Any]:
    """Return the request for a job entity of azure-ai-ml, without its name; changes the entity."""
    converters = importlib.import_module("azure.ai.ml.entities._job.to_rest_functions")
    with quiet():
        body: dict[str, Any] = _plain(converters.to_rest_job_object(entity))
    return body


def fields_of(entity: Any) -> dict[str, Any]:
    """Return the fields of azure-ai-ml's entity; its `dump` writes YAML or returns them."""
    text = StringIO()
    fields: dict[str, Any] | None = entity.dump(text)
    return yaml.load(text.getvalue(), Loader=LOADER) if fields is None else fields


def spark_sizes() -> Sequence[str]:
    """Return the VM sizes of serverless Spark in lower case, from the SDK."""
    from azure.ai.ml.entities import SparkResourceConfiguration

    return list(SparkResourceConfiguration.instance_type_list)


def time_zones() -> frozenset[str]:
    """Return the Windows names of the time zones that azure-ai-ml accepts, in lower case."""
    zones = importlib.import_module("azure.ai.ml.constants").TimeZone
    return frozenset(str(zone.value).lower() for zone in zones)


def _plain(value: Any) -> Any:
    """Convert a part of a request to mappings (without unset fields), lists and scalars."""
    if isinstance(value, dict):
        return {
            str(key): _plain(item)
            for key, item in value.items()
            if item is not None and (item or not isinstance(item, dict | list))
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for convert in ("_to_rest_object", "as_dict"):
        if hasattr(value, convert):
            return _plain(getattr(value, convert)())
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"the request has a {type(value).__name__}")
    return value


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the SDK's warnings about experimental classes; may be nested."""
    if _quiet.get():
        yield
        return
    importlib.import_module("azure.ai.ml")  # its import sets the logger's level
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
        "commandJob.schema.json` (or another schema)",
        document.place(),
    )


# Overrides: `--set` with dotted paths into a spec, as in `az ml job create --set`.
# Mappings of a job to which --set may add keys, and top-level fields that it may add.
_OPEN = frozenset(
    {"inputs", "environment_variables", "tags", "properties", "limits", "resources"}
    | {"sampling_algorithm"}
)
_FIELDS = frozenset(
    {"compute", "experiment_name", "display_name", "description", "name"}
    | {"environment", "command", "code"}
)
_OF_SWEEPS = frozenset({"sampling_algorithm"})
_OF_COMMANDS = _OF_SWEEPS | {
    *("environment", "command", "code", "environment_variables", "resources"),
}
# Fields that messages do not suggest to override.
_FIXED = frozenset({"$schema", "type", "version"})


def _apply(data: dict[str, Any], overrides: Mapping[str, str]) -> None:
    """Apply overrides to `data` in place; raise UserError with every target that does not exist.

    Values are parsed as YAML scalars (`0.1` is a number, `"0.1"` text), but stay text if the spec
    has text. `inputs.x` and `outputs.x` set the `path` of data or the value of a literal. A local
    path is relative to the working directory.
    """
    problems = []
    for target, text in overrides.items():
        keys = target.split(".")
        problem = _set(data, keys, text, target)
        if problem:
            problems.append(problem)
    if problems:
        raise UserError(*problems)


def _scalar(text: str) -> Any:
    try:
        return yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError):
        return text


def _set(data: dict[str, Any], keys: list[str], text: str, target: str) -> Problem | None:
    value = _scalar(text)
    parent: Any = data
    for depth, key in enumerate(keys[:-1]):
        child = parent.get(key)
        if child is None and depth == 0 and key in _OPEN:
            child = parent[key] = {}
        if isinstance(child, str) and depth == 0 and key == "sampling_algorithm":
            child = parent[key] = {"type": child}  # expand the short form
        if not isinstance(child, dict):
            return _unknown_target(keys[: depth + 1], parent, target)
        parent = child
    last = keys[-1]
    current = parent.get(last)
    data_port = keys[0] in {"inputs", "outputs"} and len(keys) == 2
    if data_port and isinstance(current, dict):
        parent, last, current = current, "path", current.get("path")
    elif last not in parent and not _may_add(keys):
        return _unknown_target(keys, parent, target)
    if last == "path" and isinstance(value, str):
        value = _typed_path(value)
    if isinstance(current, dict) and not isinstance(value, dict):
        message, field_names = f"`{target}` is a mapping, not a value", ", ".join(map(str, current))
        return Problem("bad-override", message, f"one of its fields: {field_names}")
    # The type of a placeholder's value is unknown.
    is_text = isinstance(current, str) and "${{" not in current
    is_scalar = not isinstance(value, str | dict | list | None)
    parent[last] = text if is_text and is_scalar else value
    return None


def _may_add(keys: list[str]) -> bool:
    if keys[0] == "inputs":
        return len(keys) > 2
    return keys[0] in _OPEN or (len(keys) == 1 and keys[0] in _FIELDS) or len(keys) > 2


def _typed_path(text: str) -> str:
    if assets.local_path(text, Path.cwd()) is None:
        return text
    return str(Path(text.removeprefix("file://").removeprefix("file:")).expanduser().resolve())


def _unknown_target(keys: list[str], parent: dict[str, Any], target: str) -> Problem:
    field_names = [str(key) for key in parent if key not in _FIXED]
    if len(keys) == 1:
        is_command = not {"jobs", "trial"} & parent.keys()
        field_names += sorted((_OPEN | _FIELDS) - (_OF_SWEEPS if is_command else _OF_COMMANDS))
    prefix = "".join(f"{key}." for key in keys[:-1])
    names = ", ".join(prefix + key for key in dict.fromkeys(field_names))
    return Problem(
        "bad-override",
        f"--set {target}: the spec has no `{'.'.join(keys)}`",
        f"one of {names}" if names else f"no --set of `{keys[0]}`: the spec has none",
        did_you_mean(keys[-1], field_names, prefix + "{}"),
    )
