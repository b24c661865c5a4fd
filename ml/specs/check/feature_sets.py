"""Feature sets: what azure-ai-ml loads and neither a job nor Azure could use.

azure-ai-ml 1.35 loads a feature set whose specification is not there; azureml-featurestore, which
reads FeatureSetSpec.yaml, cannot be installed beside it. `ml.features.definition` reads the same
files on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from ml.core import documents, repository
from ml.core.documents import Key
from ml.core.errors import Place, Problem, Refused, nearest
from ml.features.definition import ARRIVAL, CLASS, NAME, TYPES, VERSION
from ml.features.timeline import LONGEST, SHORTEST
from ml.specs import kinds
from ml.specs.assets import assets
from ml.specs.check.transformations import WINDOW_TYPES, Code, Value
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
_SOURCES = ("parquet", "csv")
_CLOUD = re.compile(r"(?:abfss?|wasbs?)://[^/\s@]+@[^/\s]+/\S+|azureml://\S+")
_LENGTH = ("days", "hours", "minutes")
_LONGEST = 100_000  # of each, far below what a duration can hold
_NAMES = {"name": NAME, "version": VERSION}
_TAGS = ("arrival_column", "local_source")  # those that a set may have here


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
        label = repository.shown(file)
        hint = "write it, or correct `specification.path`"
        return [Problem("missing-file", f"{label} does not exist", "a FeatureSetSpec", hint, place)]
    try:
        spec = Part(documents.read(file), file)
    except Refused as refused:
        return list(refused.problems)
    if not isinstance(spec.get(), dict):
        actual = f"{repository.shown(file)} has no fields"
        return [Problem("invalid-feature-set", actual, "a mapping", place=spec.place())]
    columns, wrong_columns = _local_source(feature_set, spec)
    return [
        *_tags(feature_set),
        *_fields(spec, _FIELDS),
        *_source(spec),
        *_columns(spec),
        *_entities(feature_set, spec),
        *wrong_columns,
        *_transformation(feature_set, spec, columns),
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


def _wrong(part: Part, keys: Sequence[Key], expected: str, actual: str = "") -> Problem:
    name = ".".join(map(str, keys))
    actual = actual or f"`{name}` is {part.get(*keys)!r}"
    return Problem("invalid-feature-set", actual, expected, place=part.place(*keys), source=_SOURCE)


def _fields(part: Part, schema: Mapping[str, bool], *keys: Key) -> Iterator[Problem]:
    fields = part.mapping(*keys)
    for name in fields:
        if name not in schema:
            actual = f"unknown field `{name}`"
            yield _wrong(part, (*keys, name), f"one of {', '.join(schema)}", actual)
    for name, is_required in schema.items():
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
    for name in ("tags", "materialization_settings"):
        if not isinstance(feature_set.get(name) or {}, dict):
            yield _wrong(feature_set, (name,), "a mapping")
    tags = feature_set.mapping("tags")
    for name in tags:
        if name not in _TAGS and (close := nearest(str(name), _TAGS)):
            actual = f"the tag `{name}` is close to `{close[0]}`, and would be ignored"
            yield _wrong(feature_set, ("tags", name), f"`{close[0]}`, or a name unlike it", actual)
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
    seen: set[str] = {ARRIVAL, *([_timestamp(spec)] if _is_text(_timestamp(spec)) else [])}
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
                actual = f"two columns are called `{name}`"
                expected = f"another name than a key, the event time, `{ARRIVAL}` or a feature"
                yield _wrong(spec, (field, index, "name"), expected, actual)
            elif str(column.get("type")) not in TYPES:
                yield _wrong(spec, (field, index, "type"), f"one of {', '.join(TYPES)}")
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
            message = f"no entity `{written}` in ml/projects/*/features"
            yield Problem("missing-entity", message, "azureml:NAME:VERSION", hint, place)
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
        stated = ", ".join(f"{name} ({kind})" for name, kind in actual.items())
        yield _wrong(
            spec, ("index_columns",), f"those of its entities: {keys}", f"the keys are {stated}"
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


def _transformation(feature_set: Part, spec: Part, columns: Mapping[str, str]) -> Iterator[Problem]:
    """The class exists, and computes the features; `columns` are those of the local source."""
    code = "feature_transformation_code"
    if code not in spec.mapping():
        return
    yield from _fields(spec, {"path": True, "transformer_class": True}, code)
    folder = _inside(spec, spec.folder, code, "path")
    if isinstance(folder, Problem):
        yield folder
        return
    written = spec.get(code, "transformer_class")
    if not _is_text(written) or not CLASS.fullmatch(written):
        yield _wrong(spec, (code, "transformer_class"), "MODULE.CLASS")
        return
    module, _, name = written.rpartition(".")
    file = folder / f"{module.replace('.', '/')}.py"
    label = repository.shown(file)
    try:
        source = Code(file)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        actual = f"{label} cannot be read: {type(error).__name__}"
        yield _wrong(spec, (code, "transformer_class"), "a Python module", actual)
        return
    if not source.transforms(name):
        actual = f"{label} has no class `{name}` with a method `transform`"
        yield _wrong(spec, (code, "transformer_class"), "def transform(self, rows)", actual)
    features = spec.get("features")
    kinds_of_features = {
        str(column.get("name")): (index, str(column.get("type")))
        for index, column in enumerate(features if isinstance(features, list) else [])
        if isinstance(column, dict)
    }
    for feature, (index, _) in kinds_of_features.items():
        if columns and feature not in columns and not source.may_compute(feature):
            actual = f"{label} does not compute `{feature}`"
            yield _wrong(spec, ("features", index, "name"), "a column of `transform`", actual)
    limit = _timedelta(spec.get("source_lookback"))
    for line, window in source.calls("Window", ("name", "function", "length", "column"), {}):
        name, length = str(window.get("name")), window.get("length")
        if isinstance(length, timedelta) and (expected := _wrong_length(length, limit)):
            actual = f"the window `{name}` is of {length}"
            yield Problem("invalid-feature-set", actual, expected, place=Place(label, line))
        index, kind = kinds_of_features.get(name, (0, ""))
        computed = WINDOW_TYPES.get(str(window.get("function")))
        if computed and kind in TYPES and kind != computed:
            actual = f"`{name}` is `{kind}`; the window `{window['function']}` is {computed}"
            yield _wrong(spec, ("features", index, "type"), f"`{computed}`", actual)
    yield from _timelines(feature_set, spec, source, label)


def _wrong_length(length: timedelta, limit: timedelta | None) -> str:
    """Return what is expected of a window's length, if it is wrong."""
    if not SHORTEST <= length <= LONGEST:
        return "1 hour to 90 days"
    return f"at most `source_lookback`, {limit}" if limit is not None and length > limit else ""


