"""Forecast time series with trees: features, the model, and the endpoint's requests.

Training and the endpoint both compute the features here. The features of a step use the history up
to the cutoff, and the step itself for columns known in advance (promotions, holidays). Values are
divided by the level of the series, so that one model fits all series.

    {"history": [12, null, 9, …], "known": {"promotion": [0, 1, 0, …]}, "horizon": 14,
     "series": "s00/i03", "until": "2025-08-03T00:00:00"}

`known` has values for the history and for every step of the horizon; null in the history is a
missing value. `series` and `until` (the time of the last value of the history) are only for models
of AutoML jobs (`ml.serving.scoring.forecasters`), which store a state per series. The response is
{"forecast": [[value, low, high], …], "total": 131.5}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring import forecasters
from ml.serving.scoring.messages import BadRequest, read_json, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model
from ml.serving.scoring.trees import Trees

Floats = NDArray[np.float64]
TREES, SPEC = "model.txt", "forecaster.json"
# Lengths, in seasons, of the windows for the features mean and spread.
WINDOWS = (1, 4, 8)
LONGEST = 10_000
FIELDS = frozenset({"history", "known", "horizon", "series", "until"})
# The quantiles of an 80 % interval.
TAILS = (0.1, 0.9)


@dataclass(frozen=True)
class Spec:
    """The parameters of a forecaster, stored in forecaster.json beside its trees."""

    season: int  # number of steps
    horizon: int  # the maximum number of steps of a forecast
    known: Sequence[str]  # the columns that are known in advance
    low: Sequence[float]  # by step: (low - value) / level of the series
    high: Sequence[float]  # by step: (high - value) / level of the series
    smallest: float | None  # the lower limit of forecasts; None if values may be negative

    def names(self) -> list[str]:
        """Return the names of the features, in the order of the columns."""
        windows = [f"{name}_{seasons}" for seasons in WINDOWS for name in ("mean", "spread")]
        columns = [f"{name}_{part}" for name in self.known for part in ("then", "usual", "naive")]
        return ["step", "observed", "naive", "same_place", "last", "missing", *windows, *columns]


def features(
    history: Floats, known: Mapping[str, Floats], spec: Spec, steps: int = 0
) -> tuple[Floats, float]:
    """Return the features (steps, names), and the level that values are divided by.

    `history` is (times,), with NaN for missing values and at least one value. `known` maps a column
    to (times + steps,). `steps` is the horizon by default.
    """
    steps = steps or spec.horizon
    first = relevant(history, spec.season)
    history, known = history[first:], {name: values[first:] for name, values in known.items()}
    windows = {seasons: _observed(history[-seasons * spec.season :]) for seasons in WINDOWS}
    recent = windows[WINDOWS[1]] if len(windows[WINDOWS[1]]) else _observed(history)
    level = float(np.abs(recent).mean()) if len(recent) else 0.0
    level = level or float(np.abs(_observed(history)).max(initial=0.0)) or 1.0
    place = np.arange(steps) % spec.season
    padded = np.concatenate([np.full(-len(history) % spec.season, np.nan), history])
    table = padded.reshape(-1, spec.season)
    observed = _observed(history)
    naive = np.full(spec.season, observed[-1])  # the last value of each place in the season
    for row in table:
        naive = np.where(np.isnan(row), naive, row)
    latest = table[-WINDOWS[1] :]
    counts = (~np.isnan(latest)).sum(axis=0)
    same = np.where(counts, np.nansum(latest, axis=0) / np.maximum(counts, 1), np.nan)
    columns: list[Any] = [np.arange(1, steps + 1), min(len(observed), WINDOWS[-1] * spec.season)]
    columns += [naive[place] / level, same[place] / level, observed[-1] / level]
    columns += [np.isnan(history[-WINDOWS[1] * spec.season :]).mean()]
    for span in windows.values():
        columns += [span.mean() / level, span.std() / level] if len(span) else [math.nan, math.nan]
    for name in spec.known:
        before, then = known[name][: len(history)], known[name][len(history) :]
        same_place = len(history) - spec.season + place
        naive_day = np.where(same_place < 0, np.nan, before[np.maximum(same_place, 0)])
        columns += [then, before[-WINDOWS[1] * spec.season :].mean(), naive_day]
    stacked = np.stack([np.broadcast_to(column, steps) for column in columns], axis=1)
    return stacked.astype(float), level


def relevant(history: Floats, season: int) -> int:
    """Return the index of the first value of the history that affects a forecast."""
    first = max(0, len(history) - WINDOWS[-1] * season)
    return first if len(_observed(history[first:])) else 0


def _observed(values: Floats) -> Floats:
    return values[~np.isnan(values)]


class Forecaster:
    """The model in a folder, made by train.py, or by an AutoML job (then `searched` is set).

    Raises the exceptions of `Trees` or `forecasters.Ensemble`, and TypeError for an invalid
    forecaster.json.
    """

    def __init__(self, folder: Path) -> None:
        document = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        self.searched = forecasters.Ensemble(folder) if "members" in document else None
        if self.searched:
            columns = document["known"]
            self.spec = Spec(document["season"], self.searched.horizon, columns, [], [], None)
        else:
            self.spec, self._trees = Spec(**document), Trees(folder / TREES)

    def forecast(
        self,
        history: Floats,
        known: Mapping[str, Floats],
        steps: int = 0,
        series: str = "",
        until: str = "",
    ) -> Floats:
        """Return value, low and high (steps, 3) for the fields of a request.

        A model of an AutoML job uses only the values observed after its training. It raises
        BadRequest for an unknown series or an `until` that it cannot forecast from.
        """
        if self.searched is None:
            table, level = features(history, known, self.spec, steps)
            return with_interval(self._trees.predict(table), level, self.spec)
        names = ["/".join(parts) for parts in self.searched.series]
        if names != [""] and series not in names:
            raise BadRequest("series", series[:80] or "missing", "a series of the training data")
        index, steps = 0 if names == [""] else names.index(series), steps or self.spec.horizon
        later = self.searched.later(index, until, len(history))
        if later < 0:
            last = self.searched.document["last"][index]
            expected = f"a time from {last} on, at most {len(history)} steps later"
            raise BadRequest("until", until[:40] or "missing", expected)
        future = np.full((1, self.spec.horizon, len(self.spec.known)), np.nan)
        for number, name in enumerate(self.spec.known):
            future[0, :steps, number] = known[name][len(history) :]
        observed = history[len(history) - later :]
        return np.asarray(self.searched.forecast([index], [observed], future)[1][0, :steps])

    def answer(self, body: str | bytes) -> dict[str, object]:
        """Return the response to a JSON request; raise BadRequest for an invalid one."""
        rows = self.forecast(*_read(body, self.spec))
        return {"forecast": rows.tolist(), "total": float(rows[:, 0].sum())}


def with_interval(scaled: Floats, level: float, spec: Spec) -> Floats:
    """Return value, low and high (steps, 3) from the trees' scaled predictions (steps,)."""
    ends = [np.asarray(offsets)[: len(scaled)] for offsets in (spec.low, spec.high)]
    rows = np.stack([scaled, scaled + ends[0], scaled + ends[1]], axis=1) * level
    return rows if spec.smallest is None else np.maximum(rows, spec.smallest)


