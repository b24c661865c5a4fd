"""Sample a conditional search space by evolution, with aging.

After Real et al., Regularized Evolution for Image Classifier Architecture Search (AAAI 2019): the
parent is the best of a few trials from the youngest `POPULATION`, and one of its values is
mutated. Trials leave the population by age, so that a lucky result does not dominate the search.

Optuna's NSGAIISampler draws conditional parameters at random, hence this module. As in
`ml.sweeps.tpe`, each draw has its own seed: a resumed sweep repeats the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ml.core.errors import UserError
from ml.specs.plan.plans import SweepPlan
from ml.specs.search import constraints
from ml.specs.search.constraints import InvalidExpression
from ml.specs.search.distributions import FixedValue, Variable, variables
from ml.specs.search.hints import POPULATION
from ml.sweeps.sources import Candidate, Source, choose, draw, seed_of, stream_of

if TYPE_CHECKING:
    from numpy.random import RandomState

# The number of trials that compete to be the parent; the paper has 25.
TOURNAMENT = 6
# Standard deviation of the change of a number, as a share of its range.
STEP = 0.2
# After this many draws in a row that violate a constraint or repeat a trial, draw at random.
PATIENCE = 20


class Evolution(Source):
    """Points that differ in one value from a good trial."""

    is_sequence = False

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        self._space, self._seed = plan.search_space, seed
        self._sign = -1.0 if plan.goal == "maximize" else 1.0
        self._variables = variables(plan.search_space)
        names = constraints.names_in(plan.search_space)
        self._conditions = [
            (condition, constraints.parse(condition.expression, names))
            for condition in plan.hints.conditions
        ]
        self._tried: dict[int, Mapping[str, float]] = {}  # `raw` by trial number
        self._losses: dict[int, float] = {}  # by number of a completed trial; lower is better

    def propose(self, number: int, attempt: int, fixed: Mapping[str, FixedValue]) -> Candidate:
        """Return a mutated copy of a good trial, or a random point; see `Source.propose`."""
        stream = stream_of(seed_of(self._seed, number, attempt))
        population = sorted(self._losses)[-POPULATION:]
        if len(population) < POPULATION:
            origin = {"kind": "random", "startup": True, "ended": len(population)}
            return replace(self._random(stream, fixed), origin={**origin, "before": "evolution"})
        picked = [int(member) for member in stream.permutation(population)[:TOURNAMENT]]
        parent = min(picked, key=lambda member: (self._losses[member], member))
        for _ in range(PATIENCE if attempt < PATIENCE else 0):
            candidate = self._changed(self._tried[parent], stream, fixed)
            if candidate.raw not in self._tried.values():
                score = self._sign * self._losses[parent]
                origin = {"kind": "evolution", "parent": parent, "score": score}
                return replace(candidate, origin=origin)
        origin = {"kind": "random", "instead_of": "evolution"}
        return replace(self._random(stream, fixed), origin=origin)

    def start(self, number: int, raw: Mapping[str, float]) -> None:
        """Record that trial `number` runs; see `Source.start`."""
        self._tried[number] = dict(raw)

    def end(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """Record the end of a trial; one without a score is never a parent."""
        if score is not None:
            self._losses[number] = self._sign * score

    def _random(self, stream: RandomState, fixed: Mapping[str, FixedValue]) -> Candidate:
        """Return a random point that was not tried, or after `PATIENCE` attempts any point."""
        for _ in range(PATIENCE):
            point = draw(self._space, lambda variable: choose(variable, stream), fixed)
            point, _inactive = self._settled(point, fixed)
            if point.raw not in self._tried.values():
                break
        return point

    def _changed(
        self, raw: Mapping[str, float], stream: RandomState, fixed: Mapping[str, FixedValue]
    ) -> Candidate:
        """Return the point with one variable mutated; variables that it activates are drawn."""
        _, inactive = self._settled(self._with(raw, {}), {})
        active = [path for path in raw if path.partition(".")[0] not in inactive]
        free = [
            path
            for path in active
            if path not in fixed and self._variables[path].low < self._variables[path].high
        ]
        changed = free[stream.randint(len(free))] if free else ""

        def take(variable: Variable) -> float:
            if variable.path == changed:
                return _another(variable, raw[changed], stream)
            return raw[variable.path] if variable.path in active else choose(variable, stream)

        return self._settled(draw(self._space, take, fixed), fixed)[0]

    def _settled(
        self, point: Candidate, fixed: Mapping[str, FixedValue]
    ) -> tuple[Candidate, set[str]]:
        """Set each inactive parameter to its first value; return the point and these parameters.

        A condition is evaluated on the result of the conditions before it.
        """
        inactive: set[str] = set()
        for condition, expression in self._conditions:
            try:
                if expression.holds(constraints.names_of(point.values)):
                    continue
            except InvalidExpression as unclear:
                raise UserError(unclear.problem(condition.place)) from None
            inactive.add(condition.parameter)
            numbers = {**point.raw, condition.parameter: self._variables[condition.parameter].low}
            point = self._with(numbers, fixed)
        return point, inactive

    def _with(self, raw: Mapping[str, float], fixed: Mapping[str, FixedValue]) -> Candidate:
        return draw(self._space, lambda variable: raw.get(variable.path, variable.low), fixed)


def _another(variable: Variable, raw: float, stream: RandomState) -> float:
    """Mutate a value: another choice, uniformly; or a number nearby, within its bounds."""
    if variable.kind == "choice":
        index = int(stream.randint(variable.choices - 1))
        return index + (index >= raw)
    number = float(stream.normal(raw, STEP * (variable.high - variable.low)))
    number = min(variable.high, max(variable.low, number))
    return round(number) if variable.kind == "int" else number
