"""What the next trial is: a source's points, the hints first, and none that breaks a constraint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ml.specs.plan.plan import Sample, SweepPlan
from ml.specs.search import distributions
from ml.specs.search.distributions import Known
from ml.sweeps.feasibility import Constraints
from ml.sweeps.sources import Grid, Random, Sobol, Source
from ml.sweeps.space import Candidate


class Sampler:
    """Suggests trials and learns from how they ended.

    The points of the hints come first. A point that breaks a constraint is drawn again, a limited
    number of times. What a trial gets depends on its number, on the seed and on what is known of
    the other trials: the same plan and seed, asked and told the same, suggest the same.
    """

    def __init__(self, plan: SweepPlan, source: Source) -> None:
        self._space, self._hints, self._source = plan.search_space, plan.hints, source
        self._constraints = Constraints(plan)
        self._number = 0

    def ask(self) -> Sample | None:
        """The next trial; None when the space has no more.

        Raises Refused when no point that fulfils the constraints can be found.
        """
        sample = self._suggest()
        if sample:
            self._start(sample)
        return sample

    def recall(self, sample: Sample) -> None:
        """Repeat a sample that an earlier process of this sweep made.

        Trials are recalled in the order of their numbers, before anything is asked. A sequence
        (random, Sobol, a grid) continues after them; results are told again with `tell`.
        """
        if self._source.is_sequence:
            self._suggest()
        self._start(sample)

    def tell(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """How trial `number` ended: the values that it logged, and its score if it completed."""
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
            # A grid whose cells with these values were all used.
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

    def _propose(self, fixed: Mapping[str, Known]) -> tuple[Candidate, int] | None:
        number, source = self._number, self._source
        return self._constraints.first(lambda attempt: source.propose(number, attempt, fixed))


def sampler_for(plan: SweepPlan, seed: int) -> Sampler:
    """The sampler that the plan asks for; the same seed gives the same trials.

    Bayesian sampling of more than one trial at a time depends on which ends first: it repeats
    exactly with one at a time only.
    """
    if plan.algorithm == "grid":
        return Sampler(plan, Grid(plan))
    if plan.algorithm == "bayesian":
        from ml.sweeps.tpe import Tpe

        return Sampler(plan, Tpe(plan.search_space, plan.goal, seed))
    return Sampler(plan, (Sobol if plan.rule == "sobol" else Random)(plan, seed))
