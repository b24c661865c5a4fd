"""The definition of a feature set, read from Azure ML's own YAML files."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import yaml

from ml.features.timeline import FeatureError, Timeline

ARRIVAL = "arrival"  # column of a transformed table: since when its row could be read
TYPES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "integer": pl.Int32(),
    "long": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "binary": pl.Binary(),
    "datetime": pl.Datetime("us", "UTC"),
    "boolean": pl.Boolean(),
}


# Names become folders of a store, and the class's module a file: no dot leads out of them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}", re.ASCII)
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*", re.ASCII)


class Transformer(Protocol):
    """The class that `transformer_class` names."""

    def transform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return keys, event time, `arrival` and one column per feature for rows of the source."""


@dataclass(frozen=True)
class FeatureSet:
    """A feature set and its FeatureSetSpec.yaml."""

    file: Path  # of the feature set
    name: str
    version: str
    keys: Mapping[str, pl.DataType]
    timeline: Timeline  # of the source
    features: Mapping[str, pl.DataType]
    lookback: timedelta | None  # temporal_join_lookback: older values are not joined
    source_lookback: timedelta  # how far back of an event the transformation reads
    source: str  # cloud path
    local_source: Path | None  # stand-in for `source` on this machine
    schedule: timedelta | None  # time between two scheduled materialisations
    code: Path  # module of the transformer
    transformer: str  # its class
    digest: str  # sha256 of the definition and the transformation code

    @property
    def transformed(self) -> Timeline:
        """Return the timeline of the transformed rows."""
        return Timeline(self.timeline.event, ARRIVAL, self.timeline.delay)

    def transform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the transformed rows: keys, event time, `arrival` and the features, checked.

        Raises FeatureError when the transformation fails or a column is missing or has another
        type than the definition states.
        """
        try:
            table = self._load().transform(rows)
        except FeatureError as error:
            raise in_file(error, self.code) from error
        except Exception as error:
            message = f"{self.code}: {self.transformer}: {type(error).__name__}: {error}"
            raise FeatureError("transformation-failed", message, "a table") from error
        wanted = {**self.keys, self.timeline.event: None, ARRIVAL: None, **self.features}
        for column, kind in wanted.items():
            if column not in table.columns:
                message = f"{self.code}: the transformed table has no column `{column}`"
                raise FeatureError("missing-column", message, ", ".join(wanted))
            actual = table.schema[column]
            if kind is not None and actual != kind:
                message = f"{self.code}: `{column}` is {actual}"
                raise FeatureError("wrong-type", message, f"{kind}, as the specification states")
        return table.select(*wanted)

    def _load(self) -> Transformer:
        spec = importlib.util.spec_from_file_location(f"transformation_{self.name}", self.code)
        assert spec is not None and spec.loader is not None  # a .py file
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        transformer: Transformer = getattr(module, self.transformer)()
        return transformer


def in_file(error: FeatureError, file: Path) -> FeatureError:
    """Return the error with the file in its message."""
    return FeatureError(error.code, f"{file}: {error.message}", error.expected)


def read(path: Path) -> FeatureSet:
    """Read a feature set file and the FeatureSetSpec.yaml in the folder that it names.

    Raises FeatureError for a file or field that is missing or malformed; `ml check` finds more.
    """
    document = _load(path)
    folder = path.parent / _text(document, path, "specification", "path")
    file = folder / "FeatureSetSpec.yaml"
    spec = _load(file)
    class_field = ("feature_transformation_code", "transformer_class")
    module, _, name = _named(_CLASS, spec, file, *class_field).rpartition(".")
    code = folder / _text(spec, file, "feature_transformation_code", "path")
    module_file = code / f"{module.replace('.', '/')}.py"
    if not module_file.is_file():
        raise FeatureError("missing-file", f"{module_file} does not exist", "MODULE.CLASS in it")
    lookback = spec.get("temporal_join_lookback")
    tags = document.get("tags") or {}
    local = tags.get("local_source")
    source_files = [path, file, *sorted(code.rglob("*.py"))]
    return FeatureSet(
        file=path,
        name=_named(_NAME, document, path, "name"),
        version=_named(_VERSION, document, path, "version"),
        keys=_columns(spec, file, "index_columns"),
        timeline=Timeline(
            event=_text(spec, file, "source", "timestamp_column", "name"),
            arrival=tags.get("arrival_column"),
            delay=_length(spec["source"].get("source_delay"), file),
        ),
        features=_columns(spec, file, "features"),
        lookback=None if lookback is None else _length(lookback, file),
        source_lookback=_length(spec.get("source_lookback"), file),
        source=_text(spec, file, "source", "path"),
        local_source=None if local is None else path.parent / str(local),
        schedule=_schedule(document.get("materialization_settings") or {}),
        code=module_file,
        transformer=name,
        digest=_digest(path.parent, source_files),
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FeatureError("missing-file", f"{path} does not exist", "a YAML file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise FeatureError("unreadable-file", f"{path}: {problem}", "YAML in UTF-8") from error
    if not isinstance(document, dict):
        raise FeatureError("wrong-definition", f"{path} has no fields", "a YAML mapping")
    return document


def _text(document: Mapping[str, Any], path: Path, *fields: str) -> str:
    value: Any = document
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    if not isinstance(value, str | int) or value == "":
        name = ".".join(fields)
        raise FeatureError("wrong-definition", f"{path}: `{name}` is {value!r}", "a text")
    return str(value)


def _named(form: re.Pattern[str], document: Mapping[str, Any], path: Path, *fields: str) -> str:
    text = _text(document, path, *fields)
    if not form.fullmatch(text):
        message = f"{path}: `{'.'.join(fields)}` is {text!r}"
        raise FeatureError("wrong-definition", message, form.pattern)
    return text


def _columns(document: Mapping[str, Any], path: Path, field: str) -> dict[str, pl.DataType]:
    columns = document.get(field)
    if not isinstance(columns, list) or not columns:
        raise FeatureError("wrong-definition", f"{path}: `{field}` is {columns!r}", "a list")
    types = {_text(column, path, "name"): _text(column, path, "type") for column in columns}
    for name, kind in types.items():
        if kind not in TYPES:
            message = f"{path}: the type of `{name}` is `{kind}`"
            raise FeatureError("wrong-definition", message, ", ".join(TYPES))
    return {name: TYPES[kind] for name, kind in types.items()}


def _length(value: object, path: Path) -> timedelta:
    """Return the length of Azure ML's `{days, hours, minutes}`; absent is zero."""
    try:
        return timedelta(**(value or {}))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        expected = "days, hours and minutes"
        raise FeatureError("wrong-definition", f"{path}: length {value!r}", expected) from None


def _schedule(settings: Mapping[str, Any]) -> timedelta | None:
    schedule = settings.get("schedule")
    if not isinstance(schedule, dict) or type(schedule.get("interval")) is not int:
        return None  # `ml check` rejects a malformed one
    unit = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_678_400}
    seconds = unit.get(str(schedule.get("frequency")).lower())
    return None if seconds is None else timedelta(seconds=seconds * schedule["interval"])


def _digest(root: Path, files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        name = file.resolve().relative_to(root.resolve()).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
