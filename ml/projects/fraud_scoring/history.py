"""Compute the model's history columns from a card's feature values at a point in time.

Training, evaluation and the endpoint call `history`, which prevents training-serving skew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.serving.scoring.columns import Row

FEATURE_SET = Path(__file__).parent / "features" / "card_payments.yml"
_WINDOWS = {"count_1h": 3600, "sum_1h": 3600, "count_24h": 86_400, "sum_24h": 86_400}


def history(second: float, features: Mapping[str, Any]) -> Row:
    """Return the columns that the schema marks with `feature_set: card_payments`.

    `second` is the transaction's Unix time. Feature windows end at the card's latest payment. A
    window that no longer covers `second` gives a count and a sum of 0. Without a payment in the
    lookback (also for an unknown card), counts and sums are 0 and the other columns are None.
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
