"""Checks feature sets for errors that azure-ai-ml accepts and that would fail in a job or in Azure.

azure-ai-ml 1.35 loads a feature set without its specification; azureml-featurestore, which
reads FeatureSetSpec.yaml, cannot be installed beside it. `ml.features.definition` reads the same
files on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from ml.core import documents, repository, settings
from ml.core.documents import Key
from ml.core.errors import Place, Problem, UserError, nearest
from ml.core.settings import CLOSED
from ml.features.definition import ARRIVAL, CLASS, NAME, TYPES, VERSION
from ml.features.timeline import LONGEST, SHORTEST
from ml.specs import kinds
from ml.specs.assets import assets
from ml.specs.check.transformations import WINDOW_TYPES, Code, Value
from ml.specs.yaml_node import YamlNode

SPEC = "FeatureSetSpec.yaml"
_SOURCE = "the schema FeatureSetSpec.json of Azure ML's managed feature store"
_CLOUD = re.compile(
    r"(?!.*/\.\.(?:/|$))(?:(?:abfss?|wasbs?)://[^/\s@]+@[^/\s]+/\S+|azureml://\S+)", re.DOTALL
)
_NAMES = {"name": NAME, "version": VERSION}
_TAGS = ("arrival_column", "local_source")  # the tags that have a meaning in this repository


def _form(form: re.Pattern[str], expected: str) -> AfterValidator:
    """Return a validator of texts that must match a regular expression."""

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise settings.invalid(expected)
        return text

    return AfterValidator(check)


_Text = Annotated[str, _form(re.compile(r".*\S.*", re.DOTALL), "a text that is not empty")]
_Whole = Annotated[int, Field(ge=0, le=100_000)]  # far below timedelta's maximum


@dataclass(frozen=True)
class _Length:
    __pydantic_config__ = CLOSED

    days: _Whole = 0
    hours: _Whole = 0
    minutes: _Whole = 0


@dataclass(frozen=True)
class _Timestamp:
    __pydantic_config__ = CLOSED

    name: _Text
    format: str | None = None


@dataclass(frozen=True)
class _Source:
    __pydantic_config__ = CLOSED

    type: Literal["parquet", "csv"]
    path: Annotated[str, _form(_CLOUD, "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")]
    timestamp_column: _Timestamp
    source_delay: _Length | None = None


@dataclass(frozen=True)
class _Code:
    __pydantic_config__ = CLOSED

    path: str
    transformer_class: Annotated[str, _form(CLASS, "MODULE.CLASS")]


@dataclass(frozen=True)
class _Column:
    __pydantic_config__ = ConfigDict(extra="ignore")

    name: _Text
    type: Literal[*TYPES]  # type: ignore[valid-type]


_Columns = Annotated[tuple[_Column, ...], Field(min_length=1)]


@dataclass(frozen=True)
class _Spec:
    """The schema of FeatureSetSpec.yaml."""

    __pydantic_config__ = CLOSED

    source: _Source
    feature_transformation_code: _Code
    features: _Columns
    index_columns: _Columns
    source_lookback: _Length | None = None
    temporal_join_lookback: _Length | None = None
    schema_url: Annotated[str, Field(alias="$schema")] = ""


def feature_set_problems(path: Path) -> list[Problem]:
    """Return the problems of a feature set and its FeatureSetSpec.yaml; [] for other files."""
    try:
        feature_set = YamlNode(documents.read(path), path)
    except UserError:
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
        spec = YamlNode(documents.read(file), file)
        read = settings.read(_Spec, spec.document)
    except UserError as refused:
        return [*_tags(feature_set), *refused.problems]
    columns, wrong_columns = _local_source(feature_set, spec, read)
    return [
        *_tags(feature_set),
        *_repeated(spec, read),
        *_entities(feature_set, spec, read),
        *wrong_columns,
        *_transformation(feature_set, spec, read, columns),
    ]


def specification_problems(path: Path) -> list[Problem]:
    """Return the problems of the feature sets that reference a FeatureSetSpec.yaml.

    Feature sets are searched in the parent folder; it is a problem if none references the file.
    """
    problems, is_named = [], False
    for file in sorted(path.parent.parent.glob("*.y*ml")):
        with suppress(UserError, OSError):  # another check reports it
            folder = YamlNode(documents.read(file), file).get("specification", "path")
            if isinstance(folder, str) and path.parent.samefile(file.parent / folder):
                problems += feature_set_problems(file)
                is_named = True
    if is_named:
        return problems
    spec = YamlNode(documents.read(path), path)
    return [_wrong(spec, (), "`specification.path` of one", "no feature set names this folder")]


def _wrong(node: YamlNode, keys: Sequence[Key], expected: str, actual: str = "") -> Problem:
    name = ".".join(map(str, keys))
    actual = actual or f"`{name}` is {node.get(*keys)!r}"
    return Problem("invalid-feature-set", actual, expected, place=node.place(*keys), source=_SOURCE)


def _inside(node: YamlNode, folder: Path, *keys: Key) -> Path | Problem:
    """Return `folder` / the path at the keys, or a problem if it leaves the repository."""
    written = node.get(*keys)
    if not isinstance(written, str) or not written:
        return _wrong(node, keys, "a relative path")
    root, path = repository.root(node.file).resolve(), (folder / written).resolve()
    if Path(written).is_absolute() or not path.is_relative_to(root):
        return _wrong(node, keys, "a relative path inside the repository")
    return folder / written


def _tags(feature_set: YamlNode) -> Iterator[Problem]:
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


def _repeated(node: YamlNode, spec: _Spec) -> Iterator[Problem]:
    seen = {ARRIVAL, spec.source.timestamp_column.name}
    for field, columns in (("index_columns", spec.index_columns), ("features", spec.features)):
        for index, column in enumerate(columns):
            if column.name in seen:
                actual = f"two columns are called `{column.name}`"
                expected = f"another name than a key, the event time, `{ARRIVAL}` or a feature"
                yield _wrong(node, (field, index, "name"), expected, actual)
            seen.add(column.name)


def _entities(feature_set: YamlNode, node: YamlNode, spec: _Spec) -> Iterator[Problem]:
    """Yield a problem if an entity is missing or its columns differ from `index_columns`."""
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
    actual = {column.name: str(column.type) for column in spec.index_columns}
    if actual != expected:
        keys = ", ".join(f"{name} ({kind})" for name, kind in expected.items())
        stated = ", ".join(f"{name} ({kind})" for name, kind in actual.items())
        message = f"the keys are {stated}"
        yield _wrong(node, ("index_columns",), f"those of its entities: {keys}", message)


def _entity(written: str, root: Path) -> dict[str, str] | None:
    """Return the columns of the entity that `azureml:NAME:VERSION` names; None without one."""
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


def _transformation(
    feature_set: YamlNode, node: YamlNode, spec: _Spec, columns: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield the problems of the transformer class: missing, a feature or a window is wrong.

    `columns` maps the local source's columns to their types.
    """
    code = "feature_transformation_code"
    folder = _inside(node, node.folder, code, "path")
    if isinstance(folder, Problem):
        yield folder
        return
    module, _, name = spec.feature_transformation_code.transformer_class.rpartition(".")
    file = folder / f"{module.replace('.', '/')}.py"
    label = repository.shown(file)
    try:
        source = Code(file)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        actual = f"{label} cannot be read: {type(error).__name__}"
        yield _wrong(node, (code, "transformer_class"), "a Python module", actual)
        return
    if not source.transforms(name):
        actual = f"{label} has no class `{name}` with a method `transform`"
        yield _wrong(node, (code, "transformer_class"), "def transform(self, rows)", actual)
    kinds_of_features = {
        column.name: (index, str(column.type)) for index, column in enumerate(spec.features)
    }
    for feature, (index, _) in kinds_of_features.items():
        if columns and feature not in columns and not source.may_compute(feature):
            actual = f"{label} does not compute `{feature}`"
            yield _wrong(node, ("features", index, "name"), "a column of `transform`", actual)
    limit = _timedelta(spec.source_lookback)
    for line, window in source.calls("Window", ("name", "function", "length", "column"), {}):
        name, length = str(window.get("name")), window.get("length")
        if isinstance(length, timedelta) and (expected := _wrong_length(length, limit)):
            actual = f"the window `{name}` is of {length}"
            yield Problem("invalid-feature-set", actual, expected, place=Place(label, line))
        index, kind = kinds_of_features.get(name, (0, ""))
        computed = WINDOW_TYPES.get(str(window.get("function")))
        if computed and kind in TYPES and kind != computed:
            actual = f"`{name}` is `{kind}`; the window `{window['function']}` is {computed}"
            yield _wrong(node, ("features", index, "type"), f"`{computed}`", actual)
    yield from _timelines(feature_set, spec, source, label)


