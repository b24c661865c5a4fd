"""Where the next trial's values come from, and the record of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ml.specs.plan.plan import SweepPlan
from ml.specs.search import distributions
from ml.specs.search.distributions import Known
from ml.sweeps import chance
from ml.sweeps.feasible import Feasible
from ml.sweeps.space import Drawn, cells, draw, size
from ml.sweeps.tpe import Proposal, Tpe


@dataclass(frozen=True)
class Suggestion:
    """The values of one trial, and where they came from (JSON values alone).

    `origin["kind"]` is `given` (a point of the hints), `random`, `sobol`, `grid` or `tpe`; what
    else is in it is said in `ml.sweeps.origins`. `number` counts the trials from 0.
    """

    values: Mapping[str, object]
    origin: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


class Source(Protocol):
    """One way of choosing points; it knows nothing of hints."""

    def propose(self, number: int, attempt: int, known: Mapping[str, Known]) -> Proposal | None:
        """A point for a trial in which what is known is as it is; None when there are no more."""
        ...

    def started(self, number: int, drawn: Mapping[str, float]) -> None:
        """A trial runs with what was chosen for its variables."""
        ...

    def ended(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """What a trial logged, and its score if it completed."""
        ...


class Sampler:
    """Suggests trials and learns from how they ended.

    The points of the hints come first, and no trial breaks a constraint: what does is drawn again
    (`Feasible` ends that in time). The same plan and seed, asked and told the same, suggest the
    same: what a trial gets depends on its number, on the seed and on what is known of the others.
    """

    def __init__(self, plan: SweepPlan, source: Source) -> None:
        self._space, self._hints, self._source = plan.search_space, plan.hints, source
        self._feasible = Feasible(plan)
        self._asked = 0

    def ask(self) -> Suggestion | None:
        """The next trial, None when the space has no more.

        Raises Refused when the constraints leave nothing that could be found.
        """
        number = self._asked
        given = self._hints.points[number] if number < len(self._hints.points) else None
        known = distributions.locate(self._space, given.values) if given else {}
        found = self._propose(number, known)
        if found is None and known:
            # A grid without a cell that is so: the others have taken them.
            given, known = None, {}
            found = self._propose(number, known)
        if found is None:
            return None
        proposal, refused = found
        origin = dict(proposal.origin)
        if given:
            left = sorted(proposal.drawn.raw.keys() - known.keys())
            rest = {"sampled": left, "rest": proposal.origin} if left else {}
            origin = {"kind": "given", "point": number, "place": str(given.place), **rest}
            origin |= {"because": given.because} if given.because else {}
        if refused:
            origin["refused"] = refused
        origin["drawn"] = dict(proposal.drawn.raw)
        return self._start(proposal.drawn.values, origin)

    def recall(self, values: Mapping[str, object], origin: Mapping[str, Any]) -> Suggestion:
        """The next trial as an earlier life of this sweep had suggested it, by what it recorded.

        Trials are recalled in the order of their numbers, before anything is asked. A sequence
        (random, Sobol, a grid) goes on behind it; what was learnt is told again with `tell`.
        """
        if not isinstance(self._source, Tpe):
            asked = self._asked
            self.ask()
            self._asked = asked
        return self._start(values, dict(origin))

    def tell(self, suggestion: Suggestion, curve: Sequence[float], score: float | None) -> None:
        """What became of it: the values that it logged, and its score if it completed."""
        self._source.ended(suggestion.number, curve, score)

    def _start(self, values: Mapping[str, object], origin: dict[str, Any]) -> Suggestion:
        suggestion = Suggestion(values, origin, self._asked)
        self._source.started(self._asked, origin.get("drawn") or {})
        self._asked += 1
        return suggestion

    def _propose(self, number: int, known: Mapping[str, Known]) -> tuple[Proposal, int] | None:
        return self._feasible.first(lambda at: self._source.propose(number, at, known))


def make(plan: SweepPlan, seed: int) -> Sampler:
    """The sampler that the plan asks for; the same seed gives the same trials.

    Bayesian sampling with more than one trial at a time depends on which ends first, and so does
    what it suggests: only one at a time repeats exactly.
    """
    if plan.algorithm == "grid":
        return Sampler(plan, Grid(plan))
    if plan.algorithm == "bayesian":
        return Sampler(plan, Tpe(plan.search_space, plan.goal, seed))
    return Sampler(plan, (Sobol if plan.rule == "sobol" else Random)(plan, seed))


class _Unmoved:
    """A source that learns nothing."""

    def started(self, number: int, drawn: Mapping[str, float]) -> None:
        """Nothing is learnt."""

    def ended(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """Nothing is learnt."""


class Random(_Unmoved):
    """Independent points, one after the other from one stream."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        self._space, self._stream = plan.search_space, chance.independent(seed)

    def propose(self, number: int, attempt: int, known: Mapping[str, Known]) -> Proposal:
        """See Source."""
        drawn = draw(self._space, lambda one: chance.choose(one, self._stream), known)
        return Proposal(drawn, {"kind": "random"})


class Sobol(_Unmoved):
    """Points of a low-discrepancy sequence, in its order."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        self._space = plan.search_space
        self._points = enumerate(chance.sobol(plan.search_space, seed))

    def propose(self, number: int, attempt: int, known: Mapping[str, Known]) -> Proposal:
        """See Source; a point that is given whole takes none of the sequence."""
        shares: Iterator[float] | None = None
        index = -1

        def choose(one: distributions.Variable) -> float:
            nonlocal shares, index
            if shares is None:
                index, point = next(self._points)
                shares = iter(point)
            return chance.at(one, next(shares))

        drawn = draw(self._space, choose, known)
        return Proposal(drawn, {"kind": "sobol", "index": index})


class Grid(_Unmoved):
    """Every combination once, the last dimension changing fastest."""

    def __init__(self, plan: SweepPlan) -> None:
        self._space = plan.search_space
        self._cells = enumerate(cells(plan.search_space))
        self._of = size(plan.search_space)
        # Cells that the hints have taken before their turn came.
        self._taken: list[Mapping[str, float]] = []
        self._fitting: Iterator[Drawn] = iter(())

    def propose(self, number: int, attempt: int, known: Mapping[str, Known]) -> Proposal | None:
        """See Source: the next cell, or with something known the first that is so."""
        if not known:
            for index, cell in self._cells:
                if cell.raw not in self._taken:
                    return Proposal(cell, {"kind": "grid", "cell": index, "of": self._of})
            return None
        if attempt == 0:
            self._fitting = cells(self._space, known)
        for cell in self._fitting:
            if cell.raw not in self._taken:
                self._taken.append(cell.raw)
                return Proposal(cell, {"kind": "grid", "of": self._of})
        return None
