"""Where the next trial's values come from: Optuna for random and Bayesian sampling, or a list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ml.specs.plan import Dimension, SweepPlan
from ml.sweeps.space import draw, points


@dataclass(frozen=True)
class Suggestion:
    """The values of one trial, where they came from, and the sampler's own handle to it.

    `origin` is JSON; its `kind` is random, sobol, grid or tpe. What Optuna was asked for is in
    `drawn`, in its own coordinates.
    """

    values: Mapping[str, object]
    origin: Mapping[str, Any] = field(default_factory=dict)
    handle: Any = None


class Sampler(Protocol):
    """Suggests trials and learns from how they ended."""

    def ask(self) -> Suggestion | None:
        """The next trial, None when the space has no more."""
        ...

    def tell(self, suggestion: Suggestion, curve: Sequence[float], score: float | None) -> None:
        """What became of it: the finite values that it logged, and its score if it completed."""
        ...


def make(plan: SweepPlan, seed: int) -> Sampler:
    """The sampler that the plan asks for; the same seed gives the same trials.

    Bayesian sampling with more than one trial at a time depends on which ends first, and so does
    what it suggests: only one at a time repeats exactly.
    """
    if plan.algorithm == "grid":
        return Listed(points(plan.search_space), "grid")
    if plan.algorithm == "random" and plan.rule == "sobol":
        return Listed(sobol(plan.search_space, seed), "sobol")
    return Optuna(plan.search_space, plan.algorithm, plan.goal, seed, plan.max_concurrent_trials)


class Listed:
    """Trials that are known before the sweep begins: a grid, a low-discrepancy sequence."""

    def __init__(self, values: Iterator[dict[str, object]], kind: str) -> None:
        self._values, self._kind = values, kind

    def ask(self) -> Suggestion | None:
        """The next of the list."""
        values = next(self._values, None)
        return None if values is None else Suggestion(values, {"kind": self._kind})

    def tell(self, suggestion: Suggestion, curve: Sequence[float], score: float | None) -> None:
        """Nothing is learnt."""


class Optuna:
    """Optuna's random or TPE sampler behind ask and tell; its study lives in memory."""

    def __init__(
        self,
        space: Mapping[str, Dimension],
        algorithm: Literal["random", "bayesian", "grid"],
        goal: Literal["maximize", "minimize"],
        seed: int,
        concurrent: int,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._kind = "random" if algorithm == "random" else "tpe"
        sampler: Any
        if algorithm == "random":
            sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            # While a trial runs it counts as a poor one, so that two do not get the same point.
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=concurrent > 1)
        self._study = optuna.create_study(direction=goal, sampler=sampler)
        self._states = optuna.trial.TrialState

    def ask(self) -> Suggestion:
        """A point that the sampler chose."""
        trial = self._study.ask()
        values = draw(self._space, trial)
        return Suggestion(values, {"kind": self._kind, "drawn": trial.params}, trial)

    def tell(self, suggestion: Suggestion, curve: Sequence[float], score: float | None) -> None:
        """A score completes the trial; one that was ended early is pruned at its last value."""
        trial = suggestion.handle
        if score is not None:
            self._study.tell(trial, score)
            return
        finite = [value for value in curve if math.isfinite(value)]
        for step, value in enumerate(finite):
            trial.report(value, step)
        state = self._states.PRUNED if finite and len(finite) == len(curve) else self._states.FAIL
        self._study.tell(trial, state=state)


def sobol(space: Mapping[str, Dimension], seed: int) -> Iterator[dict[str, object]]:
    """Points that cover the space evenly (scrambled Sobol sequence), without end."""
    from scipy.stats import qmc

    engine = qmc.Sobol(d=max(1, _leaves(space)), scramble=True, rng=seed)
    while True:
        yield draw(space, _Point(engine.random(1)[0].tolist()))


def _leaves(space: Mapping[str, object]) -> int:
    """How many choices are made at most along any branch of the space."""
    count = 0
    for one in space.values():
        if isinstance(one, Dimension):
            nested = [_leaves(value) for value in one.args if isinstance(value, Mapping)]
            count += 1 + max(nested, default=0)
    return count


class _Point:
    """Answers a sampler's questions from a point of the unit cube, one coordinate each."""

    def __init__(self, coordinates: list[float]) -> None:
        self._rest = iter(coordinates)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return low + (high - low) * next(self._rest)

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return min(high, low + int((high - low + 1) * next(self._rest)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return choices[min(len(choices) - 1, int(len(choices) * next(self._rest)))]
