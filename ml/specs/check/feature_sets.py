"""Feature sets: what azure-ai-ml loads and neither a job nor Azure could use.

azure-ai-ml 1.35 loads a feature set whose specification is not there; azureml-featurestore, which
reads FeatureSetSpec.yaml, cannot be installed beside it. `ml.features.definition` reads the same
files on the node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ml.core import documents, repository
from ml.core.documents import Key
from ml.core.errors import Problem, Refused, nearest
from ml.specs import kinds
from ml.specs.assets import assets
from ml.specs.parts import Part

SPEC = "FeatureSetSpec.yaml"
_SOURCE = "the schema FeatureSetSpec.json of Azure ML's managed feature store"
# Field → whether it is required.
_FIELDS = {
    "$schema": False,
    "source": True,
    "feature_transformation_code": True,
    "features": True,
    "index_columns": True,
    "source_lookback": False,
    "temporal_join_lookback": False,
}
_SOURCE_FIELDS = {"type": True, "path": True, "timestamp_column": True, "source_delay": False}
_TYPES = ("string", "integer", "long", "float", "double", "binary", "datetime", "boolean")
_SOURCES = ("parquet", "csv")
_CLOUD = re.compile(r"(?:abfss?|wasbs?)://[^/\s@]+@[^/\s]+/\S+|azureml://\S+")
_CLASS = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(?P<name>[A-Za-z_]\w*)", re.A)
_LENGTH = ("days", "hours", "minutes")
_LONGEST = 100_000  # of each, far below what a duration can hold
# What names a folder of the store: ml.features.definition reads the same.
_NAMES = {
    "name": re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", re.ASCII),
    "version": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}", re.ASCII),
}
# A column of transformed rows, and the tags that a set may have here.
_ARRIVAL, _TAGS = "arrival", ("arrival_column", "local_source")


def feature_set_problems(path: Path) -> list[Problem]:
    """The problems of a feature set's file and of its FeatureSetSpec.yaml; none of another file."""
    try:
        feature_set = Part(documents.read(path), path)
    except Refused:
        return []  # the check of specs reports it
    kind = kinds.kind_of(feature_set.get())
    if kind is None or kind.family != "feature_set":
        return []
    folder = _inside(feature_set, path.parent, "specification", "path")
    if isinstance(folder, Problem):
        return [folder]
    file = folder / SPEC
    if not file.is_file():
        place = feature_set.place("specification", "path")
        shown = repository.shown(file)
        hint = "write it, or correct `specification.path`"
        return [Problem("missing-file", f"{shown} does not exist", "a FeatureSetSpec", hint, place)]
    try:
        spec = Part(documents.read(file), file)
    except Refused as refused:
        return list(refused.problems)
    if not isinstance(spec.get(), dict):
        found = f"{repository.shown(file)} has no fields"
        return [Problem("invalid-feature-set", found, "a mapping", place=spec.place())]
    return [
        *_tags(feature_set),
        *_fields(spec, _FIELDS),
        *_source(spec),
        *_columns(spec),
        *_entities(feature_set, spec),
        *_transformation(spec),
        *(
            wrong
            for name in ("source_lookback", "temporal_join_lookback")
            for wrong in _length(spec, name)
        ),
    ]


def specification_problems(path: Path) -> list[Problem]:
    """The problems of a FeatureSetSpec.yaml and of each feature set in the folder above it."""
    problems, is_named = [], False
    for file in sorted(path.parent.parent.glob("*.y*ml")):
        with suppress(Refused, OSError):  # another check reports it
            folder = Part(documents.read(file), file).get("specification", "path")
            if isinstance(folder, str) and path.parent.samefile(file.parent / folder):
                problems += feature_set_problems(file)
                is_named = True
    if is_named:
        return problems
    spec = Part(documents.read(path), path)
    return [_wrong(spec, (), "`specification.path` of one", "no feature set names this folder")]


def _wrong(part: Part, keys: Sequence[Key], expected: str, found: str = "") -> Problem:
    name = ".".join(map(str, keys))
    found = found or f"`{name}` is {part.get(*keys)!r}"
    return Problem("invalid-feature-set", found, expected, place=part.place(*keys), source=_SOURCE)