def save(trees: str, spec: Spec, folder: Path) -> None:
    """Write LightGBM's text model `trees` and the spec into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TREES).write_text(trees, encoding="utf-8")
    (folder / SPEC).write_text(json.dumps(asdict(spec), indent=1) + "\n", encoding="utf-8")


def _read(body: str | bytes, spec: Spec) -> tuple[Floats, dict[str, Floats], int, str, str]:
    try:
        document = read_json(body)
    except (ValueError, RecursionError):
        raise BadRequest("", "not JSON", "an object with `history`") from None
    if not isinstance(document, dict) or document.keys() - FIELDS:
        raise BadRequest(
            "",
            "not an object with only known fields",
            f"an object with {', '.join(sorted(FIELDS))}",
        )
    history = _numbers("history", document.get("history"), missing=True)
    if np.isnan(history).all():
        raise BadRequest("history", "no value", "at least one number")
    horizon = document.get("horizon", spec.horizon)
    if type(horizon) is not int or not 1 <= horizon <= spec.horizon:
        raise BadRequest("horizon", str(horizon)[:40], f"1 to {spec.horizon}")
    stated = document.get("known", {})
    if not isinstance(stated, dict) or stated.keys() != {*spec.known}:
        raise BadRequest("known", "other columns", ", ".join(spec.known) or "no column")
    covariates = {name: _numbers(name, stated[name]) for name in spec.known}
    count = len(history) + horizon
    for name, values in covariates.items():
        if len(values) != count:
            raise BadRequest(name, f"{len(values)} values", f"{count}: the history and {horizon}")
    series, until = (document.get(name, "") for name in ("series", "until"))
    for name, text in (("series", series), ("until", until)):
        if not isinstance(text, str):
            raise BadRequest(name, str(text)[:40], "a text")
    return history, covariates, horizon, series, until


def _numbers(name: str, values: object, missing: bool = False) -> Floats:
    if not isinstance(values, list) or not 1 <= len(values) <= LONGEST:
        raise BadRequest(name[:80], "not a list of numbers", f"1 to {LONGEST} numbers")
    for value in values:
        if value is None and missing:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
            raise BadRequest(name[:80], str(value)[:40], "numbers of less than 1e15")
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def endpoint() -> tuple[Callable[[], None], Callable[[str], object]]:
    """Return `init` and `run` for a score.py: `init` opens the model, `run` predicts.

    `run` returns status 400 with the reason for an invalid request.
    """
    opened: list[tuple[ServedModel, Forecaster]] = []

    def init() -> None:
        served = open_model()
        opened[:] = [(served, Forecaster(served.folder))]

    def run(body: str) -> object:
        served, forecaster = opened[0]
        try:
            return reply(served, forecaster.answer(body))
        except BadRequest as error:
            return refusal(error)

    return init, run
