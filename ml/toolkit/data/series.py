"""Read a table of time series, and split it by forecast cutoffs.

The schema has these fields besides the columns (`ml.toolkit.data.tables`):

    task: forecasting
    primary_metric: mase
    target: sales            # float or integer; `optional: true` where values may be missing
    time: day
    series: [store, item]    # one series per combination; [] if the table is one series
    horizon: 14              # steps of a forecast
    season: 7                # steps of a season
    known: [promotion]       # numeric columns that are known for the whole horizon
    slices: [store]          # slice columns; the first value of a series counts
    origins: 2               # number of cutoffs of the test, and of validation

The steps are the distinct times of the whole table. A series without a row at a step has a missing
value there. The cutoffs at the end of the table are `horizon` steps apart: the last `origins` are
the test, those before are validation. Training uses no value after the first validation cutoff.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ml.measures import tasks
from ml.measures.forecasting import actuals
from ml.measures.measurement import VALIDATION, Rows
from ml.serving.scoring.series import relevant
from ml.toolkit.data.datasets import MISSING_SLICE, TEST, TRAIN
from ml.toolkit.data.tables import (
    Column,
    DataRefused,
    Flaw,
    SchemaRefused,
    TableSchema,
    read_table,
)

TASK = "forecasting"
# A history of fewer seasons is in the slice `new` of the dimension `history`.
NEW = 4
# Minimum number of seasons before the first training cutoff.
_FIRST = 2
_TRAIN = "table.csv"
_MLTABLE = f"""\
type: mltable
paths:
  - file: ./{_TRAIN}
transformations:
  - read_delimited: {{delimiter: ",", encoding: utf8, header: all_files_same_headers}}
"""
# Slice dimensions of every table, besides `slices` of the schema.
SLICES = ("size", "history")
_OF_COLUMNS = {field.name for field in fields(TableSchema)} - {"required"}


@dataclass(frozen=True)
class Head:
    """The forecasting part of the schema; the module's docstring explains the fields."""

    primary_metric: str
    target: str
    time: str
    horizon: int
    season: int
    series: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    origins: int = 2
    file: str = "table.csv"
    task: str = TASK

    @classmethod
    def parse(cls, raw: Mapping[str, Any], columns: Sequence[Column]) -> Head:
        """Parse the forecasting part of a schema; SchemaRefused names the invalid field."""
        types = {column.name: column.type for column in columns}
        names = [field.name for field in fields(cls)]
        if unknown := sorted(raw.keys() - {*names} - _OF_COLUMNS):
            raise SchemaRefused(unknown[0], "an unknown field", "one of ", names)
        if raw.get("primary_metric") not in [*tasks.metrics_of(TASK)]:
            actual = repr(raw.get("primary_metric"))
            raise SchemaRefused("primary_metric", actual, "one of ", tasks.metrics_of(TASK))
        for name in ("horizon", "season", "origins"):
            if type(raw.get(name, 2)) is not int or not 1 <= raw.get(name, 2) <= 1000:
                raise SchemaRefused(name, repr(raw[name]), "a whole number from 1 to 1000")
        listed = ("series", "known", "slices")
        for name in ("target", "time", *listed):
            stated = raw.get(name, [])
            if name in raw and isinstance(stated, list) is not (name in listed):
                expected = "a list of columns" if name in listed else "one column"
                raise SchemaRefused(name, repr(stated), expected)
            for column in stated if isinstance(stated, list) else [stated]:
                if column not in [*types]:  # may be a list or a mapping
                    raise SchemaRefused(name, repr(column), "one of ", types)
                if name in ("target", "known") and types[column] not in ("float", "integer"):
                    actual = f"`{column}`, of type {types[column]}"
                    raise SchemaRefused(name, actual, "a column of type float or integer")
        lists = {name: tuple(raw.get(name, ())) for name in listed}
        return cls(**{name: raw[name] for name in names if name in raw} | lists)


@dataclass(frozen=True)
class Unit:
    """A forecast of one series from one cutoff."""

    series: int  # index of the series
    cutoff: int  # index of the first forecast step


