"""Azure ML's search spaces: what each distribution yields.

Definitions as Azure ML documents them ("Hyperparameter tuning a model (v2)", learn.microsoft.com):
quniform is `round(uniform(min, max) / q) * q`, loguniform is `exp(uniform(min, max))`, so that its
range is e^min … e^max, and likewise for the others; randint(upper) is an integer in [0, upper).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Protocol

from ml.specs.plan import Dimension
from ml.specs.problems import Exit, Problem, Refused

# The tails of a normal distribution that are never drawn: |z| stays below 6.
_TAIL = 1e-9


class Suggest(Protocol):
    """Who chooses: an Optuna trial, or a point of a sequence, in the same words."""

    def suggest_float(self, name: str, low: float, high: float) -> float:
        """A number in [low, high]."""
        ...

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """An integer in [low, high]."""
        ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        ...


def draw(space: Mapping[str, Dimension], chooser: Suggest, prefix: str = "") -> dict[str, object]:
    """One point of the space: a value a dimension, a mapping for a nested choice.

    In a conditional space only the branch that was chosen is drawn, under names of its own
    (`model.1.depth`), so that a sampler does not mix the `depth` of one branch with another's.
    """
    return {name: _value(f"{prefix}{name}", one, chooser) for name, one in space.items()}


def _value(path: str, dimension: Dimension, chooser: Suggest) -> object:
    kind, args = dimension.kind, dimension.args
    if kind == "choice":
        index = chooser.suggest_categorical(path, range(len(args)))
        return _chosen(f"{path}.{index}.", args[index], chooser)
    if kind == "randint":
        return chooser.suggest_int(path, 0, int(_number(args[0])) - 1)
    first, second = _number(args[0]), _number(args[1])
    if kind.endswith("uniform"):
        value = chooser.suggest_float(path, first, second)
    elif kind.endswith("normal"):
        share = chooser.suggest_float(path, _TAIL, 1 - _TAIL)
        value = first + second * NormalDist().inv_cdf(share)
    else:
        raise unknown_kind(dimension)
    if "log" in kind:
        value = math.exp(value)
    return _quantised(value, args[2]) if kind.startswith("q") else value


def _chosen(prefix: str, value: object, chooser: Suggest) -> object:
    """A choice's value; a mapping is a nested space whose plain members are constants."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: _value(f"{prefix}{name}", one, chooser) if isinstance(one, Dimension) else one
        for name, one in value.items()
    }


def _quantised(value: float, q: object) -> float:
    """`round(value / q) * q`: an integer for an integral q, no binary noise for a decimal one."""
    step = _number(q)
    nearest = round(value / step)
    if step == int(step):
        return nearest * int(step)
    return float(format(nearest * step, ".12g"))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a distribution's argument is a number, not {value!r}")
    return value


def points(space: Mapping[str, Dimension]) -> Iterator[dict[str, object]]:
    """Every point of a space of choices, the last dimension changing fastest (grid sampling)."""
    if not space:
        yield {}
        return
    name, *rest = space
    for value in _values(space[name]):
        for point in points({key: space[key] for key in rest}):
            yield {name: value, **point}


def _values(dimension: Dimension) -> Iterator[object]:
    if dimension.kind != "choice":
        raise Refused(
            Problem(
                "grid-needs-choices",
                f"`search_space.{dimension.name}` is `{dimension.kind}`",
                "`choice`: grid sampling takes no other distribution",
                "list its values, or use `sampling_algorithm: random`",
                dimension.place,
            )
        )
    for value in dimension.args:
        if isinstance(value, Mapping):
            nested = {key: one for key, one in value.items() if isinstance(one, Dimension)}
            for point in points(nested):
                yield {key: point.get(key, one) for key, one in value.items()}
        else:
            yield value


def unknown_kind(dimension: Dimension) -> Refused:
    """A distribution that nobody here knows (exit code 33)."""
    return Refused(
        Problem(
            "unknown-distribution",
            f"`search_space.{dimension.name}` is `{dimension.kind}`",
            "choice, randint, [q][log]uniform or [q][log]normal",
            place=dimension.place,
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )
