"""Parameter importance: fANOVA on the completed trials, and how reliable it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml.reports.charts.scales import bounds, is_logarithmic, is_number
from ml.reports.sweep import Sweep, Trial

# With fewer trials a forest has nothing to learn from.
MIN_TRIALS = 10
# fANOVA takes 1 s for this many and 40 s for a thousand: more are sampled evenly over the sweep.
MAX_TRIALS = 150
# A forest that explains a smaller share of the variance has learnt next to nothing.
WEAK = 0.2
TREES = 64
SEED = 0


@dataclass(frozen=True)
class Importance:
    """Parameter → its share of the variance of the primary metric, largest first; they sum to 1.

    `shares` is empty when the importance cannot be computed, and `reason` says why. `explained`
    is the forest's out-of-bag R² (1 is perfect, 0 no better than the mean): the shares are of the
    variance that the forest explains. It learnt from `trials`; `excluded` names parameters that
    only some trials have.
    """

    shares: tuple[tuple[str, float], ...] = ()
    explained: float = 0.0
    trials: int = 0
    excluded: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_weak(self) -> bool:
        """Whether the forest explains so little that the order of the parameters is noise."""
        return self.explained < WEAK


# The values of one parameter, one per trial: all numbers, or all text.
Column = list[float] | list[str]


def importance(sweep: Sweep) -> Importance:
    """fANOVA (Hutter, Hoos, Leyton-Brown 2014) by Optuna, on the completed trials.

    A trial that was stopped early has no final value and is left out, as Optuna does too.
    """
    ranked = sweep.of("completed")
    if len(ranked) < MIN_TRIALS:
        return Importance(
            reason=f"it needs {MIN_TRIALS} completed trials, and there are {len(ranked)}"
        )
    ranked = ranked[:: math.ceil(len(ranked) / MAX_TRIALS)]
    if len({trial.value for trial in ranked}) == 1:
        return Importance(reason="every completed trial has the same value")
    common = [n for n in sweep.varied if all(n in trial.run.parameters for trial in ranked)]
    columns = {name: column for name in common if len(set(column := _column(ranked, name))) > 1}
    if len(columns) < 2:
        return Importance(reason="fewer than two parameters differ between the completed trials")
    # One diverged trial would make up all the variance, so values are clipped.
    low, high = bounds([trial.value or 0.0 for trial in ranked])
    values = [min(high, max(low, trial.value or 0.0)) for trial in ranked]
    return Importance(
        shares=_shares(columns, values),
        explained=_explained(columns, values),
        trials=len(ranked),
        excluded=tuple(name for name in sweep.varied if name not in common),
    )


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
    shares = get_param_importances(study, evaluator=evaluator, params=list(columns))
    return tuple((str(name), float(share)) for name, share in shares.items())


def _explained(columns: Mapping[str, Column], values: list[float]) -> float:
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    features: list[list[float]] = []
    for column in columns.values():
        if isinstance(column[0], str):
            for choice in sorted({str(value) for value in column}):
                features.append([float(value == choice) for value in column])
        else:
            features.append([float(value) for value in column])
    forest = RandomForestRegressor(n_estimators=TREES, oob_score=True, random_state=SEED)
    forest.fit(np.array(features).T, np.array(values))
    return float(forest.oob_score_)
