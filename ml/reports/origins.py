"""Where a trial's values came from, in words: what `sampling.json` says of it.

Its `origin` has a `kind` and, by kind: `given` the place of the point in the hints, why, and what
was `sampled` besides (`rest`); `random` whether it was one of the first trials of a Bayesian sweep
(`startup`) or stands in for one (`instead_of`); `sobol` the `index` in the sequence; `grid` the
`cell` of how many; `tpe` which trials were `good` (`good_until` which score), how many `bad` and
which were `running`. `refused` counts the points before it that broke a constraint, and `drawn` has
the number that was chosen for each variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.reports.numbers import count, number


def short(origin: Mapping[str, Any]) -> str:
    """In two words at most, for a table."""
    kind = str(origin.get("kind", ""))
    if kind == "given":
        return f"given {origin.get('point', 0) + 1}"
    if kind == "random" and origin.get("startup"):
        return "random start"
    if kind == "sobol" and origin.get("index", -1) >= 0:
        return f"sobol {origin['index']}"
    if kind == "grid" and "cell" in origin:
        return f"cell {origin['cell']}"
    return {"tpe": "TPE"}.get(kind, kind)


def sentence(origin: Mapping[str, Any]) -> str:
    """Where the trial came from; "" when nobody recorded it."""
    words = {
        "given": _given,
        "random": _random,
        "sobol": lambda one: f"point {one.get('index')} of the Sobol sequence",
        "grid": lambda one: f"cell {one.get('cell')} of {one.get('of')} of the grid",
        "tpe": _tpe,
    }.get(str(origin.get("kind")))
    if words is None:
        return ""
    refused = origin.get("refused", 0)
    before = f"; {count(refused, 'point')} before it broke a constraint" if refused else ""
    return words(origin) + before


def name_of(path: str) -> str:
    """`model.1.depth`, the depth in the second branch of `model`, as a person calls it."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _given(origin: Mapping[str, Any]) -> str:
    said = f"point {origin.get('point', 0) + 1} of the hints ({origin.get('place', '')})"
    if origin.get("because"):
        said += f": {origin['because']}"
    if origin.get("sampled"):
        names = ", ".join(name_of(path) for path in origin["sampled"])
        said += f"; {names} by {short(origin.get('rest') or {}) or 'chance'}"
    return said


def _random(origin: Mapping[str, Any]) -> str:
    if origin.get("startup"):
        return f"at random, with {count(origin.get('ended', 0), 'trial')} to learn from so far"
    if origin.get("instead_of"):
        return "at random, since what TPE chose broke a constraint again and again"
    return "at random"


def _tpe(origin: Mapping[str, Any]) -> str:
    good, bad = len(origin.get("good") or ()), origin.get("bad", 0)
    until = origin.get("good_until")
    score = f" ({number(until)} or better)" if until is not None else ""
    running = len(origin.get("running") or ())
    still = f", {running} still running" if running else ""
    told = f"likely among the {count(good, 'good trial')}{score}, unlikely among the {bad} others"
    return f"by TPE: {told}{still}"
