"""Requests and responses of an endpoint, as recorded by it or from a file of the user."""

from __future__ import annotations

import csv
import heapq
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core import files
from ml.core.errors import UserError
from ml.measures.reference import Kind, clean
from ml.release.canary.traffic import prediction

# The name of the prediction for a row of a table.
PREDICTION = "prediction"
# Numbers as JSON writes them: 007, nan and 1_000 stay text.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Row:
    """One request, or one row of a table in a request."""

    id: str  # the request's; `ID/ROW`, from 0, if its table has several rows; "" if unknown
    request: Any
    answer: Any  # None if there was none

    def value(self, pointer: str) -> object:
        """Return the value at the pointer in the request; a column's name may contain a slash."""
        if isinstance(self.request, dict) and pointer in self.request:
            return prediction([self.request[pointer]], "0")
        return prediction(self.request, pointer)

    def predicted(self, pointer: str) -> object:
        """Return the value at the pointer in the response."""
        return prediction(self.answer, pointer)


# A version is failing if at least MIN_CRASHED requests, and a share of MAX_CRASHED, crashed. Among
# the newest the share is larger: at an error rate of 4 %, a hundred requests seldom have 10 errors.
MIN_CRASHED, MAX_CRASHED, _NEWEST, _MAX_NEWEST = 5, 0.05, 100, 0.1


@dataclass(frozen=True)
class CollectedRequests:
    """The rows of collected requests, and how many requests were skipped or failed."""

    rows: Sequence[Row]
    unreadable: int = 0  # skipped lines that cannot be read
    others: int = 0  # skipped requests to another model
    failed: int = 0  # requests to the model that were not answered with status 200
    earlier: int = 0  # skipped requests from before `since`
    requests: int = 0  # requests to the model
    crashed: int = 0  # of them, those with a status of 500 and more
    newest: Sequence[bool] = ()  # for each of the last _NEWEST requests, whether it crashed

    @property
    def failing(self) -> str:
        """A sentence if the model fails too many requests, "" otherwise.

        The newest requests are also judged alone: a day of responses would hide a recent failure.
        """
        newest = (sum(self.newest), len(self.newest), _MAX_NEWEST, "newest ")
        for crashed, requests, most, which in (
            (self.crashed, self.requests, MAX_CRASHED, ""),
            newest,
        ):
            if crashed >= max(MIN_CRASHED, most * requests):
                what = f"{crashed:,} of {requests:,} {which}requests"
                return f"{what} failed with a status of 500 or more"
        return ""


def read_collected(
    lines: Iterable[Mapping[str, Any]], digest: str, since: float | None = None
) -> CollectedRequests:
    """Return the collected requests to the model with that digest, from `since` (epoch s) on."""
    rows: list[Row] = []
    unreadable = others = failed = earlier = total = crashed = 0
    newest: list[tuple[float, bool]] = []
    for line in lines:
        recorded_at = line.get("at")
        if (
            not isinstance(recorded_at, int | float)
            or not math.isfinite(recorded_at)
            or "request" not in line
        ):
            unreadable += 1
        elif line.get("digest") != digest:
            others += 1
        elif since is not None and recorded_at < since:
            earlier += 1
        else:
            status = line.get("status")
            total += 1
            failed += status != 200
            is_crash = isinstance(status, int) and status >= 500
            crashed += is_crash
            heapq.heappush(newest, (recorded_at, is_crash))
            if len(newest) > _NEWEST:
                heapq.heappop(newest)
            rows += _expanded(str(line.get("id", "")), line["request"], line.get("answer"))
    last = [is_crash for _, is_crash in newest]
    return CollectedRequests(rows, unreadable, others, failed, earlier, total, crashed, last)


def read_file(path: Path) -> CollectedRequests:
    """Read requests from a file: a table (.csv), or JSON lines with or without an `answer`.

    Raise UserError when the file cannot be read at all.
    """
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as stream:
                table = [
                    {name: _typed(value) for name, value in row.items() if name is not None}
                    for row in csv.DictReader(stream)
                ]
            return CollectedRequests([Row("", row, None) for row in table])
        rows: list[Row] = []
        unreadable = 0
        for line in files.json_lines(path):
            if not line:
                unreadable += 1
            elif "request" in line:
                rows += _expanded(str(line.get("id", "")), line["request"], line.get("answer"))
            else:
                rows += _expanded("", line, None)
        return CollectedRequests(rows, unreadable)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError.with_code(
            "unreadable", f"{path}: {error}", "JSON lines, or a table (.csv)"
        ) from None


def labels(path: Path) -> Mapping[str, str]:
    """Return the label by request id (`x-request-id`), read from lines of ID,LABEL.

    Raise UserError with the line that is invalid or repeats an id with another label.
    """
    by_id: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            for number, row in enumerate(csv.reader(stream), 1):
                if not row:
                    continue
                what = f"{path}:{number}: {','.join(row)[:80]}"
                if len(row) != 2 or not all(row):
                    raise UserError.with_code("bad-label", what, "ID,LABEL", "correct that line")
                if by_id.setdefault(row[0], row[1]) != row[1]:
                    before = f"one label for an id: an earlier line has `{by_id[row[0]][:40]}`"
                    raise UserError.with_code("bad-label", what, before, "delete one of them")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError.with_code(
            "unreadable", f"{path}: {error}", "ID,LABEL lines", "use UTF-8"
        ) from None
    return by_id


def loss(kind: Kind, predicted: object, label: str) -> float | None:
    """Return the loss: 0 or 1 for a category, the absolute error for a number.

    None if either number is invalid.
    """
    right = _typed(label) if kind == "numeric" or isinstance(predicted, float) else label
    actual, expected = clean(kind, predicted), clean(kind, right)
    if kind != "numeric":
        return float(actual != expected)
    return (
        abs(actual - expected)
        if isinstance(actual, float) and isinstance(expected, float)
        else None
    )


def _expanded(name: str, request: Any, answer: Any) -> list[Row]:
    """Return a Row per row of a table in the request, or one Row for any other request.

    A table is {"input_data": {"columns": …, "data": …}}. The answer to it is a list, or has one as
    `predictions`.
    """
    table = request.get("input_data") if isinstance(request, dict) else None
    if not isinstance(table, dict) or not isinstance(table.get("data"), list):
        return [Row(name, request, answer)]
    named = table.get("columns")
    columns = [str(column) for column in named] if isinstance(named, list) else []
    listed = answer.get("predictions") if isinstance(answer, dict) else answer
    answers = listed if isinstance(listed, list) else []
    rows = []
    for number, values in enumerate(table["data"]):
        row = dict(zip(columns, values, strict=False)) if isinstance(values, list) else {}
        predicted = {PREDICTION: answers[number]} if number < len(answers) else None
        row_name = f"{name}/{number}" if len(table["data"]) > 1 else name
        rows.append(Row(row_name, row, predicted))
    return rows


def _typed(value: object) -> object:
    """Parse a CSV cell: a float if it is a number, None if it is empty, else the text."""
    if not isinstance(value, str) or not value:
        return None
    return float(value) if _NUMBER.fullmatch(value) else value
