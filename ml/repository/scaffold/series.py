"""What `ml new --horizon` guesses of a table of time series: its types, season and cutoffs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np

from ml.core import repository
from ml.core.errors import Place, Problem, Refused, nearest
from ml.measures.forecasting import seasonal_naive
from ml.measures.measurement import metric_values
from ml.measures.tasks import KINDS
from ml.repository.scaffold.profile import Choices, Profile, column_of, read_cells
from ml.toolkit.data.datasets import TEST
from ml.toolkit.data.series import TASK, Head, Panel, panel_of
from ml.toolkit.data.tables import Column, DataRefused, TableSchema

# Intervals draw series, each half of them in a slice `size` too, and need ten of those.
FEWEST_SERIES = 20
# The gates ask for so many forecasts.
FEWEST_FORECASTS = 100
# The steps of a season where a step is at most so long.
SEASONS = {
    timedelta(hours=1): 24,
    timedelta(days=1): 7,
    timedelta(days=7): 52,
    timedelta(days=31): 12,
    timedelta(days=92): 4,
}
SAMPLES = 20


@dataclass(frozen=True)
class SeriesChoices:
    """What a person says about the series: the steps of a forecast, the columns that name one."""

    horizon: int
    series: Sequence[str]


def series_profile(path: Path, choices: Choices, about: SeriesChoices, model: str) -> Profile:
    """The profile of a text file with a header; Refused when no project can be made of it."""
    given = [f"--{name}" for name in ("positive", "id", "group") if getattr(choices, name)]
    given += ["--model"] if model != "lightgbm" else []
    if given or choices.task not in ("", TASK):
        found = ", ".join(given) or f"--task {choices.task}"
        raise Refused(Problem("option-conflict", f"{found} with --horizon", "no such option"))
    cells, form = read_cells(path)
    for name in (choices.target, choices.time, choices.slice, *about.series):
        if name not in cells.columns and (name or not choices.time):
            close = [f"did you mean `{of}`?" for of in nearest(name, [*cells.columns])[:1]]
            found = f"{repository.shown(path)} has no column `{name}`" if name else "no --time"
            expected = f"one of: {', '.join(cells.columns)}"
            raise Refused(Problem("no-such-column", found, expected, "".join(close)))
    texts = {*about.series, choices.slice}
    columns = [_typed(column_of(name, cells[name]), texts) for name in cells.columns]
    schema = TableSchema(
        tuple(columns),
        (len(cells) // 2, len(cells) * 100),
        header=True,
        delimiter=str(form["delimiter"]),
        skip_spaces=bool(form.get("skip_spaces", False)),
    )
    slices = [choices.slice] if choices.slice else []
    metric = choices.primary_metric or KINDS[TASK].primary
    head: dict[str, object] = {
        **{"file": "table.csv", "task": TASK, "primary_metric": metric},
        **{"target": choices.target, "time": choices.time, "series": [*about.series]},
        **{"horizon": about.horizon, "season": 1, "known": [], "slices": slices, "origins": 1},
    }
    try:
        panel = panel_of(path, schema, Head.parse(head, columns))
        count = len(panel.names)
        if count < FEWEST_SERIES:
            found, expected = f"{count} series", f"at least {FEWEST_SERIES}, which intervals draw"
            raise Refused(
                Problem("too-few-series", found, expected, "name their columns: --series")
            )
        head["origins"] = max(2, math.ceil(FEWEST_FORECASTS / count))
        head["season"] = _season(panel)
        panel = panel_of(path, schema, Head.parse(head, columns))
    except DataRefused as refused:
        first = refused.findings[0]
        place = Place(repository.shown(path), first.line or 1)
        raise Refused(Problem(first.code, first.found, first.expected, first.hint, place)) from None
    except ValueError as error:
        raise Refused(Problem("wrong-schema", str(error), "options of a forecast")) from None
    units, season = panel.units(TEST), panel.head.season
    naive = [seasonal_naive(panel.history(of)[0], season, about.horizon) for of in units]
    return Profile(
        TASK,
        metric,
        head | dict(form) | {"header": True, "rows": [*schema.rows]},
        tuple(columns),
        0,
        metric_values(TASK, panel.rows(TEST, np.array(naive)))[metric],
        0.0,
        [panel.request(of) for of in units[:: max(1, len(units) // SAMPLES)]],  # type: ignore[misc]
    )


def _typed(column: Column, texts: set[str]) -> Column:
    """Columns that name series or slices are texts; none is an id."""
    is_text = column.name in texts or column.type == "id"
    return replace(column, type="category" if is_text else column.type, unique=False)


def _season(panel: Panel) -> int:
    """By the usual time between two steps; 1 where the table is too short for more."""
    gaps = sorted(after - before for before, after in pairwise(panel.times))
    usual = gaps[len(gaps) // 2]
    season = next((of for longest, of in SEASONS.items() if usual <= longest), 1)
    return season if panel.head.horizon * 5 + season * 2 <= len(panel.times) else 1
