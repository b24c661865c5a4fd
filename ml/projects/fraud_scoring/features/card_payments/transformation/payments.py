"""The feature set card_payments: aggregates of a card over windows ending at its latest payment."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from ml.features.timeline import Timeline
from ml.features.windows import Window, windows

HOUR, DAY, LONGEST = timedelta(hours=1), timedelta(days=1), timedelta(days=90)
WINDOWS = (
    Window("count_1h", "count", HOUR),
    Window("sum_1h", "sum", HOUR, "amount"),
    Window("count_24h", "count", DAY),
    Window("sum_24h", "sum", DAY, "amount"),
    Window("usual_amount", "mean", LONGEST, "amount"),
    Window("last_paid", "last", HOUR, "paid_at"),
)


class CardPayments:
    """The transformer class that FeatureSetSpec.yaml refers to."""

    def transform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the window aggregates of each card and the time of its latest payment."""
        rows = rows.with_columns(pl.col("amount").cast(pl.Float64))
        return windows(rows, WINDOWS, keys=["card"], timeline=Timeline("paid_at", "arrival"))
