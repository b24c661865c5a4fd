"""Read tables and check them against a schema: columns, types and number of rows.

All problems are reported at once with file:line, the actual value, the expected value and a hint.
A schema is a YAML file in the repository:

    rows: [100, 5000]
    columns:
      - {name: Id, type: id, unique: true}
      - {name: AnswerId, type: id, refers_to: ans.tsv}
      - {name: Length, type: integer, optional: true}
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from ml.serving.scoring.columns import MISSING, Kind, Value, read_cell

ColumnType = Literal["id", "text", "timestamp", "float", "integer", "category"]
# Column types that may be features → their kind in requests. In these types, the texts of MISSING
# mean a missing value.
FEATURE_KINDS: Mapping[str, Kind] = {"float": "float", "integer": "integer", "category": "text"}
MOST_SHOWN = 20
FIX = "correct that row"
# Number of rows for comparing types if the columns of a file differ.
SAMPLED = 100


@dataclass(frozen=True)
class Flaw:
    """A problem in a data file."""

    code: str
    path: Path
    line: int  # from 1; 0 for the file as a whole
    actual: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        lines = [f"error[{self.code}]: {where}: {self.actual}", f"  expected: {self.expected}"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class DataRefused(Exception):
    """Raised if data violates its schema; the message lists the problems for printing."""

    def __init__(self, findings: Sequence[Flaw]) -> None:
        self.findings = tuple(findings)
        lines = [str(finding) for finding in self.findings[:MOST_SHOWN]]
        if len(self.findings) > MOST_SHOWN:
            lines.append(f"… and {len(self.findings) - MOST_SHOWN} more problems")
        super().__init__("\n".join(lines))


class SchemaRefused(ValueError):
    """Raised if the schema of a table is invalid.

    `field` is the name (or list index) of the invalid field, `above` the keys of its parents,
    `known` its valid values if they can be listed.
    """

    def __init__(
        self,
        field: str | int,
        actual: str,
        expected: str,
        known: Iterable[str] = (),
        above: tuple[str | int, ...] = (),
    ) -> None:
        self.keys = (*above, field)
        self.field = f"{above[-1]}[{field}]" if isinstance(field, int) else field
        self.actual, self.known = actual, tuple(known)
        self.expected = f"{expected}{', '.join(self.known)}"
        name = ".".join(map(str, self.keys))
        super().__init__(f"`{name}` is {actual}, expected {self.expected}")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType
    unique: bool = False  # values must be unique
    refers_to: str = ""  # foreign key: the table whose first column has the values; "" for none
    optional: bool = False  # values may be missing
    feature_set: str = ""  # the feature set that it is joined from; "" for a column of the file

    def is_missing(self, value: str) -> bool:
        """Return True if a cell counts as missing for this column's type."""
        is_text = self.type in ("id", "text")
        return not value.strip() if is_text else value.strip() in MISSING

    def parse(self, value: str) -> Value:
        """Return the value of a checked cell: a number, a text, or None if it is missing."""
        if self.type in FEATURE_KINDS:
            return read_cell(FEATURE_KINDS[self.type], value)
        return None if self.is_missing(value) else value.strip()


@dataclass(frozen=True)
class TableSchema:
    """The schema of a table."""

    columns: tuple[Column, ...]
    rows: tuple[int, int]  # minimum and maximum number of rows
    header: bool = False  # the file begins with the column names
    delimiter: str = "\t"
    required: bool = True  # False: the file may be missing
    skip_spaces: bool = False  # for a file with a space after every delimiter

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> TableSchema:
        """Parse a schema document; raise TypeError, KeyError or SchemaRefused if invalid."""
        low, high = map(int, raw["rows"])
        if not 0 <= low <= high:
            raise SchemaRefused("rows", repr(raw["rows"]), "the fewest and the most: [100, 5000]")
        types = get_args(ColumnType)
        columns = tuple(Column(**column) for column in raw["columns"])
        for number, column in enumerate(columns):
            if column.type not in types:
                place = ("columns", number)
                raise SchemaRefused("type", repr(column.type), "one of ", types, place)
        return cls(
            columns=columns,
            rows=(low, high),
            header=bool(raw.get("header", False)),
            delimiter=raw.get("delimiter", "\t"),
            required=bool(raw.get("required", True)),
            skip_spaces=bool(raw.get("skip_spaces", False)),
        )


