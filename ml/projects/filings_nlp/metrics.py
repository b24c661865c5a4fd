"""Custom metrics: the true positive rate and the false positive rate of "some event follows"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.metrics import CustomMetric, ScoredRows

NONE = "none"


def caught(scored: ScoredRows, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return (filings, 2) flags: an event occurred and any event was predicted; one occurred."""
    followed = scored.expected != NONE
    return np.stack([followed & (scored.predicted != NONE), followed], axis=1).astype(np.float64)


def false_alarms(scored: ScoredRows, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return (filings, 2) flags: no event occurred but one was predicted; none occurred."""
    quiet = scored.expected == NONE
    return np.stack([quiet & (scored.predicted != NONE), quiet], axis=1).astype(np.float64)


METRICS: dict[str, CustomMetric] = {
    "caught": CustomMetric("maximize", (0, 1), caught, ratio=True),
    "false_alarms": CustomMetric("minimize", (0, 1), false_alarms, ratio=True),
}
