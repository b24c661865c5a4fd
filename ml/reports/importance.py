"""Which parameters mattered: fANOVA on the recorded trials, and how far to believe it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml.reports.charts.scales import bounds, is_logarithmic, is_number
from ml.reports.sweeps import Sweep, Trial

# Below this a forest has nothing to learn from.
FEWEST = 10
# Below this share of the variance the forest has learnt next to nothing.
LITTLE = 0.2
# fANOVA takes 1 s for as many and 40 s for a thousand: they are taken evenly over the sweep.
MOST = 150
TREES = 64
SEED = 0


@dataclass(frozen=True)
class Importance:
    """Parameter → its share of the variance of the primary metric, largest first; they sum to 1.

    `shares` is empty when nothing can be said, and `why` says why. `explained` is the R² of the
    forest on trials that its trees have not seen (1 is perfect, 0 no better than the mean): the
    shares are of what the forest explains. It learnt from `trials`; `left_out` names parameters
    that only some trials have.
    """

    shares: tuple[tuple[str, float], ...] = ()
    explained: float = 0.0
    trials: int = 0
    left_out: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_weak(self) -> bool:
        """Whether the forest has learnt next to nothing: its order of parameters is chance."""
        return self.explained < LITTLE


def importance(sweep: Sweep) -> Importance:
    """fANOVA (Hutter, Hoos, Leyton-Brown 2014), as Optuna has it, on the completed trials.

    A trial that was stopped early has no final value and is left out, as Optuna does too.
    """
    ranked = sweep.of("completed")
    if len(ranked) < FEWEST:
        return Importance(why=f"it takes {FEWEST} completed trials, and there are {len(ranked)}")
    ranked = ranked[:: math.ceil(len(ranked) / MOST)]
    if len({trial.value for trial in ranked}) == 1:
        return Importance(why="every completed trial has the same value")
    common = [n for n in sweep.varied if all(n in trial.run.parameters for trial in ranked)]
    columns = {name: column for name in common if len(set(column := _column(ranked, name))) > 1}
    if len(columns) < 2:
        return Importance(why="fewer than two parameters differ between the completed trials")
    # One diverged trial would be all the variance that there is: it counts as very bad, no more.
    low, high = bounds([trial.value or 0.0 for trial in ranked])
    values = [min(high, max(low, trial.value or 0.0)) for trial in ranked]
    return Importance(
        shares=_shares(columns, values),
        explained=_explained(columns, values),
        trials=len(ranked),
        left_out=tuple(name for name in sweep.varied if name not in common),
    )


# The values of one parameter, a trial each: all numbers, or all text.
Column = list[float] | list[str]


def _column(trials: Sequence[Trial], name: str) -> Column:
    values = [trial.run.parameters[name] for trial in trials]
    if not all(is_number(value) for value in values):
        return [str(value) for value in values]
    numbers = [float(value) for value in values]
    if is_logarithmic(numbers):
        return [math.log(number) for number in numbers]
    return numbers


def _shares(columns: Mapping[str, Column], values: list[float]) -> tuple[tuple[str, float], ...]:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {
        name: CategoricalDistribution(sorted({str(value) for value in column}))
        if isinstance(column[0], str)
        else FloatDistribution(min(map(float, column)), max(map(float, column)))
        for name, column in columns.items()
    }
    study = optuna.create_study()
    study.add_trials(
        [
            optuna.create_trial(
                params={name: column[number] for name, column in columns.items()},
                distributions=space,
                value=value,
            )
            for number, value in enumerate(values)
        ]
    )
    evaluator = FanovaImportanceEvaluator(n_trees=TREES, seed=SEED)
    found = get_param_importances(study, evaluator=evaluator, params=list(columns))
    return tuple((str(name), float(share)) for name, share in found.items())


def _explained(columns: Mapping[str, Column], values: list[float]) -> float:
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    seen: list[list[float]] = []
    for column in columns.values():
        if isinstance(column[0], str):
            for choice in sorted({str(value) for value in column}):
                seen.append([float(value == choice) for value in column])
        else:
            seen.append([float(value) for value in column])
    forest = RandomForestRegressor(n_estimators=TREES, oob_score=True, random_state=SEED)
    forest.fit(np.array(seen).T, np.array(values))
    return float(forest.oob_score_)
