"""Generate the points of a search space: random numbers, a Sobol sequence, or a grid.

Bayesian sampling is in `ml.sweeps.tpe`, evolution in `ml.sweeps.evolution`.

Random sampling needs only numpy, so that `ml run` need not import Optuna; the numbers equal those
of Optuna's RandomSampler. Sobol and grid sampling are reimplemented too: Optuna's QMCSampler
supports no choices and its GridSampler no nested spaces, and Azure ML supports both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ml.core.errors import Problem, UserError
from ml.specs.plan.plans import Dimension, SweepPlan
from ml.specs.search import distributions
from ml.specs.search.distributions import FixedValue, Space, Variable, dimensions

if TYPE_CHECKING:
    from numpy.random import RandomState

# Chooses a value for a variable: a number between its bounds, or the index of a choice.
Choose = Callable[[Variable], float]


@dataclass(frozen=True)
class Candidate:
    """A point that becomes a trial unless it violates a constraint."""

    values: Mapping[str, object]  # hyperparameters of the trial
    raw: Mapping[str, float]  # variable's path → the number drawn for it
    # JSON about its source, such as `{"kind": "sobol"}`.
    origin: Mapping[str, Any] = field(default_factory=dict)


def draw(space: Space, choose: Choose, fixed: Mapping[str, FixedValue] | None = None) -> Candidate:
    """Draw one point of the space: a value for each dimension, a mapping for a nested choice.

    In a conditional space only the chosen branch is drawn. Its variables have paths of
    their own (`model.1.depth`), so that a sampler does not confuse the `depth` of two branches.
    `choose` is not called for variables that are `fixed`.
    """
    raw: dict[str, float] = {}

    def branch(members: Mapping[str, object], prefix: str) -> dict[str, object]:
        return {
            name: value_of(f"{prefix}{name}", member) if isinstance(member, Dimension) else member
            for name, member in members.items()
        }

    def value_of(path: str, dimension: Dimension) -> object:
        setting = (fixed or {}).get(path)
        raw[path] = setting.raw if setting else choose(distributions.variable(path, dimension))
        value = distributions.value(dimension, raw[path])
        if isinstance(value, Mapping):
            return branch(value, f"{path}.{int(raw[path])}.")
        return setting.value if setting else value

    return Candidate(branch(space, ""), raw)


def cells(
    space: Space, fixed: Mapping[str, FixedValue] | None = None, prefix: str = ""
) -> Iterator[Candidate]:
    """Yield every point of a space of choices with the `fixed` values (grid sampling).

    The last dimension varies fastest.
    """
    if not space:
        yield Candidate({}, {})
        return
    name, *remaining = space
    path = f"{prefix}{name}"
    setting = (fixed or {}).get(path)
    for index, value in enumerate(_choices(space[name])):
        if setting is not None and index != int(setting.raw):
            continue
        nested = dimensions(value) if isinstance(value, Mapping) else {}
        for inner in cells(nested, fixed, f"{path}.{index}."):
            chosen = {**value, **inner.values} if isinstance(value, Mapping) else value
            for others in cells({key: space[key] for key in remaining}, fixed, prefix):
                raw = {path: index, **inner.raw, **others.raw}
                yield Candidate({name: chosen, **others.values}, raw)


def size(space: Space) -> int:
    """Return the number of points that `cells` yields."""
    return math.prod(
        sum(
            size(dimensions(value)) if isinstance(value, Mapping) else 1
            for value in _choices(dimension)
        )
        for dimension in space.values()
    )


def depth(space: Mapping[str, object]) -> int:
    """Return the largest number of variables along any branch of the space."""
    count = 0
    for member in space.values():
        if isinstance(member, Dimension):
            branches = [depth(value) for value in member.args if isinstance(value, Mapping)]
            count += 1 + max(branches, default=0)
    return count


def _choices(dimension: Dimension) -> tuple[object, ...]:
    if dimension.kind != "choice":
        raise UserError(
            Problem(
                "grid-needs-choices",
                f"`search_space.{dimension.name}` is `{dimension.kind}`",
                "`choice`, the only distribution of grid sampling",
                "list its values, or use `sampling_algorithm: random`",
                dimension.place,
            )
        )
    return dimension.args


class Source(ABC):
    """A strategy for choosing points; Sampler adds the hints and constraints."""

    # Whether the next point depends only on the number of points before, not on their results.
    is_sequence = True

    @abstractmethod
    def propose(
        self, number: int, attempt: int, fixed: Mapping[str, FixedValue]
    ) -> Candidate | None:
        """Return a point with the `fixed` values for trial `number`; None if there are no more.

        `attempt` counts the rejected points for this trial.
        """

    def start(self, number: int, raw: Mapping[str, float]) -> None:  # noqa: B027
        """Record that trial `number` runs; `raw` has the number drawn for each variable's path."""

    def end(self, number: int, curve: Sequence[float], score: float | None) -> None:  # noqa: B027
        """Record the end of trial `number`: its logged values, and its score if it completed."""


