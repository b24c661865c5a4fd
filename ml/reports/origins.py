"""Where a trial's values came from, in words.

The `origin` of a sample has a `kind` and these keys:

- `given`: `point` and `place` of the point in the hints, `because`, and `sampled`, the parameters
  that the sampler added (`rest` is their origin);
- `random`: `startup` with `ended` for a first trial of a Bayesian sweep, or `instead_of`;
- `sobol`: the `index` in the sequence; `grid`: the `cell` `of` how many;
- `tpe`: the numbers of the `good` trials (`good_until` is their worst score) and of those that
  were `running`, and how many were `bad`.

Every kind has `refused`, the number of points before it that broke a constraint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.reports.formatting import count, number


def short(origin: Mapping[str, Any]) -> str:
    """The origin in at most two words, for a table."""
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
    """The origin in a sentence; "" when it was not recorded."""
    match origin.get("kind"):
        case "given":
            words = _given(origin)
        case "random":
            words = _random(origin)
        case "sobol":
            words = f"point {origin.get('index')} of the Sobol sequence"
        case "grid":
            words = f"cell {origin.get('cell')} of {origin.get('of')} of the grid"
        case "tpe":
            words = _tpe(origin)
        case _:
            return ""
    refused = origin.get("refused", 0)
    return words + (f"; {count(refused, 'point')} before it broke a constraint" if refused else "")


def _name(path: str) -> str:
    """`model.depth` for the path `model.1.depth`, the depth in the second branch of `model`."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _given(origin: Mapping[str, Any]) -> str:
    words = f"point {origin.get('point', 0) + 1} of the hints ({origin.get('place', '')})"
    if origin.get("because"):
        words += f": {origin['because']}"
    if origin.get("sampled"):
        names = ", ".join(map(_name, origin["sampled"]))
        words += f"; {names} by {short(origin.get('rest') or {}) or 'chance'}"
    return words


def _random(origin: Mapping[str, Any]) -> str:
    if origin.get("startup"):
        return f"at random, with {count(origin.get('ended', 0), 'trial')} to learn from so far"
    if origin.get("instead_of"):
        return "at random, because TPE's suggestions kept breaking a constraint"
    return "at random"


def _tpe(origin: Mapping[str, Any]) -> str:
    good, until = count(len(origin.get("good") or ()), "good trial"), origin.get("good_until")
    score = f" ({number(until)} or better)" if until is not None else ""
    running = len(origin.get("running") or ())
    also = f", {running} still running" if running else ""
    bad = origin.get("bad", 0)
    return f"by TPE: likely among the {good}{score}, unlikely among the {bad} others{also}"
