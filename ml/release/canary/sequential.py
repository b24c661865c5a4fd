"""Is green worse than blue by more than is tolerated? A test that may be looked at any time.

`evidence` is the logarithm of an e-process: as long as green's rate exceeds blue's by no more than
the margin, the chance that it *ever* reaches log(1/alpha), however often one looks and whatever one
decides upon looking, is at most alpha (Ville's inequality). It is a mixture likelihood ratio by
universal inference: each side's counts under a Beta mixture over its rate, over the
likelihood of the best pair of rates that the null allows (Ramdas, Grünwald, Vovk, Shafer 2023,
"Game-theoretic statistics and safe anytime-valid inference", sections 4 and 5; Wasserman, Ramdas,
Balakrishnan 2020). The two sides are independent, and which one gets the next request may depend on
the past. Averages of e-processes with fixed weights are e-processes, so one signal may look at many
thresholds; several signals split alpha.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, xlog1py, xlogy

# Beta priors of the mixture. A wrong prior costs power, never the level of the test.
EVEN = (0.5, 0.5)
RARE = (0.5, 30.0)  # for rare events
_STEPS = 36  # bisection: 2 ** -36 of the interval
Floats = NDArray[np.float64]


def evidence(
    green: ArrayLike,
    green_requests: ArrayLike,
    blue: ArrayLike,
    blue_requests: ArrayLike,
    margin: float,
    prior: tuple[float, float] = EVEN,
) -> Floats:
    """log E against `green's rate <= blue's rate + margin`, elementwise over arrays of counts.

    `green` and `blue` count the events (errors, say) among their requests. Raises ValueError for
    counts that are negative, not finite, or larger than the number of requests.
    """
    counts = [
        np.asarray(count, dtype=np.float64)
        for count in (green, green_requests, blue, blue_requests)
    ]
    g, n, b, m = np.broadcast_arrays(*counts)
    valid = (g >= 0) & (g <= n) & (b >= 0) & (b <= m) & np.isfinite(n + m)
    if not valid.all():  # NaN compares false
        raise ValueError("counts of events among requests")
    # The likeliest rates where the null allows them, else the likeliest on its border.
    best_g = np.asarray(g / np.maximum(n, 1))  # numpy makes scalars of arrays without axes
    best_b = np.asarray(b / np.maximum(m, 1))
    out = (best_g > best_b + margin) & (n > 0) & (m > 0)
    if out.any():
        border = _border(g[out], n[out], b[out], m[out], margin)
        best_g[out], best_b[out] = border + margin, border
    mixture = _mixture(g, n, prior) + _mixture(b, m, prior)
    return np.asarray(mixture - _likelihood(best_g, g, n) - _likelihood(best_b, b, m))


def _border(g: Floats, n: Floats, b: Floats, m: Floats, margin: float) -> Floats:
    """Blue's likeliest rate where green's is that rate plus the margin."""
    low: Floats = np.zeros(g.shape)
    high: Floats = np.full(g.shape, 1 - margin)
    for _ in range(_STEPS):  # the likelihood on the border is concave: halve by its slope
        middle = (low + high) / 2
        rises = _slope(middle + margin, g, n) + _slope(middle, b, m) > 0
        low[rises], high[~rises] = middle[rises], middle[~rises]
    return np.asarray((low + high) / 2)


def averaged(evidences: ArrayLike) -> float:
    """The log of the mean of e-processes given by their logs; the mean of none has no evidence."""
    logs = np.asarray(evidences, dtype=np.float64)
    if logs.size == 0:
        return -np.inf
    return float(np.logaddexp.reduce(logs) - np.log(logs.size))


def _mixture(events: Floats, requests: Floats, prior: tuple[float, float]) -> Floats:
    a, b = prior
    log = betaln(events + a, requests - events + b) - betaln(a, b)
    return np.asarray(log, dtype=np.float64)


def _likelihood(rate: Floats, events: Floats, requests: Floats) -> Floats:
    log = xlogy(events, rate) + xlog1py(requests - events, -rate)
    return np.asarray(log, dtype=np.float64)


def _slope(rate: Floats, events: Floats, requests: Floats) -> Floats:
    """The derivative of the log-likelihood by the rate."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(events > 0, events / rate, 0.0)
        down = np.where(requests > events, (requests - events) / (1 - rate), 0.0)
    slope: Floats = up - down
    return slope
