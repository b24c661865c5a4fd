"""Profile a table of time series for `ml new --horizon`: column types, season and cutoffs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ml.core import repository
from ml.core.errors import Place, Problem, UserError, nearest
from ml.measures.forecasting import seasonal_naive
from ml.measures.measurement import metric_values
from ml.measures.tasks import TASKS
from ml.repository.scaffold.cells import read_cells
from ml.repository.scaffold.profile import Choices, Profile, column_of, thousands
from ml.serving.scoring.columns import MISSING
from ml.toolkit.data.datasets import TEST
from ml.toolkit.data.series import TASK, Head, Panel, panel_of_any_length
from ml.toolkit.data.tables import Column, DataRefused, Flaw, TableSchema

# Bootstrap intervals resample series and need ten. The gate `fairness` compares two slices by size,
# which have half of the series each.
FEWEST_SERIES = 20
_FEWER = "add series, or use an AutoML job (`task: forecasting`): it takes one series or more"
# Minimum number of forecasts that the gates require.
FEWEST_FORECASTS = 100
# Longest time between two steps → number of steps of the season.
SEASONS = {
    timedelta(hours=1): 24,
    timedelta(days=1): 7,
    timedelta(days=7): 52,
    timedelta(days=31): 12,
    timedelta(days=92): 4,
}
# Minimum share of time steps that are multiples of the median step, and the tolerance in steps.
REGULAR, OFF = 0.8, 0.15
# The season in steps of a daily table without weekends.
WORKING_WEEK = 5
SAMPLES = 20
# Maximum series that a sentence names.
NAMED = 3


@dataclass(frozen=True)
class SeriesChoices:
    """The user's choices about the series: horizon in steps, and the columns that identify one."""

    horizon: int
    series: Sequence[str]


