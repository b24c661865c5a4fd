"""Random and low-discrepancy points: numbers for the variables of a space, from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ml.specs.plan.plan import Dimension
from ml.specs.search.distributions import Space, Variable

if TYPE_CHECKING:
    from numpy.random import RandomState


def independent(seed: int) -> RandomState:
    """The stream of random numbers of a whole sweep."""
    from numpy.random import RandomState

    return RandomState(seed % 2**32)


def of_trial(seed: int, number: int, attempt: int = 0) -> RandomState:
    """A stream for one trial, whatever was drawn before: a sweep that is resumed draws the same."""
    from numpy.random import MT19937, RandomState

    return RandomState(MT19937([seed % 2**64, number, attempt]))


def choose(variable: Variable, stream: RandomState) -> float:
    """One number for a variable, each equally likely.

    What Optuna's RandomSampler makes of the same stream, number by number (a test compares): a
    seed that was noted down with an earlier version still means the same trials.
    """
    if variable.low == variable.high:
        return variable.low
    if variable.kind == "choice":
        return int(stream.uniform(0.0, 1.0, variable.choices).argmax())
    if variable.kind == "int":
        at = stream.uniform(variable.low - 0.5, variable.high + 0.5)
        return min(variable.high, max(variable.low, math.floor(at + 0.5)))
    at = float(stream.uniform(variable.low, variable.high))
    return min(at, math.nextafter(variable.high, variable.low))


def sobol(space: Space, seed: int) -> Iterator[list[float]]:
    """Points of the unit cube that cover it evenly (scrambled Sobol sequence), without end."""
    from scipy.stats import qmc

    engine = qmc.Sobol(d=max(1, _leaves(space)), scramble=True, rng=seed)
    while True:
        yield engine.random(1)[0].tolist()


def at(variable: Variable, share: float) -> float:
    """What lies at a share (in [0, 1)) of a variable's range."""
    if variable.kind == "float":
        return variable.low + (variable.high - variable.low) * share
    count = variable.high - variable.low + 1
    return min(variable.high, variable.low + int(count * share))


def _leaves(space: Mapping[str, object]) -> int:
    """How many choices are made at most along any branch of the space."""
    count = 0
    for one in space.values():
        if isinstance(one, Dimension):
            nested = [_leaves(value) for value in one.args if isinstance(value, Mapping)]
            count += 1 + max(nested, default=0)
    return count
