"""MLTable files: what they list, and how it is read (reference-yaml-mltable)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ml.core.documents import Key, walk
from ml.specs.assets import assets
from ml.specs.expressions import did_you_mean
from ml.specs.parts import Part

WAYS = frozenset({"file", "folder", "pattern"})
_PATHS = "`paths:`, a list of mappings with one of file, folder, pattern"
_PARTITION = "extract_columns_from_partition_format"
# A transformation → the pattern of its value as Python writes it, and what that is in words.
_STEPS = {
    **dict.fromkeys(
        ("read_delimited", "read_parquet", "read_json_lines", "read_delta_lake"),
        (r"None|\{.*", "a mapping of options"),
    ),
    **dict.fromkeys(("take", "skip"), (r"\d+", "a number of rows")),
    **dict.fromkeys(("drop_columns", "keep_columns"), (r"\[.+|(?!\d+$).+", "names of columns")),
    **dict.fromkeys(("take_random_sample", "sample"), (r"\{.*", "`{probability: 0.1}`")),
    **dict.fromkeys(("select_partitions", _PARTITION), (r"\W.+", "partitions")),
    "convert_column_types": (r"\[.*'column_type'.*", "a list of `{columns: a, column_type: int}`"),
    "filter": (r".*\D.*", "an expression"),
}
_BOOLEANS = ("support_multi_line", "empty_as_string", "include_path_column")
_VALUES = {
    **_STEPS,
    **dict.fromkeys(_BOOLEANS, ("True|False", "true or false")),
    **{
        key: (values.replace(" ", "|"), f"one of {values.replace(' ', ', ')}")
        for key, values in {
            "type": "mltable",
            "encoding": "utf8 iso88591 latin1 ascii utf16 utf32 utf8bom windows1252",
            "header": "no_header from_first_file all_files_different_headers all_files_same_headers",
            "invalid_lines": "error drop",
        }.items()
    },
    "probability": (r"0|1|[01]\.\d+|\de-\d+", "a number from 0 to 1"),
    "column_type": (
        r"int|float|string|boolean|stream_info|\{'(boolean': .*|datetime': \{.*'formats'.*)",
        "int, float, string, boolean, stream_info, or `{datetime: {formats: ['%Y-%m-%d']}}`",
    ),
}
_OPTIONS = (
    *(*_VALUES, *WAYS, "paths", "transformations", "delimiter", "infer_column_types", "columns"),
    *("formats", "true_values", "false_values", "mismatch_as", "version_as_of", "timestamp_as_of"),
    *("boolean", "datetime", "date_constant", "seed"),
)


def faults(table: Part) -> Iterator[tuple[tuple[Key, ...], str, str]]:
    """The faults of an MLTable file: their keys, what is there, and what is expected."""
    paths, steps = table.get("paths"), table.get("transformations")
    if not isinstance(paths, list) or not paths:
        yield ("paths",), "there is no list `paths`", _PATHS
    for number, entry in enumerate(paths if isinstance(paths, list) else ()):
        ways = WAYS & entry.keys() if isinstance(entry, dict) else set()
        text = entry[min(ways)] if len(ways) == 1 else None
        if not isinstance(text, str):
            yield ("paths", number), f"a path is {entry!r}", _PATHS
        elif (path := assets.local(text, table.folder)) is not None and not (
            any(table.folder.glob(text.removeprefix("./"))) if "pattern" in ways else path.exists()
        ):
            yield ("paths", number), f"`{text}` does not exist", "data beside the table"
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        named = [step] if isinstance(step, str) else [*step] if isinstance(step, dict) else []
        if len(named) != 1 or named[0] not in _STEPS:
            expected = f"a transformation, one of {', '.join(_STEPS)}"
            yield ("transformations", number), f"a transformation is {step!r}", expected
    for keys, value in walk(table.mapping()):
        key = str(keys[-1]) if keys and _PARTITION not in keys[:-1] else ""
        if key in _VALUES and not re.fullmatch(_VALUES[key][0], str(value), re.DOTALL):
            yield keys, f"`{key}` is {value!r}", _VALUES[key][1]
        elif key and key not in _OPTIONS and (hint := did_you_mean(key, _OPTIONS)):
            yield keys, f"`{key}` is not a field or option", hint
