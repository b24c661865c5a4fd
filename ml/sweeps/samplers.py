"""Choose the next trial: first the points of the hints, never one that violates a constraint.

If a point violates a constraint, another one is drawn, up to a limit. Optuna's own constraints
only make violations less likely, and learn of one only by running a trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from ml.core.errors import Problem, UserError
from ml.specs.plan.plans import Constraint, Sample, SweepPlan
from ml.specs.search import constraints, distributions
from ml.specs.search.constraints import Expression, InvalidExpression
from ml.specs.search.distributions import FixedValue
from ml.sweeps.sources import (
    Candidate,
    Grid,
    Random,
    Sobol,
    Source,
    cells,
    choose,
    draw,
    stream_of,
)

# If this many points in a row violate a constraint, the constraints are unsatisfiable.
MAX_DRAWS, MAX_CELLS = 10_000, 100_000
# The number of random points that `feasible_share` draws.
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
            except InvalidExpression as unclear:
                raise UserError(unclear.problem(constraint.place)) from None
            self._expressions.append((constraint, expression))
        self._accepted = False

    def broken(self, values: Mapping[str, object]) -> Constraint | None:
        """Return the first constraint that the values violate; None if there is none.

        Raises UserError if a constraint cannot be evaluated on them.
        """
        names = constraints.names_of(values) if self._expressions else {}
        for constraint, expression in self._expressions:
            try:
                if not expression.holds(names):
                    return constraint
            except InvalidExpression as unclear:
                raise UserError(unclear.problem(constraint.place)) from None
        return None

    def first(self, propose: Callable[[int], Candidate | None]) -> tuple[Candidate, int] | None:
        """Return the first proposed point that satisfies all constraints, and how many failed.

        Returns None if there are no more points. Raises UserError if too many in a row, or all
        points of the space, violate a constraint.
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
        raise UserError(_nothing_feasible(refused))


def feasible_share(plan: SweepPlan) -> float:
    """Return the share of the space that satisfies the constraints; estimated unless it is a grid.

    Raises UserError if no such point is found, before any trial runs.
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
        raise UserError(_nothing_feasible(Counter(filter(None, results))))
    return results.count(None) / len(results)


def _nothing_feasible(refused: Counter[Constraint]) -> Problem:
    counts = ", ".join(
        f"`{constraint.expression}` rejected {n:,}" for constraint, n in refused.most_common()
    )
    return Problem(
        "constraints-unsatisfiable",
        f"none of {refused.total():,} sampled points satisfies the constraints: {counts}",
        "constraints that part of the search space satisfies",
        "widen the search space, or relax the constraint that rejected most points",
        refused.most_common(1)[0][0].place,
    )


class Sampler:
    """Suggests trials and learns from their results.

    A trial's values depend on its number, on the seed and on the results of the other trials: the
    same plan, seed and calls give the same suggestions.
    """

    def __init__(self, plan: SweepPlan, source: Source) -> None:
        self._space, self._hints, self._source = plan.search_space, plan.hints, source
        self._constraints = Constraints(plan)
        self._number = 0

    def ask(self) -> Sample | None:
        """Return the next trial; None if the space has no more points.

        Raises UserError if no point that satisfies the constraints is found.
        """
        sample = self._suggest()
        if sample:
            self._start(sample)
        return sample

    def recall(self, sample: Sample) -> None:
        """Restore a sample that an earlier process of this sweep made.

        Restore trials in the order of their numbers, before the first `ask`. A sequence (random,
        Sobol, a grid) continues after them. Pass their results to `tell` again.
        """
        if self._source.is_sequence:
            self._suggest()
        self._start(sample)

    def tell(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """Record the end of trial `number`: its logged values, and its score if it completed."""
        self._source.end(number, curve, score)

    def _start(self, sample: Sample) -> None:
        self._source.start(sample.number, sample.origin.get("drawn") or {})
        self._number = sample.number + 1

    def _suggest(self) -> Sample | None:
        number, points = self._number, self._hints.points
        hint = points[number] if number < len(points) else None
        fixed = distributions.locate(self._space, hint.values) if hint else {}
        proposal = self._propose(fixed)
        if proposal is None and fixed:
            # All grid cells with these values were used.
            hint, proposal = None, self._propose({})
        if proposal is None:
            return None
        candidate, refused = proposal
        origin = dict(candidate.origin)
        if hint:
            origin = {"kind": "given", "point": number, "place": str(hint.place)}
            if free := sorted(candidate.raw.keys() - fixed.keys()):
                origin |= {"sampled": free, "rest": candidate.origin}
            if hint.because:
                origin["because"] = hint.because
        if refused:
            origin["refused"] = refused
        return Sample(number, candidate.values, {**origin, "drawn": dict(candidate.raw)})

    def _propose(self, fixed: Mapping[str, FixedValue]) -> tuple[Candidate, int] | None:
        number, source = self._number, self._source
        return self._constraints.first(lambda attempt: source.propose(number, attempt, fixed))


def sampler_for(plan: SweepPlan, seed: int) -> Sampler:
    """Return the sampler of the plan; the same seed gives the same trials.

    Bayesian sampling and evolution depend on which concurrent trial ends first: they are
    reproducible only with one trial at a time.
    """
    if plan.hints.sampler == "evolution":
        from ml.sweeps.evolution import Evolution

        return Sampler(plan, Evolution(plan, seed))
    if plan.algorithm == "grid":
        return Sampler(plan, Grid(plan))
    if plan.algorithm == "bayesian":
        from ml.sweeps.tpe import Tpe

        return Sampler(plan, Tpe(plan.search_space, plan.goal, seed))
    return Sampler(plan, (Sobol if plan.rule == "sobol" else Random)(plan, seed))
