"""Read a table of time series and align the series on a common grid of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ml.automl.forecasting.settings import Settings
from ml.serving.scoring.forecasters import Values, filled
from ml.toolkit.automl import reading
from ml.toolkit.automl.cells import is_number, stop

if TYPE_CHECKING:
    import pandas as pd

# The series' name if the table has no identifiers.
ONLY = "all"
# Start of a pandas frequency's name → default season in steps.
_SEASONS: Mapping[str, int] = {
    **{"min": 60, "h": 24, "D": 7, "B": 5, "W": 52, "M": 12, "BM": 12, "Q": 4, "BQ": 4, "Y": 1}
}
# "If the number of data points compliant to given frequency grid is less than 90 % … the error
# will be raised", else the others are left out (azure-ai-ml, ForecastingSettings).
ON_GRID = 0.9
# Maximum cells of the grid, which a frequency much finer than the data exceeds.
MOST_CELLS = 50_000_000


# Regular expressions: a time zone at the end of a time; day and month, or month and day, at its
# beginning.
_ZONE = r"(?:Z|[+-]\d{2}:?\d{2})$"
_DAY_OR_MONTH = r"^\s*(\d{1,2})[/.-](\d{1,2})[/.-]\d{4}"


@dataclass(frozen=True)
class Panel:
    """Time series on a common grid of times."""

    ids: Sequence[tuple[str, ...]]
    grid: pd.DatetimeIndex  # (times,)
    target: Values  # (series, times); NaN where no value was observed
    known: Values  # (series, times, columns): columns whose future values are known
    names: Sequence[str]  # names of the known columns
    season: int
    notes: Sequence[str]  # notes on the data for the leaderboard

    @property
    def names_of_series(self) -> list[str]:
        """Return the name of each series: its identifiers joined by `/`."""
        return ["/".join(key) or ONLY for key in self.ids]

    @property
    def filled(self) -> Values:
        """Return the target, forward-filled; NaN before the first value."""
        return filled(self.target)

    @property
    def last(self) -> NDArray[np.int64]:
        """Return the index of the last observed value of each series (series,)."""
        observed = ~np.isnan(self.target)
        return np.asarray(self.target.shape[1] - 1 - observed[:, ::-1].argmax(axis=1))

    def until(self, cutoff: int) -> Panel:
        """Return the panel up to and including a grid index; `known` keeps later times."""
        return replace(self, target=self.target[:, : cutoff + 1], grid=self.grid[: cutoff + 1])


def read(folder: Path, settings: Settings) -> Panel:
    """Read a panel from an MLTable folder; end the program if its rows are no time series."""
    names = frozenset({settings.time, *settings.ids})
    frame = reading.read_all([folder], settings.target, names, is_class=False)[0]
    return of_frame(frame, settings)


def of_frame(frame: pd.DataFrame, settings: Settings) -> Panel:
    """Build the panel from rows in any order; end the program if they are no time series."""
    import pandas as pd

    for name in (settings.target, settings.time, *settings.ids):
        if name not in frame:
            expected = f"one of {', '.join(map(str, [*frame][:12]))}"
            stop("no-such-column", f"`{name}` is not a column of training_data", expected)
    if not is_number(frame[settings.target]):
        actual = f"`target_column_name: {settings.target}` has texts"
        stop("not-numbers", actual, "numbers to forecast", "convert it, or name another column")
    notes: list[str] = []
    times = _times(frame[settings.time], settings, notes)
    target = frame[settings.target].to_numpy(np.float64, na_value=np.nan)
    if np.isinf(target).any():
        stop("not-numbers", f"`{settings.target}` is infinite in a row", "finite numbers")
    series, ids = _series(frame, settings.ids)
    has_target = ~np.isnan(target)
    if not has_target.any():
        actual = f"no row of training_data has a `{settings.target}`"
        stop("no-label", actual, "values to learn from", f"fill in `{settings.target}`")
    end = times[has_target].max()
    frequency = _frequency(times, series, settings)
    begin, step = times.min(), pd.tseries.frequencies.to_offset(frequency)
    begin = pd.Timestamp(step.rollback(begin)) if settings.aggregation else begin
    # Use datetime, since a pandas Timedelta is limited to 292 years.
    span, length = end.to_pydatetime() - begin.to_pydatetime(), _length(step).to_pytimedelta()
    if span / max(length, timedelta.resolution) * len(ids) > MOST_CELLS:
        actual = f"{len(ids)} series from {begin} to {end} by `{frequency}`"
        stop("too-many-times", actual, f"at most {MOST_CELLS:,} values", "set a longer `frequency`")
    grid = pd.date_range(begin, end, freq=step)
    if len(grid) == 0 or begin != grid[0]:
        grid = pd.date_range(step.rollforward(begin), end, freq=step)
    slot = np.asarray(grid.searchsorted(times, side="right") - 1)
    on_grid = (slot >= 0) & (slot < len(grid)) & (times <= (grid[-1] + step if len(grid) else end))
    if not settings.aggregation:
        on_grid &= grid.to_numpy()[np.clip(slot, 0, max(0, len(grid) - 1))] == times.to_numpy()
        share = on_grid[has_target].mean()
        if share < ON_GRID:
            actual = f"{share:.0%} of the times are regular by `{frequency}`"
            hint = "set `frequency` and `target_aggregate_function`, or time_series_id_column_names"
            stop("irregular-times", actual, f"{ON_GRID:.0%} or more", hint)
        if share < 1:
            notes.append(
                f"{int((~on_grid[has_target]).sum())} rows off the `{frequency}` grid are ignored"
            )
    rows = np.flatnonzero(on_grid & has_target)
    cells = pd.DataFrame({"series": series[rows], "at": slot[rows]})
    repeated = cells.duplicated(keep=False)
    if repeated.any() and not settings.aggregation:
        first = rows[int(np.argmax(repeated))]
        name = "/".join(ids[series[first]]) or "the table"
        actual = (
            f"{name} has {times[first]} twice, of {int(repeated.sum())} rows with repeated times"
        )
        hint = "name the columns in time_series_id_column_names, or set target_aggregate_function"
        stop("duplicate-times", actual, "one row for each series and time", hint)
    values = pd.DataFrame({"y": target[rows]})
    names = [
        str(name)
        for name in frame
        if name not in {settings.time, settings.target, *settings.ids} | settings.unknown
    ]
    numeric = [name for name in names if is_number(frame[name])]
    notes += [f"column {name} is not numeric: ignored" for name in names if name not in numeric]
    for name in numeric:
        values[name] = frame[name].to_numpy(np.float64, na_value=np.nan)[rows]
    how: dict[str, Any] = {"y": settings.aggregation or "sum"} | dict.fromkeys(numeric, "mean")
    table = values.groupby([cells["series"], cells["at"]]).agg(how)
    filled_cells = (table.index.get_level_values(0), table.index.get_level_values(1))
    panel = np.full((len(ids), len(grid)), np.nan)
    panel[filled_cells] = table["y"].to_numpy()
    regressors = np.full((*panel.shape, len(numeric)), np.nan)
    regressors[filled_cells] = table[numeric].to_numpy() if numeric else 0.0
    has: NDArray[np.bool_] = np.any(~np.isnan(panel), axis=1)
    if not has.all():
        notes.append(f"{int((~has).sum())} series without a value are ignored")
    season = settings.season or _season(frequency, has, panel, settings.horizon)
    panel, regressors = panel[has], regressors[has]
    first = (~np.isnan(panel)).argmax(axis=1)
    result = Panel(
        [key for key, is_kept in zip(ids, has, strict=True) if is_kept],
        grid,
        panel,
        regressors,
        numeric,
        season,
        notes,
    )
    gaps = int(
        sum(
            np.isnan(row[a : b + 1]).sum()
            for row, a, b in zip(panel, first, result.last, strict=True)
        )
    )
    if gaps:
        notes.append(f"{gaps} gaps within series are forward-filled and not scored")
    return result


def without_short(panel: Panel, cutoff: int) -> Panel:
    """Return the panel without series that have no value up to and including a grid index."""
    is_long: NDArray[np.bool_] = np.any(~np.isnan(panel.target[:, : cutoff + 1]), axis=1)
    if is_long.all():
        return panel
    return replace(
        panel,
        ids=[key for key, is_kept in zip(panel.ids, is_long, strict=True) if is_kept],
        target=panel.target[is_long],
        known=panel.known[is_long],
        notes=[*panel.notes, f"{int((~is_long).sum())} short series are dropped"],
    )


def _times(column: pd.Series[Any], settings: Settings, notes: list[str]) -> pd.DatetimeIndex:
    """Return the parsed times without time zone; end the program if one is missing or invalid.

    Adds remarks on the date format and on time zones to `notes`.
    """
    import pandas as pd

    texts: Any
    name = settings.time
    codes, texts = column.astype("string").factorize(use_na_sentinel=True)

    def refuse(wrong: Any, why: str = "") -> NoReturn:
        row = int(np.argmax(np.isin(codes, np.flatnonzero(wrong))))
        stop(
            "not-a-time",
            f"`{name}` is {str(texts[codes[row]])!r} in row {row + 1}{why}",
            "a time from 1678 to 2261, as 2026-01-31T00:00:00",
            "correct it",
        )

    if (codes < 0).any():
        row = int(np.argmax(codes < 0)) + 1
        stop("not-a-time", f"`{name}` is missing in row {row}", "a time in every row", "correct it")
    read: Any = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True)
    is_day_first = False
    if read.isna().any():  # not ISO 8601: 1/31/2026 or 31.1.2026
        parts = texts.str.extract(_DAY_OR_MONTH).astype("Float64")
        is_day_first, is_month_first = ((parts[part] > 12).any() for part in (0, 1))
        numbered = parts[0].notna().to_numpy()
        if numbered.any():
            if is_day_first == is_month_first:
                refuse(numbered, ": the order of day and month is unclear")
            order = "day, month, year" if is_day_first else "month, day, year"
            notes.append(f"`{name}` is read as {order}")
        read = pd.to_datetime(
            texts, format="mixed", dayfirst=bool(is_day_first), errors="coerce", utc=True
        )
    if read.isna().any():
        refuse(read.isna())
    zoned = texts.str.contains(_ZONE, regex=True) & texts.str.contains(":")
    utc = pd.DatetimeIndex(read).tz_localize(None)
    if zoned.any():
        if not zoned.all():
            row = int(np.argmax(np.isin(codes, np.flatnonzero(~zoned)))) + 1
            actual = f"`{name}` has no time zone in row {row}, and one in other rows"
            stop("mixed-time-zones", actual, "a time zone in every row, or in none")
        local = pd.to_datetime(
            texts.str.replace(_ZONE, "", regex=True),
            format="mixed",
            dayfirst=bool(is_day_first),
            errors="coerce",
        )
        # If all rows have the same local time of day, they are dates: do not convert them to UTC.
        is_daily = len({*pd.DatetimeIndex(local).time}) == 1
        utc = pd.DatetimeIndex(local) if is_daily else utc
        notes.append(f"`{name}` has time zones: taken as {'local dates' if is_daily else 'UTC'}")
    return pd.DatetimeIndex(utc[codes])


def _series(
    frame: pd.DataFrame, names: Sequence[str]
) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """Return the series number of each row, and the identifiers of each series."""
    if not names:
        return np.zeros(len(frame), np.int64), [()]
    for name in names:
        if (missing := frame[name].isna().to_numpy()).any():
            row = int(np.argmax(missing)) + 1
            stop("no-series", f"`{name}` is missing in row {row}", "an identifier in every row")
    keys = [tuple(row) for row in frame[[*names]].astype(str).itertuples(index=False)]
    ids = sorted({*keys})
    for joined, count in Counter(map("/".join, ids)).items():
        if count > 1:  # joined identifiers must be unique: forecasts and requests use them as names
            stop("no-series", f"{count} series are named `{joined}`", "identifiers without `/`")
    number = {key: index for index, key in enumerate(ids)}
    return np.array([number[key] for key in keys], np.int64), ids


def _frequency(times: pd.DatetimeIndex, series: NDArray[np.int64], settings: Settings) -> str:
    """Return the spec's frequency, or the most common one of the data, as a pandas offset alias."""
    import pandas as pd

    if settings.frequency:
        try:
            return str(pd.tseries.frequencies.to_offset(settings.frequency).freqstr)
        except ValueError:
            actual = f"`frequency: {settings.frequency}`"
            stop("no-frequency", actual, "an offset alias of pandas", "frequency: D")
    order = np.lexsort((times.to_numpy(), series))
    ordered, keys = times[order], series[order]
    steps = np.diff(ordered.to_numpy())[
        (np.diff(keys) == 0) & (np.diff(ordered.to_numpy()) > np.timedelta64(0))
    ]
    if not len(steps):
        return "D"
    common: Any = pd.Timedelta(pd.Series(steps).mode()[0])
    days = common / pd.Timedelta(days=1)
    months = next(
        (
            n
            for n, (low, high) in {1: (28, 31), 3: (90, 92), 12: (365, 366)}.items()
            if low <= days <= high
        ),
        0,
    )
    if months and days != 28:
        letter = {1: "M", 3: "Q", 12: "Y"}[months]
        anchor = "" if months == 1 else f"-{times[0].strftime('%b').upper()}"
        if (times.day == 1).mean() >= ON_GRID:
            return f"{letter}S{anchor}"
        if times.is_month_end.mean() >= ON_GRID:
            return f"{letter}E{anchor}"
    if days == 1 and (times.dayofweek < 5).all() and len(times.unique()) >= 10:
        return "B"
    if days == 7:
        return f"W-{times[order[0]].strftime('%a').upper()}"
    return str(pd.tseries.frequencies.to_offset(common).freqstr)


def _length(step: pd.offsets.BaseOffset) -> pd.Timedelta:
    import pandas as pd

    start = pd.Timestamp(2023, 1, 1)
    return (start + step * 10 - start) / 10


def _season(frequency: str, has: NDArray[np.bool_], target: Values, horizon: int) -> int:
    """Return the default season of a frequency in steps.

    It is 1 if the longest series is shorter than two seasons and a horizon.
    """
    import pandas as pd

    offset: Any = pd.tseries.frequencies.to_offset(frequency)
    name = str(offset.name).partition("-")[0]
    base = name.removesuffix("S").removesuffix("E") if name not in _SEASONS else name
    season = _SEASONS.get(base, 1) // offset.n if _SEASONS.get(base, 1) % offset.n == 0 else 1
    longest = int((~np.isnan(target[has])).sum(axis=1).max())
    return season if season > 1 and longest >= 2 * season + horizon else 1