def _timelines(feature_set: Part, spec: Part, source: Code, label: str) -> Iterator[Problem]:
    """The code reads event, arrival and delay as the YAML states them.

    Windows by another arrival would contain rows that had not arrived yet.
    """
    stated: dict[str, Value] = {
        "event": _timestamp(spec),
        "arrival": feature_set.get("tags", "arrival_column"),
        "delay": _timedelta(spec.get("source", "source_delay")),
    }
    defaults: dict[str, Value] = {"arrival": None, "delay": timedelta(0)}
    for line, timeline in source.calls("Timeline", (*stated,), defaults):
        for field, value in stated.items():
            actual = timeline.get(field, value)
            is_stated = actual == value or (field, value) == ("delay", None)
            if not is_stated and isinstance(actual, str | timedelta | None):
                message = f"the {field} of `Timeline` is {actual}"
                expected = f"{value}, as the feature set states"
                yield Problem("invalid-feature-set", message, expected, place=Place(label, line))


def _local_source(feature_set: Part, spec: Part) -> tuple[dict[str, str], list[Problem]]:
    """The columns of all files of the local source, with their types, and what is wrong with them.

    A column of a CSV file has no type here ("").
    """
    root = repository.root(feature_set.file).resolve()
    path = _inside(feature_set, feature_set.folder, "tags", "local_source")
    if isinstance(path, Problem):
        return {}, []
    needed: list[tuple[Part, tuple[Key, ...], str]] = [
        (spec, ("source", "timestamp_column", "name"), "datetime")
    ]
    if "arrival_column" in feature_set.mapping("tags"):
        needed.append((feature_set, ("tags", "arrival_column"), "datetime"))
    keys = spec.get("index_columns")
    for index in range(len(keys) if isinstance(keys, list) else 0):
        kind = spec.get("index_columns", index, "type")
        needed.append((spec, ("index_columns", index, "name"), str(kind)))
    problems: dict[Sequence[Key], Problem] = {}
    columns: dict[str, str] = {}
    path = path.resolve()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.suffix not in (".parquet", ".csv") or not file.resolve().is_relative_to(root):
            continue
        label = repository.shown(file)
        try:
            columns = columns_of(file)
        except (OSError, ValueError) as error:
            actual = f"{label} cannot be read: {' '.join(str(error).split())}"
            tag = ("tags", "local_source")
            problems.setdefault(tag, _wrong(feature_set, tag, "Parquet or CSV files", actual))
            continue
        for part, where, kind in needed:
            name = part.get(*where)
            if not _is_text(name) or where in problems:
                continue
            if name not in columns:
                actual = f"{label} has no column `{name}`"
                problems[where] = _wrong(part, where, f"one of {', '.join(columns)}", actual)
            elif columns[name] and not _is_kind(columns[name], kind):
                expected = "a datetime with a time zone" if kind == "datetime" else kind
                actual = f"`{name}` of {label} is {columns[name]}"
                problems[where] = _wrong(part, where, expected, actual)
    return columns, [*problems.values()]


def columns_of(file: Path) -> dict[str, str]:
    """Return the type of each column of a Parquet file, as polars prints it; "" of a CSV file.

    Raises OSError or ValueError for a file that cannot be read.
    """
    import polars as pl  # takes half a second

    try:
        if file.suffix == ".csv":
            return dict.fromkeys(pl.scan_csv(file, infer_schema=False).collect_schema(), "")
        return {name: str(kind) for name, kind in pl.read_parquet_schema(file).items()}
    # polars panics over some corrupt Parquet files.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(str(error)) from error


def _is_kind(actual: str, kind: str) -> bool:
    if kind == "datetime":
        return actual.startswith("Datetime(") and "time_zone=None" not in actual
    return kind not in TYPES or actual == TYPES[kind]


def _timedelta(length: object) -> timedelta | None:
    """Return a length that may be absent, which is zero; None of a malformed one."""
    with suppress(TypeError, OverflowError):
        return timedelta(**(length or {}))  # type: ignore[arg-type]
    return None


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
