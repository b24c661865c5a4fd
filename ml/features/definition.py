"""The definition of a feature set, read from Azure ML's own YAML files, without polars."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ml.features.timeline import FeatureError, Timeline, source_lookback_limit

if TYPE_CHECKING:
    import polars as pl

ARRIVAL = "arrival"  # column of a transformed table: the time from which the row can be read
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
# Names become folders and modules: `..` must not lead out of the store.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}", re.ASCII)
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}", re.ASCII)
CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*", re.ASCII)
# The exceptions that a malformed document raises.
_MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


@dataclass(frozen=True)
class FeatureSet:
    """A feature set with its FeatureSetSpec.yaml; types are keys of TYPES."""

    file: Path  # of the feature set
    name: str
    version: str
    keys: Mapping[str, str]  # type by name
    timeline: Timeline  # of the source
    features: Mapping[str, str]  # type by name
    lookback: timedelta | None  # temporal_join_lookback: older values are not joined
    source_lookback: timedelta  # how far before an event the transformation reads
    local_source: Path | None  # stand-in for the cloud's source on this machine
    schedule: timedelta | None  # time between two scheduled materialisations
    code: Path  # module of the transformer
    transformer: str  # its class
    digest: str  # sha256 of the definition and the transformation code

    @property
    def transformed(self) -> Timeline:
        """The timeline of the transformed rows."""
        return Timeline(self.timeline.event, ARRIVAL, self.timeline.delay)

    def transform(self, rows: pl.DataFrame, source: Path | None = None) -> pl.DataFrame:
        """Return the transformed rows: keys, event time, `arrival` and the features, checked.

        Raises FeatureError, which names `source`, if the transformation fails, if a column is
        missing or has another type than the definition states, and if `with_availability` rejects
        the rows.
        """
        import polars as pl

        from ml.features.availability import check_table, with_availability

        spec = importlib.util.spec_from_file_location(f"transformation_{self.name}", self.code)
        assert spec is not None and spec.loader is not None  # a .py file
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses resolve annotations
        wanted = {**self.keys, self.timeline.event: "", ARRIVAL: "", **self.features}
        place = f"{source}: {self.code}" if source else str(self.code)
        limit = source_lookback_limit.set(self.source_lookback)
        try:
            spec.loader.exec_module(module)
            table: pl.DataFrame = getattr(module, self.transformer)().transform(rows)
            check_table(table)
            check_types(table, wanted)
            with_availability(table.select(*wanted), self.transformed, [*self.keys])
        except FeatureError as error:
            raise in_file(error, place) from error
        except (Exception, SystemExit, pl.exceptions.PanicException) as error:
            message = f"{place}: {self.transformer}: {type(error).__name__}: {error}"
            raise FeatureError("transformation-failed", message, "a table") from error
        finally:
            source_lookback_limit.reset(limit)
        return table.select(*wanted)


def check_types(table: pl.DataFrame, wanted: Mapping[str, str]) -> None:
    """Raise FeatureError for a column that is missing or has another type; "" allows any type."""
    for column, kind in wanted.items():
        if column not in table.columns:
            raise FeatureError(
                "missing-column", f"there is no column `{column}`", ", ".join(wanted)
            )
        actual = str(table.schema[column])
        if kind and actual != TYPES.get(kind, kind):
            raise FeatureError("wrong-type", f"`{column}` is {actual}", TYPES.get(kind, kind))


def in_file(error: FeatureError, file: Path | str, line: int | None = None) -> FeatureError:
    """Return the error with the file in its message, and `line`, if given, instead of the row."""
    message = f"{file}: {error.message}" if line is None else f"{file}:{line}: {error.problem}"
    return FeatureError(error.code, message, error.expected)


def read(path: Path) -> FeatureSet:
    """Read a feature set file and the FeatureSetSpec.yaml in the folder that it names.

    Raises FeatureError for a file that is missing or malformed; `ml check` names field and line.
    """
    try:
        return _read(path)
    except FileNotFoundError as error:
        message = f"{path}: {error.filename} does not exist"
        raise FeatureError("missing-file", message, "the files that the set names") from None
    except (OSError, yaml.YAMLError, *_MALFORMED) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        expected = f"a definition that passes: ml check {path}"
        raise FeatureError("wrong-definition", f"{path}: {problem}", expected) from error


def _read(path: Path) -> FeatureSet:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    folder = path.parent / document["specification"]["path"]
    file = folder / "FeatureSetSpec.yaml"
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    source, code = spec["source"], spec["feature_transformation_code"]
    module, _, transformer = _matching(CLASS, code["transformer_class"]).rpartition(".")
    transformation = folder / code["path"]
    module_file = transformation / f"{module.replace('.', '/')}.py"
    module_file.stat()
    tags = document.get("tags") or {}
    schedule = (document.get("materialization_settings") or {}).get("schedule") or {}
    unit = _UNITS.get(str(schedule.get("frequency")).lower(), 0)
    lookback = spec.get("temporal_join_lookback")
    digest = hashlib.sha256()
    for member in [path, file, *sorted(transformation.rglob("*.py"))]:
        content, name = member.read_bytes(), member.resolve().relative_to(path.parent.resolve())
        digest.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)
    return FeatureSet(
        file=path,
        name=_matching(NAME, document["name"]),
        version=_matching(VERSION, document["version"]),
        keys=_types(spec["index_columns"]),
        timeline=Timeline(
            event=source["timestamp_column"]["name"],
            arrival=tags.get("arrival_column"),
            delay=timedelta(**(source.get("source_delay") or {})),
        ),
        features=_types(spec["features"]),
        lookback=None if lookback is None else timedelta(**lookback),
        source_lookback=timedelta(**(spec.get("source_lookback") or {})),
        local_source=path.parent / tags["local_source"] if "local_source" in tags else None,
        schedule=timedelta(seconds=unit * schedule.get("interval", 0)) or None,
        code=module_file,
        transformer=transformer,
        digest=digest.hexdigest(),
    )


def _matching(form: re.Pattern[str], value: object) -> str:
    if not form.fullmatch(str(value)):
        raise ValueError(f"{value!r} does not match {form.pattern}")
    return str(value)


def _types(columns: list[dict[str, str]]) -> dict[str, str]:
    types = {column["name"]: column["type"] for column in columns}
    if len(types) < len(columns) or not {*types.values()} <= {*TYPES}:
        raise ValueError(f"a column name occurs twice, or a type is not one of {', '.join(TYPES)}")
    return types
