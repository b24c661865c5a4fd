"""The cells of the table that `ml new` reads, as texts."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.core import repository
from ml.core.errors import Problem, Refused
from ml.toolkit.data.tables import TableSchema, records

if TYPE_CHECKING:
    import pandas as pd

_DELIMITERS = ",;\t|"
_SNIFFED = 1 << 16
_ANOTHER = "name another file: --table FILE"


def _sniffed(start: str) -> type[csv.Dialect]:
    """The dialect of a file by its first lines; by its header alone where the rows are so long that
    no two of them are there.
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
    """The line of a row of the table."""
    spaces = bool(form.get("skip_spaces"))
    schema = TableSchema((), (0, 0), delimiter=form["delimiter"], skip_spaces=spaces)
    return next(islice(records(path, schema), row + 1, None))[0]


def read_cells(path: Path) -> tuple[pd.DataFrame, Mapping[str, object]]:
    """The cells as texts without spaces around them, and how the schema says that they stand."""
    import pandas as pd

    expected, hint = "a text file (CSV) in UTF-8 with a header", "save it as CSV UTF-8"
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            if not (start := stream.read(_SNIFFED)).strip():
                raise Refused(Problem("unreadable", f"{path} is empty", expected, _ANOTHER))
            sniffed = _sniffed(start)
            form: dict[str, object] = {"delimiter": sniffed.delimiter}
            if sniffed.skipinitialspace:
                form["skip_spaces"] = True
            stream.seek(0)
            spaces = sniffed.skipinitialspace
            rows = csv.reader(stream, delimiter=sniffed.delimiter, skipinitialspace=spaces)
            header = [name.strip() for name in next(rows)]
        frame = pd.read_csv(
            path,
            sep=sniffed.delimiter,
            skipinitialspace=sniffed.skipinitialspace,
            dtype=str,
            keep_default_na=False,
            index_col=False,
        )
    except OSError as error:
        actual = f"{path}: {error.strerror}"
        raise Refused(Problem("unreadable", actual, expected, _ANOTHER)) from None
    except (UnicodeDecodeError, csv.Error, StopIteration, ValueError) as error:
        raise Refused(Problem("unreadable", f"{path}: {error}", expected, hint)) from None
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice or "" in header:
        actual = f"the column `{twice[0]}` is there twice" if twice else "a column has no name"
        raise Refused(Problem("bad-header", f"{repository.shown(path)}: {actual}", hint="name it"))
    frame.columns = pd.Index(header)
    return frame.apply(lambda column: column.str.strip()), form
