"""The definition of a feature set, read from Azure ML's own YAML files, without polars."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ml.features.timeline import FeatureError, Timeline, reach

if TYPE_CHECKING:
    import polars as pl

ARRIVAL = "arrival"  # column of a transformed table: since when its row could be read
TYPES = {  # Azure ML's name of a type → the column's type, as polars prints it
    "string": "String",
    "integer": "Int32",
    "long": "Int64",
    "float": "Float32",
    "double": "Float64",
    "binary": "Binary",
    "datetime": "Datetime(time_unit='us', time_zone='UTC')",
    "boolean": "Boolean",
}
_UNITS = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_678_400}
# Names become folders of a store, and the class's module a file: no dot leads out of them.
_TEXT = re.compile(r"(?s).+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}", re.ASCII)
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class FeatureSet:
    """A feature set and its FeatureSetSpec.yaml; a type is a key of TYPES."""

    file: Path  # of the feature set
    name: str
    version: str
    keys: Mapping[str, str]  # type by name
    timeline: Timeline  # of the source
    features: Mapping[str, str]  # type by name
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
        spec = importlib.util.spec_from_file_location(f"transformation_{self.name}", self.code)
        assert spec is not None and spec.loader is not None  # a .py file
        module = importlib.util.module_from_spec(spec)
        wanted = {**self.keys, self.timeline.event: "", ARRIVAL: "", **self.features}
        limit = reach.set(self.source_lookback)
        try:
            spec.loader.exec_module(module)
            table: pl.DataFrame = getattr(module, self.transformer)().transform(rows)
            check_types(table, wanted)
        except FeatureError as error:
            raise in_file(error, self.code) from error
        except Exception as error:
            message = f"{self.code}: {self.transformer}: {type(error).__name__}: {error}"
            raise FeatureError("transformation-failed", message, "a table") from error
        finally:
            reach.reset(limit)
        return table.select(*wanted)


def check_types(table: pl.DataFrame, wanted: Mapping[str, str]) -> None:
    """Raise FeatureError for a column that is missing or not of its type ("": of any)."""
    for column, kind in wanted.items():
        if column not in table.columns:
            raise FeatureError(
                "missing-column", f"there is no column `{column}`", ", ".join(wanted)
            )
        actual = str(table.schema[column])
        if kind and actual != TYPES.get(kind, kind):
            raise FeatureError("wrong-type", f"`{column}` is {actual}", TYPES.get(kind, kind))


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
    code = "feature_transformation_code"
    module, _, name = _text(spec, file, code, "transformer_class", form=_CLASS).rpartition(".")
    transformation = folder / _text(spec, file, code, "path")
    module_file = transformation / f"{module.replace('.', '/')}.py"
    if not module_file.is_file():
        raise FeatureError("missing-file", f"{module_file} does not exist", "MODULE.CLASS in it")
    tags, lookback = document.get("tags") or {}, spec.get("temporal_join_lookback")
    schedule = (document.get("materialization_settings") or {}).get("schedule")
    schedule = schedule if isinstance(schedule, dict) else {}
    unit = _UNITS.get(str(schedule.get("frequency")).lower(), 0)
    digest = hashlib.sha256()
    for each in [path, file, *sorted(transformation.rglob("*.py"))]:
        content, shown = each.read_bytes(), each.resolve().relative_to(path.parent.resolve())
        digest.update(f"{shown.as_posix()}\0{len(content)}\0".encode() + content)
    return FeatureSet(
        file=path,
        name=_text(document, path, "name", form=_NAME),
        version=_text(document, path, "version", form=_VERSION),
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
        local_source=path.parent / str(tags["local_source"]) if "local_source" in tags else None,
        schedule=_length({"seconds": unit * schedule.get("interval", 0)}, file) or None,
        code=module_file,
        transformer=name,
        digest=digest.hexdigest(),
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


def _text(
    document: Mapping[str, Any], path: Path, *fields: str, form: re.Pattern[str] = _TEXT
) -> str:
    value: Any = document
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    if not isinstance(value, str | int) or not form.fullmatch(str(value)):
        message = f"{path}: `{'.'.join(fields)}` is {value!r}"
        raise FeatureError("wrong-definition", message, f"text: {form.pattern}")
    return str(value)


def _columns(document: Mapping[str, Any], path: Path, field: str) -> dict[str, str]:
    columns = document.get(field)
    if not isinstance(columns, list) or not columns:
        raise FeatureError("wrong-definition", f"{path}: `{field}` is {columns!r}", "a list")
    types = {_text(column, path, "name"): _text(column, path, "type") for column in columns}
    for name, kind in types.items():
        if kind not in TYPES:
            message = f"{path}: the type of `{name}` is `{kind}`"
            raise FeatureError("wrong-definition", message, ", ".join(TYPES))
    return types


def _length(value: object, path: Path) -> timedelta:
    """Return the length of Azure ML's `{days, hours, minutes}`; absent is zero."""
    try:
        return timedelta(**(value or {}))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        expected = "days, hours and minutes"
        raise FeatureError("wrong-definition", f"{path}: length {value!r}", expected) from None
