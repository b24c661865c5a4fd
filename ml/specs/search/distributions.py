"""Azure ML's distributions: converts drawn numbers to values and values back to numbers.

Definitions are Azure ML's ("Hyperparameter tuning a model (v2)", learn.microsoft.com): quniform is
`round(uniform(min, max) / q) * q`. loguniform is `exp(uniform(min, max))`, with the range e^min …
e^max; the others are alike. randint(upper) is an integer in [0, upper).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from ml.core.errors import Exit, Problem, UserError
from ml.specs.plan.plans import Dimension

# Probability of each excluded tail of a normal distribution: |z| stays below 6.
_TAIL = 1e-9
# Relative tolerance for a number in a spec at the bounds of a distribution.
_CLOSE = 1e-9

Space = Mapping[str, Dimension]


@dataclass(frozen=True)
class Variable:
    """The number that a sampler draws for a dimension, in [low, high]."""

    path: str  # unique in the sweep: `depth`, or `model.1.depth` in the second branch of `model`
    kind: Literal["float", "int", "choice"]  # `choice`: the index of a value
    low: float
    high: float

    @property
    def choices(self) -> int:
        """Return the number of choices."""
        return int(self.high) + 1


@dataclass(frozen=True)
class FixedValue:
    """A value of a hyperparameter that was not sampled."""

    raw: float  # the number that a sampler would have drawn for it
    value: object


class Misfit(Exception):
    """The error of a value that its dimension cannot yield; `path` are the keys of the value."""

    def __init__(self, path: tuple[str, ...], actual: str, expected: str) -> None:
        super().__init__(actual)
        self.path, self.actual, self.expected = path, actual, expected


def variable(path: str, dimension: Dimension) -> Variable:
    """Return the variable that a sampler draws for a dimension; `path` is its name in the sweep.

    Raises UserError with exit code 33 for an unknown distribution.
    """
    kind, args = dimension.kind, dimension.args
    if kind == "choice":
        return Variable(path, "choice", 0, len(args) - 1)
    if kind == "randint":
        return Variable(path, "int", 0, int(number(args[0])) - 1)
    if kind.endswith("uniform"):
        return Variable(path, "float", number(args[0]), number(args[1]))
    if kind.endswith("normal"):
        return Variable(path, "float", _TAIL, 1 - _TAIL)
    raise unknown_kind(dimension)


def value(dimension: Dimension, raw: float) -> object:
    """Return the dimension's value for a drawn number; a choice may yield a nested space."""
    kind, args = dimension.kind, dimension.args
    if kind == "choice":
        return args[int(raw)]
    if kind == "randint":
        return int(raw)
    if kind.endswith("normal"):
        raw = number(args[0]) + number(args[1]) * NormalDist().inv_cdf(raw)
    if "log" in kind:
        raw = math.exp(raw)
    return quantised(raw, number(args[2])) if kind.startswith("q") else raw


def quantised(exact: float, q: float) -> float:
    """Return `round(exact / q) * q`: an int for an integral q, else with 12 significant digits."""
    nearest = round(exact / q)
    if q == int(q):
        return nearest * int(q)
    return float(format(nearest * q, ".12g"))


def number(argument: object) -> float:
    """Return an argument of a distribution as a number; raise TypeError for anything else."""
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        raise TypeError(f"a distribution's argument is a number, not {argument!r}")
    return argument


def locate(space: Space, point: Mapping[str, object]) -> dict[str, FixedValue]:
    """Map the path of each variable that a point fixes to its value; points may be partial.

    Raises Misfit for an unknown name and for a value that the space cannot yield.
    """
    variables: dict[str, FixedValue] = {}
    _locate(space, point, "", (), variables)
    return variables


def _locate(
    space: Space,
    point: Mapping[str, object],
    prefix: str,
    keys: tuple[str, ...],
    variables: dict[str, FixedValue],
) -> None:
    for name, value in point.items():
        path, where = f"{prefix}{name}", (*keys, str(name))
        if name not in space:
            names = ", ".join(f"`{known_name}`" for known_name in space)
            raise Misfit(
                where, f"`{name}` is not a hyperparameter of this sweep", f"one of {names}"
            )
        dimension = space[name]
        if dimension.kind == "choice" and isinstance(value, Mapping):
            index, inside = _branch(dimension, value, path, where)
            variables |= {path: FixedValue(index, value), **inside}
        else:
            variables[path] = FixedValue(_raw(dimension, value, where), _spelt(dimension, value))


def dimensions(branch: Mapping[str, object]) -> dict[str, Dimension]:
    """Return the hyperparameters of a branch of a nested choice, without its constants."""
    return {name: member for name, member in branch.items() if isinstance(member, Dimension)}


