"""Generate synthetic card transactions with known fraud probabilities.

python -m ml.projects.fraud_scoring.transactions --out DIR [--seed N --cards N --days N]

It writes DIR/fraud_scoring/table.csv (the rows whose labels are final by the last day) and
DIR/card_payments/payments.parquet (the source of the feature set `card_payments`). The default
arguments generated the committed `data`. A fraud label is known once the fraud is reported; any
other label is known after FINAL_AFTER days. A payment arrives in the source within seconds, one in
a hundred up to two days later.

The fraud probability depends only on the columns and the day. No model can therefore rank better
than that probability; the command prints its AUC. The same seed gives the same rows.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PROJECT, SOURCE = "fraud_scoring", "card_payments"

START = datetime(2025, 1, 1, tzinfo=UTC)
HOUR, DAY = 3600, 86_400
CARDS, DAYS = 500, 180
# Share of the rows that are fraud.
RATE = 0.01
# Days from a fraud to its charge-back: the mean, and the maximum.
REPORTED_AFTER, FINAL_AFTER = 7.0, 30
# Per category: its term in the log odds of fraud, the growth of that term over the whole period,
# and the usual amount of a purchase.
CATEGORIES = {
    "grocery": (-1.5, 0.0, 35.0),
    "fuel": (-0.8, 0.0, 50.0),
    "restaurant": (-1.2, 0.0, 40.0),
    "clothing": (-0.3, 0.0, 60.0),
    "travel": (0.5, -1.0, 220.0),
    "electronics": (1.2, 0.0, 180.0),
    "games": (0.8, 0.0, 25.0),
    "vouchers": (0.6, 2.0, 60.0),
}
CHANNELS = {"chip": -1.5, "contactless": -0.5, "online": 1.2}
AGES = ("18-34", "35-59", "60+")
# Weights in the log odds: payments in the last hour, amount ÷ usual amount, at night, abroad.
VELOCITY, UNUSUAL, NIGHT, ABROAD = 1.2, 1.3, 1.3, 1.8
# A burst is several purchases of one card within an hour: its probability and longest length.
BURSTS, LONGEST = 0.03, 6
# Maximum arrival delay in seconds: of a normal payment, of a late one; the share of late ones.
ARRIVES, LATE, LATE_SHARE = 20, 2 * DAY, 0.01
# The card's history. The table omits these columns: the model reads them from the feature set.
HISTORY = ("count_1h", "sum_1h", "count_24h", "sum_24h", "since_last", "usual_amount")


@dataclass(frozen=True)
class Transactions:
    """Transactions sorted by time, one array element per transaction."""

    columns: Mapping[str, NDArray[Any]]  # the columns of the table
    probability: Floats  # the true probability of fraud
    seconds: NDArray[np.int64]  # time of the transaction, in seconds since START
    labelled: NDArray[np.int64]  # time at which the label is known, in seconds since START

    def subset(self, rows: NDArray[Any]) -> Transactions:
        """Return the transactions that the boolean mask `rows` selects."""
        columns = {name: value[rows] for name, value in self.columns.items()}
        return Transactions(
            columns, self.probability[rows], self.seconds[rows], self.labelled[rows]
        )


def generate(seed: int = 0, cards: int = CARDS, days: int = DAYS) -> Transactions:
    """Return random transactions of `cards` cards over `days` days."""
    draw = np.random.default_rng(seed)
    card, seconds = _moments(draw, cards, days)
    count = len(card)
    merchants = 60
    category_of = draw.integers(0, len(CATEGORIES), merchants)
    merchant = np.minimum(draw.exponential(merchants / 4, count).astype(int), merchants - 1)
    category = category_of[merchant]
    channel = draw.choice(len(CHANNELS), count, p=[0.35, 0.35, 0.3])
    abroad = (draw.random(count) < 0.04).astype(int)
    level = np.exp(0.4 * draw.normal(size=cards))
    usual = np.array([row[2] for row in CATEGORIES.values()])[category] * level[card]
    amount = np.round(np.maximum(usual * np.exp(0.7 * draw.normal(size=count)), 0.5), 2)
    windows = windowed(card, seconds, amount)
    hour = seconds % DAY // HOUR
    risk, growth = (np.array([row[i] for row in CATEGORIES.values()])[category] for i in (0, 1))
    odds = (
        *(risk + growth * seconds / (days * DAY), 0.5 * draw.normal(size=merchants)[merchant]),
        *(np.array(list(CHANNELS.values()))[channel], ABROAD * abroad, NIGHT * (hour < 6)),
        VELOCITY * np.minimum(windows["count_1h"], LONGEST),
        UNUSUAL * np.log(amount / windows["usual_amount"]),
    )
    probability = _with_rate(np.sum(odds, axis=0), RATE)
    is_fraud = draw.random(count) < probability
    reported = np.minimum(draw.exponential(REPORTED_AFTER, count), FINAL_AFTER)
    names = [f"m{number:02}" for number in range(merchants)]
    columns = {
        "transaction": np.array([f"t{number:06}" for number in range(count)]),
        "made_at": np.array([_text(second) for second in seconds]),
        "card": np.array([f"c{number:04}" for number in card]),
        "age": np.array(AGES)[np.arange(cards) % len(AGES)][card],
        "merchant": np.array(names)[merchant],
        "category": np.array(list(CATEGORIES))[category],
        "channel": np.array(list(CHANNELS))[channel],
        "abroad": abroad,
        "hour": hour,
        "amount": amount,
        **windows,
        "is_fraud": np.where(is_fraud, "yes", "no"),
    }
    late = np.where(is_fraud, reported * DAY, FINAL_AFTER * DAY).astype(np.int64)
    return Transactions(columns, probability, seconds, seconds + late)


def windowed(card: NDArray[Any], seconds: NDArray[Any], amount: Floats) -> dict[str, NDArray[Any]]:
    """Return the history columns of each transaction, from strictly earlier ones of its card.

    They are count and sum in the last hour and day, seconds since the last transaction (NaN for
    none), and the mean amount so far (the transaction's own amount for the first).
    """
    order = np.lexsort((seconds, card))
    cards, times = card[order].astype(np.int64), seconds[order].astype(np.int64)
    # Each card gets its own range of `place`, so that no window reaches into another card.
    stride = int(times.max(initial=0)) + 2 * DAY
    place = cards * stride + times
    # Integer cents: differences of cumulative sums are exact, without float rounding.
    sums = np.concatenate([[0], np.cumsum(np.rint(amount[order] * 100).astype(np.int64))])
    here = np.searchsorted(place, place)
    first = np.searchsorted(place, cards * stride)
    columns: dict[str, NDArray[Any]] = {}
    for name, width in (("1h", HOUR), ("24h", DAY)):
        begin = np.maximum(np.searchsorted(place, place - width), first)
        columns[f"count_{name}"] = here - begin
        columns[f"sum_{name}"] = (sums[here] - sums[begin]) / 100
    earlier = here - first
    since = np.where(earlier > 0, times - times[np.maximum(here - 1, 0)], np.nan)
    mean = (sums[here] - sums[first]) / 100 / np.maximum(earlier, 1)
    columns["since_last"] = since
    columns["usual_amount"] = np.round(np.where(earlier > 0, mean, amount[order]), 2)
    back = np.argsort(order)
    return {name: values[back] for name, values in columns.items()}


def best_auc(probability: Floats) -> float:
    """Return the expected AUC of ranking by the true fraud probabilities."""
    ordered = np.sort(probability)
    below = np.concatenate([[0.0], np.cumsum(1 - ordered)[:-1]])
    # Exclude pairs of a row with itself. Continuous probabilities have no ties.
    total = ordered.sum() * (1 - ordered).sum() - (ordered * (1 - ordered)).sum()
    return float((ordered * below).sum() / total)


def payments(transactions: Transactions, seed: int) -> pl.DataFrame:
    """Return the source table of the feature set, sorted by arrival time."""
    draw = np.random.default_rng([seed, 1])
    count = len(transactions.seconds)
    most = np.where(draw.random(count) < LATE_SHARE, LATE, ARRIVES)
    arrival = transactions.seconds + 1 + (draw.random(count) * most).astype(np.int64)
    start = int(START.timestamp())
    times = {"paid_at": start + transactions.seconds, "arrival": start + arrival}
    return pl.DataFrame(
        {
            "card": transactions.columns["card"],
            **{
                name: pl.from_epoch(pl.Series(value), "s").dt.replace_time_zone("UTC")
                for name, value in times.items()
            },
            "amount": transactions.columns["amount"],
        }
    ).sort("arrival", maintain_order=True)


def write(columns: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write the columns as a CSV table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([_cell(value) for value in row])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the labels and the payments; print the AUC of the best possible model."""
    parser = argparse.ArgumentParser(description="Write a table of transactions.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    for name, usual in (("seed", 0), ("cards", CARDS), ("days", DAYS)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    transactions = generate(options.seed, options.cards, options.days)
    # Among the last days only frauds already have labels, which would inflate the fraud rate.
    table = transactions.subset(transactions.seconds + FINAL_AFTER * DAY <= options.days * DAY)
    labels = {name: value for name, value in table.columns.items() if name not in HISTORY}
    write(labels, options.out / PROJECT / "table.csv")
    source = options.out / SOURCE / "payments.parquet"
    source.parent.mkdir(parents=True, exist_ok=True)
    payments(transactions, options.seed).write_parquet(source)
    best = best_auc(table.probability)
    print(f"{len(table.seconds)} transactions: the best model has an AUC of {best:.4f}")


def _moments(
    draw: np.random.Generator, cards: int, days: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the card and the time (seconds since START) of each transaction, sorted by time."""
    count = draw.poisson(0.4 * cards * days)
    card = draw.integers(0, cards, count)
    # Only 8 % of the transactions are between 0:00 and 6:00.
    hour = np.where(
        draw.random(count) < 0.08, draw.uniform(0, 6, count), draw.uniform(6, 24, count)
    )
    seconds = (draw.integers(0, days, count) * DAY + hour * HOUR).astype(np.int64)
    more = np.where(draw.random(count) < BURSTS, draw.integers(2, LONGEST + 1, count), 0)
    again = np.repeat(np.arange(count), more)
    card = np.concatenate([card, card[again]])
    later = seconds[again] + draw.integers(1, HOUR, len(again))
    seconds = np.concatenate([seconds, later])
    # Drop duplicates: a card has at most one transaction per second.
    _, unique = np.unique(card * (days + 1) * DAY + seconds, return_index=True)
    card, seconds = card[unique], seconds[unique]
    order = np.argsort(seconds, kind="stable")
    return card[order], seconds[order]


def _with_rate(odds: Floats, rate: float) -> Floats:
    """Return the probabilities of log odds shifted by a constant so that their mean is `rate`."""
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((1 / (1 + np.exp(-(odds + middle)))).mean())
        low, high = (low, middle) if mean > rate else (middle, high)
    return np.asarray(1 / (1 + np.exp(-(odds + low))))


def _text(seconds: int) -> str:
    return (START + timedelta(seconds=int(seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


if __name__ == "__main__":
    main()
