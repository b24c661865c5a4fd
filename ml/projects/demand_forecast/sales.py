"""Generate synthetic daily sales of items in stores.

python -m ml.projects.demand_forecast.sales --out DIR [--seed N --stores N --items N --days N]

It writes DIR/demand_forecast/table.csv; the default arguments generated the committed `data`.
Expected sales are a drifting level × the store's weekday profile × promotion uplift × holiday
effect. Sales follow a negative binomial distribution with that mean. Sales of out-of-stock days are
empty, because demand is then unknown. The last items are new products with a short history.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np

PROJECT = "demand_forecast"
START = date(2025, 1, 6)  # a Monday
STORES, ITEMS, DAYS = 10, 20, 224
# One item in NEW_OF is new: first sold NEW_FOR (lowest, highest + 1) days before the end.
NEW_OF, NEW_FOR = 10, (35, 50)
# Mean number of days between holidays; daily probabilities that a promotion starts (5 to 7 days)
# and that an item goes out of stock (2 to 5 days).
BETWEEN, PROMOTED, OUT_OF_STOCK = 25, 0.03, 0.008
# Dispersion of the negative binomial: the larger, the closer to a Poisson distribution.
DISPERSION = 12.0
COLUMNS = ("store", "item", "day", "sales", "promotion", "holiday")


def runs(rng: np.random.Generator, days: int, start: float, lengths: Sequence[int]) -> np.ndarray:
    """Return (days,) of 0 and 1, where 1 marks random runs of consecutive days.

    A run starts with probability `start` a day and lasts `lengths` = (shortest, longest) days.
    """
    on, remaining = np.zeros(days, dtype=int), 0
    for day in range(days):
        if remaining == 0 and rng.random() < start:
            remaining = int(rng.integers(lengths[0], lengths[1] + 1))
        on[day], remaining = remaining > 0, max(0, remaining - 1)
    return on


def rows(seed: int, stores: int, items: int, days: int) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table (`COLUMNS`), sorted by store, item and day."""
    rng = np.random.default_rng(seed)
    weekdays = np.arange(days) % 7
    holiday = (rng.random(days) < 1 / BETWEEN).astype(int)
    profiles = rng.dirichlet([8, 8, 8, 10, 14, 20, 6], stores) * 7
    sizes, levels = rng.lognormal(0, 0.3, stores), rng.lognormal(2.6, 0.7, items)
    uplifts, effects = rng.uniform(0.3, 1.2, items), rng.uniform(-0.6, 0.5, items)
    for store in range(stores):
        for item in range(items):
            drift = np.exp(np.cumsum(rng.normal(0, 0.015, days)))
            promotion = runs(rng, days, PROMOTED, (5, 7))
            expected = sizes[store] * levels[item] * drift * profiles[store][weekdays]
            expected *= (1 + uplifts[item] * promotion) * (1 + effects[item] * holiday)
            sold = rng.negative_binomial(DISPERSION, DISPERSION / (DISPERSION + expected))
            missing = runs(rng, days, OUT_OF_STOCK, (2, 5)) == 1
            is_new = item >= items - items // NEW_OF
            first = days - int(rng.integers(*NEW_FOR)) if is_new else 0
            for day in range(max(0, first), days):
                when = (START + timedelta(days=day)).isoformat()
                amount = "" if missing[day] else int(sold[day])
                yield f"s{store:02}", f"i{item:02}", when, amount, promotion[day], holiday[day]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Write generated sales.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    for name, usual in (("seed", 0), ("stores", STORES), ("items", ITEMS), ("days", DAYS)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = vars(parser.parse_args(arguments))
    path = options.pop("out") / PROJECT / "table.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows(**options))


if __name__ == "__main__":
    main()
