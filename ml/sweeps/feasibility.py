"""The constraints of a sweep: points that break one are drawn again, a limited number of times.

Optuna's own constraints only make such points less likely, and spend a trial to learn that one is
broken. Here a trial that breaks a constraint never starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from ml.core.errors import Problem, Refused
from ml.specs.plan.plan import Constraint, SweepPlan
from ml.specs.search import constraints
from ml.specs.search.constraints import Expression, Unclear
from ml.sweeps.sources import choose, stream_of
from ml.sweeps.space import Candidate, cells, draw

# When so many points in a row break a constraint, the constraints are wrong.
MAX_DRAWS, MAX_CELLS = 10_000, 100_000
# How many random points `feasible_share` looks at.
PROBES = 1000


class Constraints:
    """Checks points against the constraints of a sweep."""

    def __init__(self, plan: SweepPlan) -> None:
        names = constraints.names_in(plan.search_space)
        self._limit = MAX_CELLS if plan.algorithm == "grid" else MAX_DRAWS
        self._expressions: list[tuple[Constraint, Expression]] = []
        for constraint in plan.hints.constraints:
            try:
                expression = constraints.parse(constraint.expression, names)
            except Unclear as unclear:
                raise Refused(_unclear(constraint, unclear)) from None
            self._expressions.append((constraint, expression))
        self._accepted = False

    def broken(self, values: Mapping[str, object]) -> Constraint | None:
        """The first constraint that the values break; Refused for one that has no value there."""
        names = constraints.names_of(values) if self._expressions else {}
        for constraint, expression in self._expressions:
            try:
                if not expression.holds(names):
                    return constraint
            except Unclear as unclear:
                raise Refused(_unclear(constraint, unclear)) from None
        return None

    def first(self, propose: Callable[[int], Candidate | None]) -> tuple[Candidate, int] | None:
        """The first proposal that breaks no constraint, and how many before it did; None when
        there are no more points.

        Raises Refused when too many in a row break one, or every point that exists.
        """
        refused: Counter[Constraint] = Counter()
        for attempt in range(self._limit):
            candidate = propose(attempt)
            if candidate is None:
                if refused and not self._accepted:
                    break
                return None
            constraint = self.broken(candidate.values)
            if constraint is None:
                self._accepted = True
                return candidate, attempt
            refused[constraint] += 1
        raise Refused(_nothing_feasible(refused))


def feasible_share(plan: SweepPlan) -> float:
    """The share of the space that fulfils the constraints: counted for a grid, else estimated.

    Raises Refused when no such point can be found, before any trial runs.
    """
    checks = Constraints(plan)
    if plan.algorithm == "grid":
        grid = islice(cells(plan.search_space), MAX_CELLS)
        results = [checks.broken(cell.values) for cell in grid]
    else:
        stream = stream_of(0)
        results = []
        while len(results) < PROBES or (len(results) < MAX_DRAWS and all(results)):
            point = draw(plan.search_space, lambda variable: choose(variable, stream))
            results.append(checks.broken(point.values))
    if all(results):
        raise Refused(_nothing_feasible(Counter(filter(None, results))))
    return results.count(None) / len(results)


def _unclear(constraint: Constraint, unclear: Unclear) -> Problem:
    """A constraint that cannot be evaluated, at its line."""
    return Problem(
        "constraint", unclear.found, unclear.expected, unclear.hint, place=constraint.place
    )


def _nothing_feasible(refused: Counter[Constraint]) -> Problem:
    counts = ", ".join(f"`{one.expression}` refused {n:,}" for one, n in refused.most_common())
    return Problem(
        "constraints-refuse-everything",
        f"none of {refused.total():,} points fulfils the constraints: {counts}",
        "constraints that leave a part of the search space",
        "widen the space, or the constraint that refused most",
        refused.most_common(1)[0][0].place,
    )