@dataclass
class Table:
    """The rows of a table file."""

    path: Path
    schema: TableSchema
    rows: list[list[str]] = field(default_factory=list)  # cells as in the file, but ids stripped
    lines: list[int] = field(default_factory=list)  # the first line of each row

    def column(self, name: str) -> list[str]:
        """Return the values of one column, in the order of the rows."""
        position = [column.name for column in self.schema.columns].index(name)
        return [row[position] for row in self.rows]


def _opened(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def records(path: Path, schema: TableSchema) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of every record; a quoted field may have line breaks."""
    csv.field_size_limit(1 << 24)
    with _opened(path) as stream:
        spaces = schema.skip_spaces
        reader = csv.reader(stream, delimiter=schema.delimiter, skipinitialspace=spaces)
        line = 1
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1


def _undecodable(path: Path) -> int:
    """Return the number of the first line that is not UTF-8, or 0 (decoder errors have none)."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 0


def read_table(
    path: Path, schema: TableSchema, *, others: bool = False
) -> tuple[Table, list[Flaw]]:
    """Return the table and all problems of the file; rows of a wrong width are left out.

    With `others`, columns that the schema does not name are ignored.
    """
    table = Table(path, schema)
    names = header = [column.name for column in schema.columns]
    positions: Sequence[int] = range(len(names))
    findings: list[Flaw] = []
    if not path.is_file():
        hint = "give the folder that holds it"
        return table, [Flaw("missing-file", path, 0, "there is no such file", path.name, hint)]
    try:
        for number, (line, record) in enumerate(records(path, schema)):
            if number == 0 and schema.header:
                header = [name.strip() for name in record]
                if others and {*names} <= {*header} and len({*header}) == len(header):
                    positions = [header.index(name) for name in names]
                elif header != names:
                    below = islice(records(path, schema), 1, 1 + SAMPLED)
                    rows = [row for _, row in below]
                    return table, [_drift(path, line, schema, header, rows)]
                continue
            if len(record) != len(header):
                code = "missing-column" if len(record) < len(header) else "extra-column"
                expected = f"{len(header)}: {', '.join(header)}"
                findings.append(Flaw(code, path, line, f"{len(record)} columns", expected))
                continue
            table.rows.append(
                [
                    record[place].strip() if column.type == "id" else record[place]
                    for place, column in zip(positions, schema.columns, strict=True)
                ]
            )
            table.lines.append(line)
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, EOFError) as error:
        hint = "save the file as UTF-8 with the separator that the schema names"
        line = _undecodable(path) if isinstance(error, UnicodeDecodeError) else 0
        findings.append(Flaw("unreadable", path, line, str(error), "UTF-8 text", hint))
        return table, findings
    low, high = schema.rows
    if not findings and not low <= len(table.rows) <= high:
        code = "too-few-rows" if len(table.rows) < low else "too-many-rows"
        hint = "correct the data, or change the bounds in the schema beside it"
        expected = f"{low} to {high}"
        findings.append(Flaw(code, path, 0, f"{len(table.rows)} rows", expected, hint))
    return table, findings + _wrong_values(table)


