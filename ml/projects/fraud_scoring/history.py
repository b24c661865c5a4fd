"""Computes the model's columns of a card's history, from the features known at a moment.

Training, evaluation and the endpoint call `history`, so that a feature means the same to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.serving.scoring.columns import Row

FEATURE_SET = Path(__file__).parent / "features" / "card_payments.yml"
_WINDOWS = {"count_1h": 3600, "sum_1h": 3600, "count_24h": 86_400, "sum_24h": 86_400}


def history(second: float, features: Mapping[str, Any]) -> Row:
    """Return the columns with `feature_set: card_payments` of the schema.

    `second` is the time of the transaction since 1970. The windows of the features end with the
    latest payment: one that is over at `second` counts 0. Without a known payment (an unknown card,
    or none within the lookback), counts and sums are 0 and the others are missing.
    """
    last, usual = features.get("last_paid"), features.get("usual_amount")
    since = None if last is None else max(int(second) - int(last.timestamp()), 0)
    is_open = {name: since is not None and since < length for name, length in _WINDOWS.items()}
    counted = {name: features[name] if value else 0 for name, value in is_open.items()}
    return {
        **counted,
        "since_last": since,
        "usual_amount": None if usual is None else round(float(usual), 2),
    }
