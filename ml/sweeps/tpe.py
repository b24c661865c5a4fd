"""Sample by Optuna's multivariate TPESampler, with ask and tell on an in-memory study.

Settings are Optuna's defaults: 24 candidates, and the best tenth of the trials that ended (at
most 25) are the good ones. Running trials count among the others, so that two concurrent trials
do not get the same point. Every draw has its own seed, derived from the sweep's seed and the
trial's number: a resumed sweep repeats the same draws.
"""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ml.specs.search.distributions import FixedValue, Space, Variable, variables
from ml.sweeps.objective import Goal
from ml.sweeps.sources import Candidate, Source, choose, draw, seed_of, stream_of

if TYPE_CHECKING:
    from optuna import Trial

# TPE starts after this many trials have ended; earlier ones are random. Optuna's default.
STARTUP = 10
# After this many draws in a row that violate a constraint, the next is random.
PATIENCE = 20
COMPLETED, STOPPED = 0, 1


class Tpe(Source):
    """Points that are likely among good trials and unlikely among the others."""

    is_sequence = False

    def __init__(self, space: Space, goal: Goal, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._seed = space, seed
        self._sign = -1.0 if goal == "maximize" else 1.0
        self._variables = variables(space)
        self._fixed_sampler = optuna.samplers.RandomSampler()
        self._study = optuna.create_study(direction=goal, sampler=self._fixed_sampler)
        self._running: dict[int, Trial] = {}
        # The trials that ended, best first, as Optuna ranks them: completed ones by their score,
        # then those that were stopped, the longest first.
        self._ranked: list[tuple[int, float, float, int]] = []

    def propose(self, number: int, attempt: int, fixed: Mapping[str, FixedValue]) -> Candidate:
        """Return a point that TPE suggests, or a random one; see `Source.propose`."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        ended = len(self._ranked)
        if ended < STARTUP or attempt >= PATIENCE:
            stream = stream_of(seed_of(self._seed, number, attempt))
            candidate = draw(self._space, lambda variable: choose(variable, stream), fixed)
            why = {"startup": True, "ended": ended} if ended < STARTUP else {"instead_of": "tpe"}
            return replace(candidate, origin={"kind": "random", **why})
        seed = seed_of(self._seed, number, attempt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            # `group`: the variables of a branch are sampled jointly, from the trials that had them.
            self._study.sampler = TPESampler(seed=seed, multivariate=True, group=True)
        trial = self._study.ask()
        candidate = draw(self._space, lambda variable: _suggest(trial, variable), fixed)
        # Discard it for now: it enters the history in `start`, unless a constraint rejects it.
        self._study.tell(trial, state=TrialState.FAIL)
        return replace(candidate, origin=self._origin())

    def start(self, number: int, raw: Mapping[str, float]) -> None:
        """Add trial `number` to the study as running; see `Source.start`."""
        self._study.sampler = self._fixed_sampler
        self._study.enqueue_trial(dict(raw))
        trial = self._running[number] = self._study.ask()
        for path in raw:
            _suggest(trial, self._variables[path])

    def end(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """Record the end of a trial; ignore it if it failed or logged a NaN or infinity."""
        from optuna.trial import TrialState

        trial = self._running.pop(number)
        if score is not None:
            self._study.tell(trial, score)
            bisect.insort(self._ranked, (COMPLETED, self._sign * score, 0.0, number))
        elif curve and all(math.isfinite(value) for value in curve):
            trial.report(curve[-1], len(curve))
            self._study.tell(trial, state=TrialState.PRUNED)
            key = (STOPPED, -float(len(curve)), self._sign * curve[-1], number)
            bisect.insort(self._ranked, key)
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _origin(self) -> dict[str, Any]:
        """Return TPE's state as JSON: good trials, the last good score, the number of others."""
        good = self._ranked[: min(math.ceil(0.1 * len(self._ranked)), 25)]
        scores = [self._sign * value for kind, value, _, _ in good if kind == COMPLETED]
        return {
            "kind": "tpe",
            "good": sorted(number for *_, number in good),
            "bad": len(self._ranked) - len(good),
            "running": sorted(self._running),
            "good_until": scores[-1] if scores else None,
        }


def _suggest(trial: Trial, variable: Variable) -> float:
    if variable.kind == "choice":
        return int(trial.suggest_categorical(variable.path, range(variable.choices)))
    if variable.kind == "int":
        return int(trial.suggest_int(variable.path, int(variable.low), int(variable.high)))
    return float(trial.suggest_float(variable.path, variable.low, variable.high))
