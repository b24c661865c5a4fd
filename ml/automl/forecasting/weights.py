"""Choose the weights of an ensemble of forecasts.

With few origins and series, greedy selection overfits. Weights by a power of the inverse error
(Bates and Granger 1969, "The combination of forecasts") use all families. Power 0 is the equal
mean, which is hard to beat (Claeskens et al. 2016, "The forecast combination puzzle"). The method,
one of several powers or greedy selection, is chosen by its error at the following origins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ml.automl import ensembles
from ml.automl.ensembles import OutOfFoldPredictions
from ml.serving.scoring.forecasters import Values

POWERS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# Members with a smaller weight are dropped: they cost latency and hardly improve the forecast.
LEAST = 0.05
_TINY = 1e-9
Weights = Mapping[int, float]


def choose(
    out_of_fold: Sequence[OutOfFoldPredictions],
    families: Sequence[str],
    error: Callable[[OutOfFoldPredictions], float],
    calibrating: int = 0,
) -> list[Weights]:
    """Return the weights at each origin, and then the final ones: index of a trial → weight.

    Weights sum to 1. At an origin they depend on the errors at earlier origins; the final ones
    depend on the errors at all origins. `families` has the family of each trial. `error` returns 0
    for perfect predictions, more for worse ones. The first `calibrating` origins are not scored and
    have the weights of the first scored origin.
    """
    count = len(out_of_fold[0].rows)
    errors = np.array(
        [[error(_only(trial, [origin])) for origin in range(count)] for trial in out_of_fold]
    )

    def weigh(power: float | None, origins: Sequence[int]) -> Weights:
        if power is None and origins:
            chosen = [_only(trial, origins) for trial in out_of_fold]
            return ensembles.choose(chosen, lambda vote: -error(vote))
        means = errors[:, origins].mean(axis=1) if origins else np.zeros(len(errors))
        return _inverse(means, families, power or 0.0)

    ways = [*POWERS, None]
    losses, weights = dict[float | None, list[float]]((way, []) for way in ways), list[Weights]()
    for origin in range(count + 1):
        earlier = range(max(origin, calibrating))
        options = {way: weigh(way, earlier) for way in ways}
        is_scored = len(losses[None]) > 0
        best = min(ways, key=lambda way: np.mean(losses[way])) if is_scored else POWERS[-1]
        weights.append(options[best])
        if earlier and calibrating <= origin < count:
            for way, option in options.items():
                parts = [_only(out_of_fold[member], [origin]) for member in option]
                losses[way].append(error(ensembles.mean(parts, [*option.values()])))
    return weights


def _inverse(errors: Values, families: Sequence[str], power: float) -> Weights:
    """Return weights by the inverse error to a power, for the best trial of each family."""
    best: dict[str, int] = {}
    for trial, family in enumerate(families):
        if family not in best or errors[trial] < errors[best[family]]:
            best[family] = trial
    members = sorted(best.values())
    floored = np.maximum(errors[members], _TINY * (float(errors[members].max()) or 1.0))
    weights = (floored / floored.min()) ** -power
    weights = np.where(weights < LEAST * weights.sum(), 0.0, weights)
    shares = weights / weights.sum()
    return {trial: float(share) for trial, share in zip(members, shares, strict=True) if share}


def _only(out_of_fold: OutOfFoldPredictions, origins: Sequence[int]) -> OutOfFoldPredictions:
    """Return the predictions at these origins."""
    rows = [out_of_fold.rows[origin] for origin in origins]
    return OutOfFoldPredictions(
        rows, [out_of_fold.values[origin] for origin in origins], out_of_fold.labels
    )