def _branch(
    dimension: Dimension, values: Mapping[str, object], path: str, keys: tuple[str, ...]
) -> tuple[int, dict[str, FixedValue]]:
    """Return (index, variables) of the only branch that can yield these values.

    Raises Misfit if no branch can, or several can.
    """
    fitting: list[tuple[int, dict[str, FixedValue]]] = []
    misfits: list[Misfit] = []
    for index, branch in enumerate(dimension.args):
        if not isinstance(branch, Mapping) or not values.keys() <= branch.keys():
            continue
        free = dimensions(branch)
        if all(same(branch[key], member) for key, member in values.items() if key not in free):
            inside: dict[str, FixedValue] = {}
            free_values = {key: member for key, member in values.items() if key in free}
            try:
                _locate(free, free_values, f"{path}.{index}.", keys, inside)
                fitting.append((index, inside))
            except Misfit as misfit:
                misfits.append(misfit)
    if len(fitting) == 1:
        return fitting[0]
    description = ", ".join(f"{name}: {member}" for name, member in values.items()) or "no name"
    if fitting:
        message = f"{len(fitting)} branches of `{dimension.name}` have {description}"
        raise Misfit(keys, message, "names or constants of a single branch")
    if len(misfits) == 1:
        raise misfits[0]
    branches = " or ".join(
        "{" + ", ".join(map(str, member)) + "}"
        for member in dimension.args
        if isinstance(member, Mapping)
    )
    message = f"no branch of `{dimension.name}` has {description}"
    raise Misfit(keys, message, branches or f"one of {_listed(dimension.args)}")


def same(first: object, second: object) -> bool:
    """Return True if two values are the same number or text: 1 equals 1.0, but not True."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return first == second


def _listed(choices: tuple[object, ...]) -> str:
    return ", ".join(str(choice) for choice in choices if not isinstance(choice, Mapping))


def _spelt(dimension: Dimension, value: object) -> object:
    """Return a value in the type of the space: 2.0 as the choice 2, or 20.0 with step 5 as 20."""
    if dimension.kind == "choice":
        return next(choice for choice in dimension.args if same(choice, value))
    if dimension.kind.startswith("q"):
        return quantised(number(value), number(dimension.args[2]))
    return int(number(value)) if dimension.kind == "randint" else float(number(value))


def _raw(dimension: Dimension, value: object, keys: tuple[str, ...]) -> float:
    kind, args = dimension.kind, dimension.args
    if kind == "choice":
        for index, choice in enumerate(args):
            if not isinstance(choice, Mapping) and same(choice, value):
                return index
        raise Misfit(keys, f"{value!r} is not a choice of `{keys[-1]}`", f"one of {_listed(args)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Misfit(
            keys, f"`{keys[-1]}` is {value!r}", f"a number: it is {_definition(dimension)}"
        )
    low, high = bounds(dimension)
    margin = _CLOSE * max(abs(low), abs(high), _CLOSE)
    if not low - margin <= value <= high + margin:
        message = f"`{keys[-1]}` is {value:g}, outside of its {_definition(dimension)}"
        raise Misfit(keys, message, f"{low:.6g} to {high:.6g}")
    step = 1.0 if kind == "randint" else number(args[2]) if kind.startswith("q") else 0.0
    if step and abs(value / step - round(value / step)) > 1e-6:
        message = f"`{keys[-1]}` is {value:g}, which {_definition(dimension)} never yields"
        raise Misfit(keys, message, f"a multiple of {step:g}")
    if kind == "randint":
        return int(value)
    raw = math.log(max(value, 1e-300)) if "log" in kind else float(value)
    if kind.endswith("normal"):
        raw = NormalDist(number(args[0]), number(args[1])).cdf(raw)
    sampled = variable("", dimension)
    return min(sampled.high, max(sampled.low, raw))


def bounds(dimension: Dimension) -> tuple[float, float]:
    """Return the smallest and largest number that a distribution (not a choice) yields."""
    sampled = variable("", dimension)
    low, high = value(dimension, sampled.low), value(dimension, sampled.high)
    assert isinstance(low, int | float) and isinstance(high, int | float)
    return low, high


def _definition(dimension: Dimension) -> str:
    return f"{dimension.kind}({', '.join(str(argument) for argument in dimension.args)})"


def variables(space: Space, prefix: str = "") -> dict[str, Variable]:
    """Return every variable of a space by path, including those in nested choices."""
    by_path: dict[str, Variable] = {}
    for name, dimension in space.items():
        path = f"{prefix}{name}"
        by_path[path] = variable(path, dimension)
        for index, branch in enumerate(dimension.args if dimension.kind == "choice" else ()):
            if isinstance(branch, Mapping):
                by_path |= variables(dimensions(branch), f"{path}.{index}.")
    return by_path


def unknown_kind(dimension: Dimension) -> UserError:
    """Return the error of an unknown distribution (exit code 33)."""
    return UserError(
        Problem(
            "unknown-distribution",
            f"`search_space.{dimension.name}` is `{dimension.kind}`",
            "choice, randint, [q][log]uniform or [q][log]normal",
            "type: uniform",
            dimension.place,
        ),
        exit_code=Exit.CANNOT_HONOUR,
    )