@dataclass(frozen=True)
class Panel:
    """The series of a table on a common grid of steps."""

    head: Head
    names: Sequence[str]  # of the series
    times: Sequence[datetime]  # of the steps
    values: NDArray[np.float64]  # (series, steps), NaN if missing
    known: Mapping[str, NDArray[np.float64]]  # column → (series, steps)
    slices: Mapping[str, Sequence[str]]  # dimension → slice of each series

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The index of the first observed step of each series."""
        return np.asarray((~np.isnan(self.values)).argmax(axis=1))

    @cached_property
    def is_large(self) -> NDArray[np.bool_]:
        """Whether the mean absolute value of a series exceeds the median series', (series,)."""
        sizes = np.nanmean(np.abs(self.values), axis=1)
        return np.asarray(sizes > np.median(sizes))

    @property
    def least(self) -> int:
        """The minimum number of steps for the cutoffs of training, validation and test."""
        return self.head.season * _FIRST + self.head.horizon * (2 * self.head.origins + 1)

    @cached_property
    def cutoffs(self) -> Mapping[str, Sequence[int]]:
        """Split → its cutoffs (index of the first forecast step).

        Raises ValueError if the table has too few steps.
        """
        horizon, origins, steps = self.head.horizon, self.head.origins, len(self.times)
        ends = [steps - horizon * (number + 1) for number in range(2 * origins)][::-1]
        first = self.head.season * _FIRST
        train = [*range(ends[0] - horizon, first - 1, -max(1, horizon // 2))][::-1]
        if not train:
            raise ValueError(f"{steps} steps, where this horizon needs at least {self.least}")
        return {TRAIN: train, VALIDATION: ends[:origins], TEST: ends[origins:]}

    def units(self, split: str) -> list[Unit]:
        """Return the forecasts of a split that have observed values before and after the cutoff."""
        seen = ~np.isnan(self.values)
        return [
            Unit(series, cutoff)
            for cutoff in self.cutoffs[split]
            for series in range(len(self.names))
            if seen[series, :cutoff].any()
            and seen[series, cutoff : cutoff + self.head.horizon].any()
        ]

    def history(self, unit: Unit) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Return the values before the cutoff, and the known columns to the end of the horizon.

        Both begin with the first observed step of the series.
        """
        start, end = self.starts[unit.series], unit.cutoff + self.head.horizon
        known = {name: values[unit.series, start:end] for name, values in self.known.items()}
        return self.values[unit.series, start : unit.cutoff], known

    def place(self, unit: Unit) -> tuple[str, str]:
        """Return the series' name and the ISO 8601 time of the last step before the cutoff."""
        return self.names[unit.series], self.times[unit.cutoff - 1].isoformat()

    def actual(self, unit: Unit) -> NDArray[np.float64]:
        """Return the actual values of the forecast steps, (horizon,)."""
        return self.values[unit.series, unit.cutoff : unit.cutoff + self.head.horizon]

    def rows(self, split: str, scores: NDArray[np.float64] | Sequence[Any] = ()) -> Rows:
        """Return a split as `Rows` for `ml.measures.measurement.evaluate`, grouped by series."""
        units = self.units(split)
        series_numbers, season = [unit.series for unit in units], self.head.season
        lengths = [len(self.history(unit)[0]) for unit in units]
        histories = ["new" if length < NEW * season else "established" for length in lengths]
        slices = {
            name: [values[number] for number in series_numbers]
            for name, values in self.slices.items()
        }
        slices["size"] = [
            "large" if self.is_large[number] else "small" for number in series_numbers
        ]
        return Rows(
            [f"{self.names[unit.series]} {self.times[unit.cutoff].isoformat()}" for unit in units],
            [actuals(self.history(unit)[0], self.actual(unit), season) for unit in units],
            scores,
            slices={**slices, "history": histories},
            groups=[self.names[number] for number in series_numbers],
            requests=[self.request(unit) for unit in units] if split == TEST else (),
        )

    def request(self, unit: Unit) -> dict[str, object]:
        """Return the request body for a forecast (see `ml.serving.scoring.series`).

        It has the history that the features use, and at least all values since the first test
        cutoff, which an AutoML forecaster has not seen.
        """
        history, known = self.history(unit)
        steps_of_test = unit.cutoff - self.cutoffs[TEST][0]
        first = max(0, min(relevant(history, self.head.season), len(history) - steps_of_test))
        history, known = history[first:], {name: values[first:] for name, values in known.items()}
        listed = [None if np.isnan(value) else float(value) for value in history]
        known_fields = (
            {"known": {name: values.tolist() for name, values in known.items()}} if known else {}
        )
        series, until = self.place(unit)
        place = {"series": series, "until": until}
        return {"history": listed, **known_fields, "horizon": self.head.horizon, **place}


def read_panel(folder: Path, schema: Path) -> Panel:
    """Read the table in `folder`, the folder of a data asset or the file itself.

    Prints every problem with file and line and exits if the schema or the data is invalid.
    """
    try:
        raw = yaml.safe_load(schema.read_text(encoding="utf-8"))
        columns = TableSchema.parse(raw)
        head = Head.parse(raw, columns.columns)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"error[wrong-schema]: {schema}: {error}") from None
    try:
        return panel_of(folder if folder.is_file() else folder / head.file, columns, head)
    except DataRefused as refused:
        raise SystemExit(str(refused)) from None


def write_train(folder: Path, schema: Path, to: Path) -> None:
    """Write the observed rows before the test as an MLTable into `to`, for an AutoML job.

    Its columns are the time, the target, the series columns and the known columns. Exits as
    `read_panel` does.
    """
    panel, columns = (
        read_panel(folder, schema),
        TableSchema.parse(yaml.safe_load(schema.read_text())),
    )
    head, end = panel.head, panel.times[panel.cutoffs[TEST][0]]
    table, _ = read_table(folder if folder.is_file() else folder / head.file, columns)
    names = [head.time, head.target, *head.series, *head.known]
    to.mkdir(parents=True, exist_ok=True)
    (to / "MLTable").write_text(_MLTABLE, encoding="utf-8")
    with (to / _TRAIN).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        for time, value, *inputs in zip(*map(table.column, names), strict=True):
            if value.strip() and datetime.fromisoformat(time.strip()) < end:
                writer.writerow([time, value, *inputs])


def panel_of(path: Path, schema: TableSchema, head: Head) -> Panel:
    """Return the series of a table; raise DataRefused with every problem."""
    panel = panel_of_any_length(path, schema, head)
    try:
        assert panel.cutoffs
    except ValueError as error:
        actual, expected = f"the table has {error}", "a history before every cutoff"
        hint = "give a longer table, or lower `horizon`, `origins` or `season` in the schema"
        raise DataRefused([Flaw("too-few-steps", path, 0, actual, expected, hint)]) from None
    return panel


def panel_of_any_length(path: Path, schema: TableSchema, head: Head) -> Panel:
    """Return the series of a table that may be too short for the cutoffs; see `panel_of`."""
    table, findings = read_table(path, schema)
    if findings:
        raise DataRefused(findings)
    columns = {column.name: column for column in schema.columns}
    names = [*zip(*map(table.column, head.series), strict=True)] or [()] * len(table.rows)
    times = [*_times(path, table.lines, head.time, table.column(head.time))]
    if wrong := [*_wrong_times(path, table.lines, names, times)]:
        raise DataRefused(wrong)
    series, steps = sorted({*names}), sorted({*times})
    of_series, of_step = (
        {key: number for number, key in enumerate(every)} for every in (series, steps)
    )
    place = ([of_series[name] for name in names], [of_step[name] for name in times])

    def grid(name: str, empty: float) -> NDArray[np.float64]:
        values = np.full((len(series), len(steps)), empty)
        numbers = map(columns[name].parse, table.column(name))
        values[place] = [empty if number is None else number for number in numbers]
        return values

    values = grid(head.target, np.nan)
    observed = np.flatnonzero((~np.isnan(values)).any(axis=1)).tolist()
    first = {name: number for number, name in reversed([*enumerate(names)])}
    slices = {
        name: [
            MISSING_SLICE if columns[name].is_missing(cell) else cell for cell in table.column(name)
        ]
        for name in head.slices
    }
    return Panel(
        head,
        ["/".join(series[number]) or "all" for number in observed],
        steps,
        values[observed],
        {name: grid(name, 0.0)[observed] for name in head.known},
        {
            name: [column[first[series[number]]] for number in observed]
            for name, column in slices.items()
        },
    )


def _times(path: Path, lines: Sequence[int], name: str, texts: Sequence[str]) -> Iterator[datetime]:
    for line, text in zip(lines, texts, strict=True):
        try:
            yield datetime.fromisoformat(text.strip())
        except ValueError:
            actual, expected = f"`{name}` is {text!r}", "an ISO 8601 date or time, as 2025-01-31"
            raise DataRefused([Flaw("wrong-time", path, line, actual, expected)]) from None


def _wrong_times(
    path: Path, lines: Sequence[int], names: Sequence[Any], times: Sequence[datetime]
) -> Iterator[Flaw]:
    """Yield a flaw for each repeated time of a series and each inconsistent time zone."""
    zoned = times[0].tzinfo is not None
    first: dict[Any, int] = {}
    for line, name, time in zip(lines, names, times, strict=True):
        if (time.tzinfo is not None) is not zoned:
            actual = f"{time.isoformat()}, unlike the first row"
            expected = "a time zone in every row, or in none"
            yield Flaw("mixed-time-zones", path, line, actual, expected)
        elif (name, time) in first:
            actual = f"{'/'.join(name) or 'the series'} has {time.isoformat()} on line "
            actual += f"{first[name, time]} too"
            expected = "one row for each series and time"
            hint = "name the columns of a series (`--series`, `series`), or add up the rows"
            yield Flaw("duplicate-time", path, line, actual, expected, hint)
        first.setdefault((name, time), line)