def series_profile(path: Path, choices: Choices, about: SeriesChoices, model: str) -> Profile:
    """Profile a CSV file of time series; raise UserError if it does not suit a project."""
    if not about.horizon:
        expected, hint = "a forecast horizon in steps", "add --horizon, or leave out --series"
        raise UserError(Problem("option-conflict", "--series without --horizon", expected, hint))
    options = [f"--{name}" for name in ("positive", "id", "group") if getattr(choices, name)]
    options += ["--model"] if model != "lightgbm" else []
    if options or choices.task not in ("", TASK):
        actual = ", ".join(options) or f"--task {choices.task}"
        raise UserError(Problem("option-conflict", f"{actual} with --horizon", "no such option"))
    cells, form = read_cells(path)
    for name in (choices.target, choices.time, choices.slice, *about.series):
        if name not in cells.columns and (name or not choices.time):
            close = [f"did you mean `{word}`?" for word in nearest(name, [*cells.columns])[:1]]
            actual = f"{repository.shown(path)} has no column `{name}`" if name else "no --time"
            expected = f"one of: {', '.join(cells.columns)}"
            raise UserError(Problem("no-such-column", actual, expected, "".join(close)))
    taken = [choices.time, choices.target, *about.series]
    if twice := [name for number, name in enumerate(taken) if name in taken[:number]]:
        expected = "different columns for --time, --target and each --series"
        raise UserError(Problem("option-conflict", f"`{twice[0]}` is given twice", expected))
    texts = {*about.series, choices.slice}
    columns = [_typed(column_of(name, cells[name]), texts) for name in cells.columns]
    if choices.target not in texts and not cells[choices.target].isin(MISSING).all():
        columns = [
            _number(column) if column.name == choices.target else column for column in columns
        ]
    schema = TableSchema(
        tuple(columns),
        (len(cells) // 2, len(cells) * 100),
        header=True,
        delimiter=str(form["delimiter"]),
        skip_spaces=bool(form.get("skip_spaces", False)),
    )
    slices = [choices.slice] if choices.slice else []
    metric = choices.primary_metric or TASKS[TASK].primary
    head: dict[str, object] = {
        **{"file": "table.csv", "task": TASK, "primary_metric": metric},
        **{"target": choices.target, "time": choices.time, "series": [*about.series]},
        **{"horizon": about.horizon, "season": 1, "known": [], "slices": slices, "origins": 1},
    }
    try:
        panel = panel_of_any_length(path, schema, Head.parse(head, columns))
        count = len(panel.names)
        if count < FEWEST_SERIES:
            actual = f"{count} series with a value"
            expected = (
                f"at least {FEWEST_SERIES}: gates need an interval over 10 series of each size"
            )
            raise UserError(Problem("too-few-series", actual, expected, _FEWER))
        if (np.nanmin(panel.values, axis=1) == np.nanmax(panel.values, axis=1)).all():
            actual = f"`{choices.target}` is constant in each of {count} series"
            raise UserError(Problem("wrong-target", actual, "values that vary over time"))
        if (problem := _off_grid(path, panel)) is not None:
            raise UserError(problem)
        head["origins"] = origins = max(2, math.ceil(FEWEST_FORECASTS / count))
        panel = replace(panel, head=replace(panel.head, origins=origins))
        season = _usual_season(panel)
        seasonal = replace(panel, head=replace(panel.head, season=season))
        doubts = []
        if len(panel.times) >= seasonal.least:
            panel = seasonal
        elif len(panel.times) < panel.least:
            raise UserError(_too_few_steps(path, panel))
        else:
            doubts.append(_no_season(seasonal))
        head["season"] = panel.head.season
    except DataRefused as refused:
        raise UserError(*map(_problem, refused.findings[:NAMED])) from None
    except ValueError as error:
        raise UserError(Problem("wrong-schema", str(error), "options of a forecast")) from None
    dots = [thousands(name, cells[name], form["delimiter"]) for name in cells.columns]
    units, season = panel.units(TEST), panel.head.season
    naive = [seasonal_naive(panel.history(unit)[0], season, about.horizon) for unit in units]
    return Profile(
        TASK,
        metric,
        head | dict(form) | {"header": True, "rows": [*schema.rows]},
        tuple(columns),
        0,
        metric_values(TASK, panel.rows(TEST, np.array(naive)))[metric],
        0.0,
        [panel.request(unit) for unit in units[:: max(1, len(units) // SAMPLES)]],  # type: ignore[misc]
        [*filter(None, dots), *doubts, *_doubts(panel)],
    )


def _problem(flaw: Flaw) -> Problem:
    """Convert a flaw of a cell or a row into a problem."""
    hint = "correct the cell, or leave it empty" if flaw.code == "wrong-type" else flaw.hint
    place = Place(repository.shown(flaw.path), flaw.line or 1)
    return Problem(flaw.code, flaw.actual, flaw.expected, hint, place)


def _off_grid(path: Path, panel: Panel) -> Problem | None:
    """Return a problem if too few time steps are multiples of the median step; else None.

    Months, and days when clocks change, stay within the tolerance OFF.
    """
    gaps = np.array([(b - a).total_seconds() for a, b in pairwise(panel.times)])
    if not len(gaps):
        return None
    usual = float(np.sort(gaps)[len(gaps) // 2])
    steps = np.maximum(1, np.round(gaps / usual))
    share = float((np.abs(gaps / usual - steps) < OFF).mean())
    if share >= REGULAR:
        return None
    actual = f"{100 * share:.0f} % of the steps of `{panel.head.time}` are multiples of the usual "
    actual += f"step, {timedelta(seconds=usual)}"
    hint = "aggregate the table to one row a series and hour, day, week or month"
    expected = f"{100 * REGULAR:.0f} % or more"
    return Problem("irregular-times", actual, expected, hint, Place(repository.shown(path), 1))


def _too_few_steps(path: Path, panel: Panel) -> Problem:
    """Return the problem for a table with too few steps for the validation and test cutoffs."""
    head, steps = panel.head, len(panel.times)
    actual = f"the table has {steps} steps"
    reason = f"{head.origins} cutoffs each in test and validation, for {FEWEST_FORECASTS} forecasts"
    expected = f"at least {panel.least} for a horizon of {head.horizon}: {reason}"
    hint = f"give a longer table{_lower(panel)}, or more series: fewer cutoffs are needed then"
    return Problem("too-few-steps", actual, expected, hint, Place(repository.shown(path), 1))


def _no_season(panel: Panel) -> str:
    """Return a note on why the table's usual season is not used."""
    season, steps = panel.head.season, len(panel.times)
    return (
        f"the season is 1: a season of {season} needs at least {panel.least} steps, and the table "
        f"has {steps}; to use it, give a longer table{_lower(panel)}"
    )


def _lower(panel: Panel) -> str:
    """Return the end of a hint: the longest horizon that fits; "" if none does."""
    head = panel.head
    longest = head.horizon - math.ceil((panel.least - len(panel.times)) / (2 * head.origins + 1))
    return f", or --horizon {longest} at most" if longest > 0 else ""


def _doubts(panel: Panel) -> Iterator[str]:
    """Yield a sentence about each anomaly of the series."""
    values, horizon, target = panel.values, panel.head.horizon, f"`{panel.head.target}`"
    observed = ~np.isnan(values)
    counts, measured = observed.sum(axis=1), {unit.series for unit in panel.units(TEST)}
    last = values.shape[1] - 1 - observed[:, ::-1].argmax(axis=1)
    gaps = last - panel.starts + 1 - counts

    def those(chosen: Sequence[bool] | np.ndarray[Any, Any]) -> str:
        names = [name for name, is_chosen in zip(panel.names, chosen, strict=True) if is_chosen]
        listed = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        return f"{len(names)} of {len(panel.names)} series ({listed})" if names else ""

    if named := those((np.nanmin(values, axis=1) == np.nanmax(values, axis=1)) & (counts > 1)):
        yield f"{target} is constant in {named}: no model beats seasonal naive there"
    if named := those(counts <= horizon):
        yield f"{named} have no more values than the horizon of {horizon}"
    if named := those([number not in measured for number in range(len(counts))]):
        yield f"{named} have no value in the test, and are not measured"
    if named := those(gaps > 0):
        missing = f"{int(gaps.sum()):,} values are missing"
        yield f"{missing} between the first and the last one of {named}: they are not measured"
    if negative := int((values < 0).sum()):
        share = f"{negative:,} of {int(counts.sum()):,} values of {target}"
        yield f"{share} are negative: forecasts and intervals may be negative too"
    zones = sorted({time.strftime("%z") for time in panel.times})
    if zones[1:] and gaps.any():
        yield f"time zones {', '.join(zones)}: the same local time is another step in each of them"
        return
    steps = [after - before for before, after in pairwise(panel.times)]
    usual = sorted(steps)[len(steps) // 2]
    long = [index for index, step in enumerate(steps) if step >= 2 * usual]
    if long and not _is_weekdays(panel):
        before, after = (
            time.isoformat(" ").removesuffix(" 00:00:00")
            for time in panel.times[long[0] : long[0] + 2]
        )
        more = f", nor at {len(long) - 1} other places" if long[1:] else ""
        yield (
            f"no series has a row between {before} and {after}{more}: a season counts the times "
            "in the table, so add rows with an empty cell"
        )


def _typed(column: Column, texts: set[str]) -> Column:
    """Return the column as a category if its name is in `texts` or its type is id."""
    is_text = column.name in texts or column.type == "id"
    return replace(column, type="category" if is_text else column.type, unique=False)


def _number(column: Column) -> Column:
    """Return the column with a numeric type, so that other cells of the target are reported."""
    is_number = column.type in ("integer", "float")
    return column if is_number else replace(column, type="float", unique=False)


def _usual_season(panel: Panel) -> int:
    """Return the season, in steps, for the median time between two steps; 1 for a single step."""
    gaps = sorted(after - before for before, after in pairwise(panel.times))
    if not gaps:
        return 1
    usual = gaps[len(gaps) // 2]
    season = next((length for longest, length in SEASONS.items() if usual <= longest), 1)
    return WORKING_WEEK if _is_weekdays(panel) else season


def _is_weekdays(panel: Panel) -> bool:
    """Return whether the panel has daily steps without weekends, over at least two weeks."""
    steps = {after - before for before, after in pairwise(panel.times)}
    is_daily, span = min(steps) == timedelta(days=1), panel.times[-1] - panel.times[0]
    is_long = span >= timedelta(weeks=2)
    return is_daily and is_long and all(time.weekday() < WORKING_WEEK for time in panel.times)