def _fields(part: Part, known: Mapping[str, bool], *keys: Key) -> Iterator[Problem]:
    fields = part.mapping(*keys)
    for name in fields:
        if name not in known:
            found = f"unknown field `{name}`"
            yield _wrong(part, (*keys, name), f"one of {', '.join(known)}", found)
    for name, is_required in known.items():
        if is_required and name not in fields:
            yield _wrong(
                part, keys, f"`{name}`", f"`{'.'.join(map(str, (*keys, name)))}` is missing"
            )


def _inside(part: Part, folder: Path, *keys: Key) -> Path | Problem:
    """The path at the keys, which may not leave the repository."""
    written = part.get(*keys)
    if not isinstance(written, str) or not written:
        return _wrong(part, keys, "a relative path")
    root, path = repository.root(part.file).resolve(), (folder / written).resolve()
    if Path(written).is_absolute() or not path.is_relative_to(root):
        return _wrong(part, keys, "a relative path inside the repository")
    return folder / written


def _tags(feature_set: Part) -> Iterator[Problem]:
    for name, form in _NAMES.items():
        if not form.fullmatch(str(feature_set.get(name))):
            yield _wrong(feature_set, (name,), f"letters, digits, - and _: {form.pattern}")
    interval = feature_set.get("materialization_settings", "schedule", "interval")
    if isinstance(interval, int) and interval < 1:
        keys = ("materialization_settings", "schedule", "interval")
        yield _wrong(feature_set, keys, "1 or more")
    tags = feature_set.mapping("tags")
    for name in tags:
        if name not in _TAGS and (close := nearest(str(name), _TAGS)):
            found = f"the tag `{name}` is close to `{close[0]}`, and would be ignored"
            yield _wrong(feature_set, ("tags", name), f"`{close[0]}`, or a name unlike it", found)
    if "arrival_column" in tags and not _is_text(tags["arrival_column"]):
        yield _wrong(feature_set, ("tags", "arrival_column"), "the name of a column")
    if "local_source" in tags:
        path = _inside(feature_set, feature_set.folder, "tags", "local_source")
        if isinstance(path, Problem):
            yield path
        elif not path.exists():
            expected = "a file or folder beside it"
            yield _wrong(feature_set, ("tags", "local_source"), expected)


def _source(spec: Part) -> Iterator[Problem]:
    yield from _fields(spec, _SOURCE_FIELDS, "source")
    source = spec.mapping("source")
    if "type" in source and source["type"] not in _SOURCES:
        yield _wrong(spec, ("source", "type"), " or ".join(_SOURCES))
    written = source.get("path")
    is_cloud = (
        isinstance(written, str) and _CLOUD.fullmatch(written) and "/../" not in f"{written}/"
    )
    if "path" in source and not is_cloud:
        expected = "a cloud path such as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"
        yield _wrong(spec, ("source", "path"), expected)
    if "timestamp_column" in source and not _is_text(_timestamp(spec)):
        yield _wrong(spec, ("source", "timestamp_column"), "`name`, the column of the event time")
    elif "timestamp_column" in source:
        yield from _fields(spec, {"name": True, "format": False}, "source", "timestamp_column")
    if "source_delay" in source:
        yield from _length(spec, "source", "source_delay")


def _timestamp(spec: Part) -> Any:
    return spec.get("source", "timestamp_column", "name")


def _columns(spec: Part) -> Iterator[Problem]:
    seen: set[str] = {_ARRIVAL, *([_timestamp(spec)] if _is_text(_timestamp(spec)) else [])}
    for field in ("index_columns", "features"):
        columns = spec.get(field)
        if field not in spec.mapping():
            continue
        if not isinstance(columns, list) or not columns:
            yield _wrong(spec, (field,), "a list of columns, each with `name` and `type`")
            continue
        for index, column in enumerate(columns):
            name = column.get("name") if isinstance(column, dict) else None
            if not _is_text(name):
                yield _wrong(spec, (field, index), "a column with `name` and `type`")
            elif name in seen:
                found = f"two columns are called `{name}`"
                expected = f"another name than a key, the event time, `{_ARRIVAL}` or a feature"
                yield _wrong(spec, (field, index, "name"), expected, found)
            elif column.get("type") not in _TYPES:
                yield _wrong(spec, (field, index, "type"), f"one of {', '.join(_TYPES)}")
            seen |= {name} if isinstance(name, str) else set()


