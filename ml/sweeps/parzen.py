"""The densities of the tree-structured Parzen estimator: Optuna's, for all parameters at once.

The formulas and settings are those of Optuna's multivariate TPE (`_ParzenEstimator` of
optuna.samplers._tpe, 5.0: prior weight 1, magic clip, no end points, `default_weights`) and so are
the results (tests compare kernels, candidates and densities). Optuna builds the kernels parameter
by parameter in Python; here they are rows of arrays, and what a parameter contributes by itself is
known too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ml.specs.search.distributions import Variable

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import RandomState

CANDIDATES = 24
# How many candidates are looked at together: so many that the numbers (a kernel each) stay in a
# processor's own memory, and the program's does not grow with the trials.
_PARTS, _CACHED = (24, 12, 8, 6, 4, 3, 2), 8192
# Within so many widths on both sides lies a whole normal distribution: what is left of it (1e-19)
# is nothing beside 1.
_ALL = 9.0
# Trials that count whole, the latest ones; those before count the less the older they are.
_RECENT = 25


class Density:
    """A mixture with a kernel for each row (trial × variable), in their order, and the prior last.

    A number has a normal kernel (`mu` and `sigma`: number × kernel) that ends at the variable's
    bounds, an integer its share of one; a choice has a weight for each of its values.
    """

    def __init__(self, variables: Sequence[Variable], rows: ndarray) -> None:
        import numpy as np

        self.weights = _weights(len(rows))
        numbers = [at for at, one in enumerate(variables) if one.kind != "choice"]
        asked = [(variables[at], 0.5 if variables[at].kind == "int" else 0.0) for at in numbers]
        bounds = [(one.low, one.high, half) for one, half in asked]
        self.low, self.high, self.half = (
            np.array(bounds, dtype=float).reshape(-1, 3, 1).swapaxes(0, 1)
        )
        self.start, self.end = self.low - self.half, self.high + self.half
        self.mu, self.sigma = _kernels(rows[:, numbers].T, self.start, self.end)
        self._mass = _mass(*((end - self.mu) / self.sigma for end in (self.start, self.end)))
        # Where each variable is in a point, and which row of the above it has.
        is_whole = self.half[:, 0] > 0
        self._floats = [at for at, whole in zip(numbers, is_whole, strict=True) if not whole]
        self._whole = [(at, row) for row, at in enumerate(numbers) if is_whole[row]]
        self._norm = (0.5 * math.log(2 * math.pi) + np.log(self.sigma) + self._mass)[~is_whole]
        self._norms = self._norm.sum(axis=0)
        self._scale = (math.sqrt(0.5) / self.sigma)[~is_whole]
        self._scaled = self.mu[~is_whole] * self._scale
        self._choices = {
            at: (one.choices, rows[:, at].astype(int))
            for at, one in enumerate(variables)
            if one.kind == "choice"
        }
        self._unlikely = {
            at: -_shares(found, count, np.log(_weighed(len(found) + 1, count)))
            for at, (count, found) in self._choices.items()
        }

    def sample(self, stream: RandomState) -> list[ndarray]:
        """Points of the mixture, a column a variable: what Optuna makes of the same stream."""
        import numpy as np
        from scipy.special import ndtri

        chosen = stream.choice(len(self.weights), p=self.weights, size=CANDIDATES)
        choices: dict[int, ndarray] = {}
        until, low, inside = self._cumulative
        for at, shares in until.items():
            below = shares[:, chosen] < stream.rand(CANDIDATES)
            choices[at] = below.sum(axis=0, dtype=float)
        mu, sigma = self.mu[:, chosen], self.sigma[:, chosen]
        share = stream.uniform(size=mu.shape)
        exact = mu + sigma * ndtri(low[:, chosen] + share * inside[:, chosen])
        whole = self.low + np.round(exact - self.low)
        drawn = np.clip(np.where(self.half > 0, whole, exact), self.low, self.high)
        rows = iter(drawn)
        count = len(choices) + len(drawn)
        return [choices[at] if at in choices else next(rows) for at in range(count)]

    @cached_property
    def _cumulative(self) -> tuple[dict[int, ndarray], ndarray, ndarray]:
        """Of each kernel: up to each value of a choice; before a number's start, and within."""
        import numpy as np
        from scipy.special import ndtr

        until: dict[int, ndarray] = {}
        for at, (count, found) in self._choices.items():
            shares = _shares(found, count, _weighed(len(self.weights), count))
            until[at] = np.cumsum(shares, axis=0)
            until[at][-1] = 1
        low, high = (ndtr((end - self.mu) / self.sigma) for end in (self.start, self.end))
        return until, low, high - low

    def joint(self, columns: Sequence[ndarray]) -> ndarray:
        """The logarithm of the density of whole points."""
        import numpy as np

        points = np.array(columns)
        few = next((n for n in _PARTS if n * len(self.weights) <= _CACHED), 1)
        parts = (points[:, at : at + few] for at in range(0, points.shape[1], few))
        return np.concatenate([self._mixed(self._less(part)) for part in parts])

    def alone(self, point: Sequence[float]) -> ndarray:
        """The logarithm of each variable's own density, at one point."""
        import numpy as np

        less = np.empty((len(point), len(self.weights)))
        floats = np.array([[point[at]] for at in self._floats]).reshape(-1, 1)
        less[self._floats] = (floats * self._scale - self._scaled) ** 2 + self._norm
        for at, row in self._whole:
            less[at] = self._less_whole(row, np.array([[point[at]]]))[0]
        for at, unlikely in self._unlikely.items():
            less[at] = unlikely[int(point[at])]
        return self._mixed(less)

    def _less(self, points: ndarray) -> ndarray:
        """Minus the logarithm of each kernel's density of whole points: point × kernel."""
        import numpy as np

        total = np.empty((points.shape[1], len(self.weights)))
        total[:] = self._norms
        one = np.empty_like(total)
        for row, at in enumerate(self._floats):
            np.multiply(points[at][:, np.newaxis], self._scale[row], out=one)
            one -= self._scaled[row]
            one *= one
            total += one
        for at, row in self._whole:
            total += self._less_whole(row, points[at][:, np.newaxis])
        for at, unlikely in self._unlikely.items():
            # Clipping changes nothing; where numpy checks the indices, it copies what it takes.
            total += unlikely.take(points[at].astype(int), axis=0, out=one, mode="clip")
        return total

    def _less_whole(self, row: int, column: ndarray) -> ndarray:
        """The same of one integer: of the part of each kernel that is nearest to it."""
        import numpy as np
        from scipy.special import ndtr

        near = np.abs(column - self.mu[row])  # on the left, where ndtr is exact
        inside = ndtr((self.half[row] - near) / self.sigma[row])
        inside -= ndtr((-self.half[row] - near) / self.sigma[row])
        with np.errstate(divide="ignore"):
            less: ndarray = self._mass[row] - np.log(inside)
        return less

    def _mixed(self, less: ndarray) -> ndarray:
        """The kernels by their weights; one of them, the prior, is nowhere without density."""
        import numpy as np

        least = less.min(axis=-1, keepdims=True)
        np.subtract(least, less, out=less)
        # Not by BLAS: its threads cost more than they save.
        mixed: ndarray = np.log(np.einsum("pk,k->p", np.exp(less, out=less), self.weights))
        mixed -= least[:, 0]
        return mixed


