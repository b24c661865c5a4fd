"""Where a trial's values came from, in words: what `sampling.json` says of it.

Its `origin` has a `kind` and, by kind: `given` the place of the point in the hints, why, and what
was `sampled` besides (`rest`); `random` whether it was one of the first trials of a Bayesian sweep
(`startup`) or stands in for one (`instead_of`); `sobol` the `index` in the sequence; `grid` the
`cell` of how many; `tpe` which trials were `good` (`good_until` which score), how many `bad`, which
were `running`, and for each of its `parameters` how much `likelier` its value is among the good
ones than among the others, and the `range` or the `choices` of the good ones. `refused` counts the
points before it that broke a constraint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml.reports.numbers import count, number


@dataclass(frozen=True)
class Choice:
    """One parameter of a point that TPE chose: how much likelier its value is among good trials.

    Those had numbers between the two of `range`, or these `choices`.
    """

    name: str
    likelier: float
    range: tuple[float, ...] = ()
    choices: tuple[Any, ...] = ()

    @property
    def had(self) -> str:
        """What the good trials had, in words."""
        if self.range:
            low, high = self.range
            return number(low) if low == high else f"{number(low)} … {number(high)}"
        return ", ".join(_spelt(one) for one in self.choices)


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


def choices(origin: Mapping[str, Any]) -> tuple[Choice, ...]:
    """The parameters of a point that TPE chose, the most telling first."""
    found = [
        Choice(
            name_of(path),
            float(one["likelier"]),
            tuple(one.get("range") or ()),
            tuple(one.get("choices") or ()),
        )
        for path, one in (origin.get("parameters") or {}).items()
    ]
    return tuple(sorted(found, key=lambda one: -abs(math.log(max(one.likelier, 1e-300)))))


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


def _spelt(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {one}" for name, one in value.items()) + "}"
    return "{" + ", ".join(map(str, value)) + "}" if isinstance(value, list) else str(value)
