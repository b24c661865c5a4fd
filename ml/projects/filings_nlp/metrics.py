"""Metrics of this project beside those of the task: the share of events that are predicted, and
the share of false alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.metrics import CustomMetric, ScoredRows

NONE = "none"


def caught(scored: ScoredRows, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return (numerator, denominator) per filing: predicted events among filings with an event."""
    followed = scored.expected != NONE
    return np.stack([followed & (scored.predicted != NONE), followed], axis=1).astype(np.float64)


def false_alarms(scored: ScoredRows, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return (numerator, denominator) per filing: predicted events among filings without one."""
    quiet = scored.expected == NONE
    return np.stack([quiet & (scored.predicted != NONE), quiet], axis=1).astype(np.float64)


METRICS: dict[str, CustomMetric] = {
    "caught": CustomMetric("maximize", (0, 1), caught, ratio=True),
    "false_alarms": CustomMetric("minimize", (0, 1), false_alarms, ratio=True),
}