def _entities(feature_set: Part, spec: Part) -> Iterator[Problem]:
    """The entities exist, and their columns are the specification's."""
    entities = feature_set.get("entities")
    expected: dict[str, str] = {}
    for index, written in enumerate(entities if isinstance(entities, list) else []):
        columns = _entity(str(written), repository.root(feature_set.file))
        if columns is None:
            hint = "correct its name or version, or write the entity's file"
            place = feature_set.place("entities", index)
            found = f"no entity `{written}` in ml/projects/*/features"
            yield Problem("missing-entity", found, "azureml:NAME:VERSION", hint, place)
            return
        expected |= columns
    columns = spec.get("index_columns")
    actual = {
        str(column.get("name")): str(column.get("type"))
        for column in (columns if isinstance(columns, list) else [])
        if isinstance(column, dict)
    }
    if columns and actual != expected:
        keys = ", ".join(f"{name} ({kind})" for name, kind in expected.items())
        found = ", ".join(f"{name} ({kind})" for name, kind in actual.items())
        yield _wrong(
            spec, ("index_columns",), f"those of its entities: {keys}", f"the keys are {found}"
        )


def _entity(written: str, root: Path) -> dict[str, str] | None:
    """The columns of the entity that `azureml:NAME:VERSION` names; None without one."""
    reference = assets.parse(written)
    is_exact = reference is not None and reference.version != ""
    entity = assets.find(written, "feature_store_entity", root) if is_exact else None
    columns = entity.get("index_columns") if entity else None
    if not isinstance(columns, list):
        return None
    return {
        str(column.get("name")): str(column.get("type"))
        for column in columns
        if isinstance(column, dict)
    }


def _transformation(spec: Part) -> Iterator[Problem]:
    """The class exists, as the source says: nothing is imported."""
    code = "feature_transformation_code"
    if code not in spec.mapping():
        return
    yield from _fields(spec, {"path": True, "transformer_class": True}, code)
    folder = _inside(spec, spec.folder, code, "path")
    if isinstance(folder, Problem):
        yield folder
        return
    written = spec.get(code, "transformer_class")
    match = _CLASS.fullmatch(written) if _is_text(written) else None
    if match is None:
        yield _wrong(spec, (code, "transformer_class"), "MODULE.CLASS")
        return
    file = folder / f"{match['module'].replace('.', '/')}.py"
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        found = f"{repository.shown(file)} cannot be read: {type(error).__name__}"
        yield _wrong(spec, (code, "transformer_class"), "a Python module", found)
        return
    if not _transforms(body, match["name"]):
        found = f"{repository.shown(file)} has no class `{match['name']}` with a method `transform`"
        yield _wrong(spec, (code, "transformer_class"), "def transform(self, rows)", found)


def _transforms(body: Sequence[ast.stmt], name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether the class has a method `transform`, or may inherit one from another module."""
    classes = [item for item in body if isinstance(item, ast.ClassDef) and item.name == name]
    if not classes or name in seen:
        return bool({name} & {*_imported(body)})
    methods = {item.name for item in classes[-1].body if isinstance(item, ast.FunctionDef)}
    return "transform" in methods or any(
        not isinstance(base, ast.Name) or _transforms(body, base.id, seen | {name})
        for base in classes[-1].bases
    )


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    for item in body:
        if isinstance(item, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in item.names)


def _length(spec: Part, *keys: Key) -> Iterator[Problem]:
    length = spec.get(*keys)
    if length is None:
        return
    if not isinstance(length, dict) or not all(
        name in _LENGTH and type(number) is int and 0 <= number <= _LONGEST
        for name, number in length.items()
    ):
        yield _wrong(spec, keys, f"whole numbers from 0 to {_LONGEST} of days, hours and minutes")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
