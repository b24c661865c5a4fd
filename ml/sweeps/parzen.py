"""The densities of the tree-structured Parzen estimator: Optuna's, for all parameters at once.

The formulas and settings are those of Optuna's multivariate TPE (`_ParzenEstimator` of
optuna.samplers._tpe, 5.0: prior weight 1, magic clip, no end points, `default_weights`) and so are
the results (tests compare kernels, candidates and densities). Optuna builds the kernels parameter
by parameter in Python; here they are rows of arrays, and what a parameter contributes by itself is
known too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml.specs.distributions import Variable

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import RandomState

CANDIDATES = 24
# Trials that count whole, the latest ones; those before count the less the older they are.
_RECENT = 25


class Density:
    """A mixture with a kernel for each row (trial × variable), in their order, and the prior last.

    A number has a normal kernel (`mu` and `sigma`: number × kernel) that ends at the variable's
    bounds, an integer its share of one; a choice has a weight for each of its values.
    """

    def __init__(self, variables: Sequence[Variable], rows: ndarray) -> None:
        import numpy as np
        from scipy.special import ndtr

        self.weights = _weights(len(rows))
        is_number = np.array([one.kind != "choice" for one in variables], dtype=bool)
        numbers = [one for one in variables if one.kind != "choice"]
        bounds = [(one.low, one.high, 0.5 if one.kind == "int" else 0.0) for one in numbers]
        self.low, self.high, self.half = (
            np.array(bounds, dtype=float).reshape(-1, 3, 1).swapaxes(0, 1)
        )
        self.start, self.end = self.low - self.half, self.high + self.half
        self.mu, self.sigma = _kernels(rows[:, is_number].T, self.start, self.end)
        low, high = (ndtr((end - self.mu) / self.sigma) for end in (self.start, self.end))
        self._mass = np.log(high - low)
        self._norm = 0.5 * math.log(2 * math.pi) + np.log(self.sigma) + self._mass
        self._scale = math.sqrt(0.5) / self.sigma
        self._scaled = self.mu * self._scale
        # For each variable its row in the above, or what a choice weighs (value × kernel).
        self._of: list[int | ndarray] = []
        row = 0
        for at, one in enumerate(variables):
            if one.kind == "choice":
                self._of.append(_shares(rows[:, at].astype(int), one.choices))
            else:
                self._of.append(row)
                row += 1

    def sample(self, stream: RandomState) -> list[ndarray]:
        """Points of the mixture, a column a variable: what Optuna makes of the same stream."""
        import numpy as np
        from scipy.special import ndtr, ndtri

        chosen = stream.choice(len(self.weights), p=self.weights, size=CANDIDATES)
        choices: dict[int, ndarray] = {}
        for at, shares in enumerate(self._of):
            if not isinstance(shares, int):
                until = np.cumsum(shares[:, chosen], axis=0)
                until[-1] = 1
                found = until < stream.rand(CANDIDATES)
                choices[at] = np.sum(found, axis=0, dtype=float)
        mu, sigma = self.mu[:, chosen], self.sigma[:, chosen]
        low, high = (ndtr((end - mu) / sigma) for end in (self.start, self.end))
        share = stream.uniform(size=mu.shape)
        exact = mu + sigma * ndtri(low + share * (high - low))
        whole = self.low + np.round(exact - self.low)
        drawn = np.clip(np.where(self.half > 0, whole, exact), self.low, self.high)
        rows = iter(drawn)
        return [choices[at] if at in choices else next(rows) for at in range(len(self._of))]

    def joint(self, columns: Sequence[ndarray]) -> ndarray:
        """The logarithm of the density of whole points."""
        import numpy as np

        total = np.zeros((len(columns[0]), len(self.weights)))
        one = np.empty_like(total)  # the only one: fresh memory costs as much as the arithmetic
        for at, column in enumerate(columns):
            self._less(at, column, one)
            total += one
        return self._mixed(total)

    def alone(self, point: Sequence[float]) -> ndarray:
        """The logarithm of each variable's own density, at one point."""
        import numpy as np

        less = np.empty((len(point), len(self.weights)))
        for at, number in enumerate(point):
            self._less(at, np.array([number]), less[at : at + 1])
        return self._mixed(less)

    def _less(self, at: int, column: ndarray, out: ndarray) -> None:
        """Minus the logarithm of each kernel's density of one variable: point × kernel.

        The means lie between the bounds, so that scipy's `ndtr` loses nothing.
        """
        import numpy as np

        row = self._of[at]
        if not isinstance(row, int):
            np.take(-np.log(row), column.astype(int), axis=0, out=out)
        elif not self.half[row, 0]:
            np.multiply(column[:, np.newaxis], self._scale[row], out=out)
            out -= self._scaled[row]
            out *= out
            out += self._norm[row]
        else:
            from scipy.special import ndtr

            near = np.abs(column[:, np.newaxis] - self.mu[row])  # on the left, where ndtr is exact
            inside = ndtr((self.half[row] - near) / self.sigma[row])
            inside -= ndtr((-self.half[row] - near) / self.sigma[row])
            with np.errstate(divide="ignore"):
                np.subtract(self._mass[row], np.log(inside), out=out)

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


def _shares(found: ndarray, choices: int) -> ndarray:
    """The weight of each value in each kernel (value × kernel): the trial's, and some of each."""
    import numpy as np

    kernels = len(found) + 1
    shares = np.full((choices, kernels), 1.0 / kernels)
    shares[found, np.arange(len(found))] += 1
    shares /= shares.sum(axis=0)
    return shares