def _weights(count: int) -> ndarray:
    """Of so many trials, the oldest first, and of the prior (Optuna's `default_weights`)."""
    import numpy as np

    weights = np.ones(count + 1)
    if count >= _RECENT:
        weights[: count - _RECENT] = np.linspace(1.0 / count, 1.0, num=count - _RECENT)
    weights /= weights.sum()
    return weights


def _kernels(found: ndarray, start: ndarray, end: ndarray) -> tuple[ndarray, ndarray]:
    """Means and widths for what trials had (number × trial), the prior's last.

    A kernel reaches to the farther of its neighbours, but for those at the ends.
    """
    import numpy as np

    numbers, count = found.shape
    mu, sigma = np.empty((numbers, count + 1)), np.empty((numbers, count + 1))
    order = np.argsort(found, axis=1)
    line = np.concatenate([start, np.take_along_axis(found, order, axis=1), end], axis=1)
    gaps = np.diff(line, axis=1)
    widths = np.maximum(gaps[:, :-1], gaps[:, 1:])
    if count >= 2:
        widths[:, 0], widths[:, -1] = gaps[:, 1], gaps[:, -2]
    np.put_along_axis(sigma, order, widths, axis=1)
    whole = end - start
    np.clip(sigma, whole / min(100.0, 2.0 + count), whole, out=sigma)
    mu[:, :-1] = found
    mu[:, -1:], sigma[:, -1:] = 0.5 * (start + end), whole
    return mu, sigma


def _mass(start: ndarray, end: ndarray) -> ndarray:
    """The logarithm of what a normal distribution has between two ends, in its widths."""
    import numpy as np
    from scipy.special import ndtr

    mass = np.zeros_like(start)
    near = (start > -_ALL) | (end < _ALL)
    mass[near] = np.log(ndtr(end[near]) - ndtr(start[near]))
    return mass


def _weighed(kernels: int, choices: int) -> tuple[float, float, float]:
    """What a kernel gives to the value that its trial had, to each other one, and what the prior
    gives to each: 1 / `kernels` everywhere and 1 more for the trial's, of their sum."""
    return (kernels + 1) / (kernels + choices), 1 / (kernels + choices), 1 / choices


def _shares(found: ndarray, choices: int, weighed: Iterable[float]) -> ndarray:
    """What each value is given in each kernel (value × kernel), the prior's last."""
    import numpy as np

    own, other, prior = weighed
    shares = np.full((choices, len(found) + 1), other)
    shares[found, np.arange(len(found))] = own
    shares[:, -1] = prior
    return shares