def _drift(
    path: Path, line: int, schema: TableSchema, header: list[str], rows: list[list[str]]
) -> Flaw:
    """Return one flaw that lists all differences between a file's columns and the schema's.

    Columns may be missing, unexpected, in another order, or of another type in all of `rows`.
    """
    names = [column.name for column in schema.columns]
    missing = [name for name in names if name not in header]
    unexpected = [name for name in header if name not in names]
    present = [(position, name) for position, name in enumerate(header, 1) if name in names]
    in_order = [name for name in names if name in header]
    parts = {"missing": missing, "unexpected": unexpected}
    parts["in another order"] = [
        f"column {position} is {name}, expected {expected}"
        for (position, name), expected in zip(present, in_order, strict=False)
        if name != expected
    ]
    read = [dict(zip(header, row, strict=False)) for row in rows]
    parts["of another type"] = [
        f"{column.name} (not of type {column.type}: {values[0]!r})"
        for column in schema.columns
        if (values := [row[column.name] for row in read if column.name in row])
        and all(_unlike(column, value) for value in values)
    ]
    between = {"in another order": "; "}
    differences = "; ".join(
        f"{what}: {between.get(what, ', ').join(names)}" for what, names in parts.items() if names
    )
    code = "missing-column" if missing else "extra-column" if unexpected else "column-order"
    expected = ", ".join(f"{column.name} ({column.type})" for column in schema.columns)
    hint = "correct the data, or change the schema and the code that uses it"
    return Flaw(code, path, line, f"the columns differ; {differences}", expected, hint)


def is_whole_number(value: str) -> bool:
    """Return True if a cell is a 64-bit integer."""
    return _is("integer", value)


def is_number(value: str) -> bool:
    """Return True if a cell is a finite number, such as 12, -0.5 or 1e-3."""
    return _is("float", value)


def _is(kind: Kind, value: str) -> bool:
    try:
        return read_cell(kind, value) is not None
    except ValueError:
        return False


def _is_timestamp(value: str) -> bool:
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return True


def _unlike(column: Column, value: str) -> str:
    """Return the expected form of a value that violates the column's type, or "" if it is valid."""
    if column.type == "id" and len(value.split()) > 1:
        return "an id without spaces"
    if column.type == "timestamp" and not _is_timestamp(value):
        return "an ISO 8601 time, as 2026-01-31"
    if column.type == "integer" and not is_whole_number(value):
        return "a whole number"
    if column.type == "float" and not is_number(value):
        return "a finite number"
    return ""


def _wrong_values(table: Table) -> list[Flaw]:
    findings: list[Flaw] = []
    for position, column in enumerate(table.schema.columns):
        if column.optional and not column.unique and column.type in ("text", "category"):
            continue  # any value is valid
        valid, first = set[str](), dict[str, int]()
        for line, row in zip(table.lines, table.rows, strict=True):
            value = row[position]
            if value in valid:
                pass  # checked in an earlier row
            elif column.is_missing(value):
                if column.optional:
                    continue
                problem, expected = f"{column.name} is empty", f"a {column.type}"
                findings.append(Flaw("empty-value", table.path, line, problem, expected, FIX))
            elif expected := _unlike(column, value):
                problem = f"{column.name} is {value!r}"
                findings.append(Flaw("wrong-type", table.path, line, problem, expected))
            else:
                valid.add(value)
            if column.unique:
                if value in first:
                    problem = f"{column.name} {value!r} is on line {first[value]} too"
                    flaw = Flaw("duplicate-id", table.path, line, problem, "unique ids", FIX)
                    findings.append(flaw)
                first.setdefault(value, line)
    return findings


def dangling(tables: Mapping[str, Table]) -> list[Flaw]:
    """Return a flaw for each value that violates a column's `refers_to`."""
    findings: list[Flaw] = []
    for table in tables.values():
        for position, column in enumerate(table.schema.columns):
            if column.refers_to not in tables:
                continue
            ids = {row[0] for row in tables[column.refers_to].rows}
            for line, row in zip(table.lines, table.rows, strict=True):
                if row[position] not in ids:
                    problem = f"{column.name} {row[position]!r} is unknown"
                    expected = f"an id of {column.refers_to}"
                    hint = f"add it to {column.refers_to} or correct this row"
                    findings.append(Flaw("unknown-id", table.path, line, problem, expected, hint))
    return findings
