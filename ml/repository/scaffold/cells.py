"""Read the CSV file of `ml new`, with all cells as strings."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.core import repository
from ml.core.errors import Place, Problem, UserError
from ml.toolkit.data.tables import TableSchema, records

if TYPE_CHECKING:
    import pandas as pd

_DELIMITERS = ",;\t|"
_SNIFFED = 1 << 16
_ANOTHER = "name another file: --table FILE"


def _sniffed(start: str) -> type[csv.Dialect]:
    """Detect the CSV dialect from the start of a file.

    If that fails, for example since long rows leave only one in the sample, use the delimiter in
    the header. Raises csv.Error if the header has several or none.
    """
    try:
        return csv.Sniffer().sniff(start, _DELIMITERS)
    except csv.Error:
        header = start.partition("\n")[0]
        delimiters = [character for character in _DELIMITERS if character in header]
        if len(delimiters) != 1:
            raise

        class Dialect(csv.excel):
            delimiter = delimiters[0]

        return Dialect


def line_of(path: Path, form: Mapping[str, Any], row: int) -> int:
    """Return the line number in the file of a row, counted from 0; `form` is of `read_cells`."""
    return next(islice(_records(path, form), row + 1, None))[0]


def _records(path: Path, form: Mapping[str, Any]) -> Iterator[tuple[int, list[str]]]:
    spaces = bool(form.get("skip_spaces"))
    return records(path, TableSchema((), (0, 0), delimiter=form["delimiter"], skip_spaces=spaces))


def _wider(path: Path, form: Mapping[str, Any], width: int) -> Problem | None:
    """Return a problem for the first row with more than `width` fields; None if there is none."""
    for line, record in _records(path, form):
        if len(record) > width:
            delimiter = "tab" if form["delimiter"] == "\t" else f"`{form['delimiter']}`"
            actual = f"the row has {len(record)} fields, but the header has {width}"
            hint = f"quote the field that has a {delimiter} in it, or remove the {delimiter}"
            place = Place(repository.shown(path), line)
            return Problem("extra-column", actual, f"{width} fields in every row", hint, place)
    return None


def read_cells(path: Path) -> tuple[pd.DataFrame, Mapping[str, object]]:
    """Return the cells as stripped strings, and the CSV format as fields of the schema.

    Raises UserError for an unreadable file, and for missing or repeated column names.
    """
    import pandas as pd

    expected, hint = "a text file (CSV) in UTF-8 with a header", "save it as CSV UTF-8"
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            if not (start := stream.read(_SNIFFED)).strip():
                raise UserError(Problem("unreadable", f"{path} is empty", expected, _ANOTHER))
            sniffed = _sniffed(start)
            form: dict[str, object] = {"delimiter": sniffed.delimiter}
            if sniffed.skipinitialspace:
                form["skip_spaces"] = True
            stream.seek(0)
            spaces = sniffed.skipinitialspace
            rows = csv.reader(stream, delimiter=sniffed.delimiter, skipinitialspace=spaces)
            header = [name.strip() for name in next(rows)]
        try:
            frame = pd.read_csv(
                path,
                sep=sniffed.delimiter,
                skipinitialspace=sniffed.skipinitialspace,
                dtype=str,
                keep_default_na=False,
                index_col=False,
            )
        except pd.errors.ParserError:
            if problem := _wider(path, form, len(header)):
                raise UserError(problem) from None
            raise
    except OSError as error:
        actual = f"{path}: {error.strerror}"
        raise UserError(Problem("unreadable", actual, expected, _ANOTHER)) from None
    except (UnicodeDecodeError, csv.Error, StopIteration, ValueError) as error:
        raise UserError(Problem("unreadable", f"{path}: {error}", expected, hint)) from None
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice or "" in header:
        actual = (
            f"the header has the column `{twice[0]}` twice" if twice else "a column has no name"
        )
        raise UserError(
            Problem(
                "bad-header",
                f"{repository.shown(path)}: {actual}",
                hint="rename one" if twice else "name it",
            )
        )
    frame.columns = pd.Index(header)
    return frame.apply(lambda column: column.str.strip()), form