class Random(Source):
    """Independent random points from one stream of random numbers."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        self._space, self._stream = plan.search_space, stream_of(seed)

    def propose(self, number: int, attempt: int, fixed: Mapping[str, FixedValue]) -> Candidate:
        """Return a random point; see `Source.propose`."""
        candidate = draw(self._space, lambda variable: choose(variable, self._stream), fixed)
        return replace(candidate, origin={"kind": "random"})


class Sobol(Source):
    """Points of a scrambled Sobol sequence, in its order."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        from scipy.stats import qmc

        self._space = plan.search_space
        self._engine = qmc.Sobol(d=max(1, depth(self._space)), scramble=True, rng=seed)

    def propose(self, number: int, attempt: int, fixed: Mapping[str, FixedValue]) -> Candidate:
        """Return the next point of the sequence; a trial with only fixed values uses none."""
        index, point = -1, iter(())

        def take(variable: Variable) -> float:
            nonlocal index, point
            if index < 0:
                index = self._engine.num_generated
                point = iter(self._engine.random(1)[0].tolist())
            return _scaled(variable, next(point))

        candidate = draw(self._space, take, fixed)
        return replace(candidate, origin={"kind": "sobol", "index": index})


class Grid(Source):
    """Every combination once, the last dimension varying fastest."""

    def __init__(self, plan: SweepPlan) -> None:
        self._space, self._size = plan.search_space, size(plan.search_space)
        self._cells = enumerate(cells(plan.search_space))
        # Cells that hints used ahead of their order.
        self._used: list[Mapping[str, float]] = []
        self._matching: Iterator[Candidate] = iter(())

    def propose(
        self, number: int, attempt: int, fixed: Mapping[str, FixedValue]
    ) -> Candidate | None:
        """Return the next unused cell, or the first unused one with the `fixed` values."""
        if not fixed:
            for index, cell in self._cells:
                if cell.raw not in self._used:
                    return replace(cell, origin={"kind": "grid", "cell": index, "of": self._size})
            return None
        if attempt == 0:
            self._matching = cells(self._space, fixed)
        for cell in self._matching:
            if cell.raw not in self._used:
                self._used.append(cell.raw)
                return replace(cell, origin={"kind": "grid", "of": self._size})
        return None


def stream_of(seed: int) -> RandomState:
    """Return numpy's random number generator for a seed."""
    from numpy.random import RandomState

    return RandomState(seed % 2**32)


def seed_of(seed: int, number: int, attempt: int) -> int:
    """Derive the seed of one draw from the sweep's seed, the trial's number and the attempt."""
    from numpy.random import SeedSequence

    return int(SeedSequence([seed % 2**64, number, attempt]).generate_state(1)[0])


def choose(variable: Variable, stream: RandomState) -> float:
    """Draw a variable's number, or a choice's index, uniformly, like Optuna's RandomSampler."""
    if variable.low == variable.high:
        return variable.low
    if variable.kind == "choice":
        return int(stream.uniform(0.0, 1.0, variable.choices).argmax())
    if variable.kind == "int":
        number = stream.uniform(variable.low - 0.5, variable.high + 0.5)
        return min(variable.high, max(variable.low, math.floor(number + 0.5)))
    number = float(stream.uniform(variable.low, variable.high))
    return min(number, math.nextafter(variable.high, variable.low))


def _scaled(variable: Variable, share: float) -> float:
    """Return the value at a share (in [0, 1)) of a variable's range."""
    if variable.kind == "float":
        return variable.low + (variable.high - variable.low) * share
    count = variable.high - variable.low + 1
    return min(variable.high, variable.low + int(count * share))
