"""Points that break no constraint: drawn again and again, but not for ever.

Rejection is what every sampler here uses, TPE too: a trial that breaks a constraint never starts.
Optuna's own constraints only make such points less likely, and count a trial for learning it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from ml.core.errors import Problem, Refused
from ml.specs.plan.plan import SweepPlan
from ml.specs.search import constraints
from ml.specs.search.constraints import Expression, Unclear
from ml.specs.search.domain import Constraint
from ml.sweeps import chance
from ml.sweeps.space import cells, draw
from ml.sweeps.tpe import Proposal

# So many points in a row that break a constraint, and the constraints are what is wrong.
MOST_DRAWN, MOST_CELLS = 10_000, 100_000
# Points that the share of the space is estimated from.
PROBED = 1000


class Feasible:
    """The constraints of a sweep, and what they have refused."""

    def __init__(self, plan: SweepPlan) -> None:
        known = constraints.names_in(plan.search_space)
        self._most = MOST_CELLS if plan.algorithm == "grid" else MOST_DRAWN
        self._read: list[tuple[Constraint, Expression]] = []
        for one in plan.hints.constraints:
            try:
                self._read.append((one, constraints.parse(one.expression, known)))
            except Unclear as unclear:
                raise Refused(problem(one, unclear)) from None
        self._accepted = False

    def breaks(self, values: Mapping[str, object]) -> Constraint | None:
        """The first constraint that the values break; Refused for one that has no value there."""
        names = constraints.names_of(values) if self._read else {}
        for constraint, expression in self._read:
            try:
                if not expression.holds(names):
                    return constraint
            except Unclear as unclear:
                raise Refused(problem(constraint, unclear)) from None
        return None

    def first(self, propose: Callable[[int], Proposal | None]) -> tuple[Proposal, int] | None:
        """The first proposal that breaks no constraint, and how many did before; None for none.

        Raises Refused when too many in a row do, or when all that there are do.
        """
        broken: Counter[Constraint] = Counter()
        for attempt in range(self._most):
            proposal = propose(attempt)
            if proposal is None:
                if broken and not self._accepted:
                    break
                return None
            constraint = self.breaks(proposal.drawn.values)
            if constraint is None:
                self._accepted = True
                return proposal, attempt
            broken[constraint] += 1
        raise Refused(_nothing_left(broken))


def share(plan: SweepPlan) -> float:
    """Which part of the space the constraints leave, of some random points of it.

    Raises Refused when they leave nothing that can be found, before anything is run.
    """
    feasible = Feasible(plan)
    if plan.algorithm == "grid":
        every = islice(cells(plan.search_space), MOST_CELLS)
        shown = [feasible.breaks(cell.values) for cell in every]
    else:
        stream = chance.independent(0)
        shown = []
        while len(shown) < PROBED or (len(shown) < MOST_DRAWN and all(shown)):
            drawn = draw(plan.search_space, lambda one: chance.choose(one, stream))
            shown.append(feasible.breaks(drawn.values))
    if all(shown):
        raise Refused(_nothing_left(Counter(one for one in shown if one)))
    return sum(one is None for one in shown) / len(shown)


def problem(constraint: Constraint, unclear: Unclear) -> Problem:
    """A constraint that cannot be used, at its line."""
    return Problem(
        "constraint", unclear.found, unclear.expected, unclear.hint, place=constraint.place
    )


def _nothing_left(broken: Counter[Constraint]) -> Problem:
    said = ", ".join(f"`{one.expression}` refused {n:,}" for one, n in broken.most_common())
    worst = broken.most_common(1)[0][0]
    return Problem(
        "constraints-refuse-everything",
        f"none of {broken.total():,} points fulfils the constraints: {said}",
        "constraints that leave a part of the search space",
        "widen the space, or the constraint that refused most",
        worst.place,
    )