def _wrong_length(length: timedelta, limit: timedelta) -> str:
    """Return the expected range, as text, if a window's length is outside it; else ""."""
    if not SHORTEST <= length <= LONGEST:
        return "1 hour to 90 days"
    return f"at most `source_lookback`, {limit}" if length > limit else ""


def _timelines(feature_set: YamlNode, spec: _Spec, source: Code, label: str) -> Iterator[Problem]:
    """Yield a problem for each `Timeline(…)` whose event, arrival or delay differs from the YAML.

    Windows by a wrong arrival column would contain rows that had not arrived yet.
    """
    stated: dict[str, Value] = {
        "event": spec.source.timestamp_column.name,
        "arrival": feature_set.get("tags", "arrival_column"),
        "delay": _timedelta(spec.source.source_delay),
    }
    defaults: dict[str, Value] = {"arrival": None, "delay": timedelta(0)}
    for line, timeline in source.calls("Timeline", (*stated,), defaults):
        for field, value in stated.items():
            actual = timeline.get(field, value)
            if actual != value and isinstance(actual, str | timedelta | None):
                message = f"the {field} of `Timeline` is {actual}"
                expected = f"{value}, as the feature set states"
                yield Problem("invalid-feature-set", message, expected, place=Place(label, line))


def _local_source(
    feature_set: YamlNode, node: YamlNode, spec: _Spec
) -> tuple[dict[str, str], list[Problem]]:
    """Return the columns of the local source with their types, and the problems of all its files.

    The type of a column of a CSV file is unknown ("").
    """
    root = repository.root(feature_set.file).resolve()
    path = _inside(feature_set, feature_set.folder, "tags", "local_source")
    if isinstance(path, Problem):
        return {}, []
    needed: list[tuple[YamlNode, tuple[Key, ...], str]] = [
        (node, ("source", "timestamp_column", "name"), "datetime")
    ]
    if "arrival_column" in feature_set.mapping("tags"):
        needed.append((feature_set, ("tags", "arrival_column"), "datetime"))
    for index, key in enumerate(spec.index_columns):
        needed.append((node, ("index_columns", index, "name"), str(key.type)))
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
        for owner, where, kind in needed:
            name = owner.get(*where)
            if not _is_text(name) or where in problems:
                continue
            if name not in columns:
                actual = f"{label} has no column `{name}`"
                problems[where] = _wrong(owner, where, f"one of {', '.join(columns)}", actual)
            elif columns[name] and not _is_kind(columns[name], kind):
                expected = "a datetime with a time zone" if kind == "datetime" else kind
                actual = f"`{name}` of {label} is {columns[name]}"
                problems[where] = _wrong(owner, where, expected, actual)
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


def _timedelta(length: _Length | None) -> timedelta:
    return timedelta(**vars(length or _Length()))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
