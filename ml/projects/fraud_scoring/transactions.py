"""Transactions of cards by a known mechanism, so that the best possible model is known too.

python -m ml.projects.fraud_scoring.transactions --out DIR [--seed N --cards N --days N]

It writes DIR/fraud_scoring/table.csv, the rows whose labels are final by the last day, and
DIR/card_payments/payments.parquet, the source of the feature set `card_payments`. It prints the AUC
of the best model: `data` was made so, without other arguments. A fraud is known when it is
reported, any other label when no report can come any more. A payment arrives in the source seconds
after it was made, one in a hundred hours later.

Whether a transaction is a fraud is drawn with a probability that follows from its columns and the
day, and from nothing else: no model can rank better than that probability does. The same seed gives
the same rows.
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
# Days until a charge-back is reported, on average, and until none comes any more.
REPORTED_AFTER, FINAL_AFTER = 7.0, 30
# What a category adds to the log odds of fraud, by how much that grows over the whole time, and
# the usual amount of a purchase.
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
# The weights of the log odds: seen in an hour, out of the usual, at night, abroad.
VELOCITY, UNUSUAL, NIGHT, ABROAD = 1.2, 1.3, 1.3, 1.8
# A burst: several purchases of one card in less than an hour.
BURSTS, LONGEST = 0.03, 6
# Seconds until a payment arrives in the source, at most; late ones, and their share.
ARRIVES, LATE, LATE_SHARE = 20, 2 * DAY, 0.01
# The card's history: the mechanism uses it, the model reads it from the feature set.
HISTORY = ("count_1h", "sum_1h", "count_24h", "sum_24h", "since_last", "usual_amount")


@dataclass(frozen=True)
class Transactions:
    """Rows in the order of time: the columns of the table, the true probability of fraud, and the
    seconds since START at which each was made and at which its label is known.
    """

    columns: Mapping[str, NDArray[Any]]
    probability: Floats
    seconds: NDArray[np.int64]
    labelled: NDArray[np.int64]

    def subset(self, rows: NDArray[Any]) -> Transactions:
        """Return the rows of a mask."""
        columns = {name: value[rows] for name, value in self.columns.items()}
        return Transactions(
            columns, self.probability[rows], self.seconds[rows], self.labelled[rows]
        )


def generate(seed: int = 0, cards: int = CARDS, days: int = DAYS) -> Transactions:
    """Generate the transactions of some cards over some days."""
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
    """Return for each transaction what its card did before it, never at or after it: count and sum
    in the last hour and day, the seconds since the last one (NaN for none), and the mean amount
    so far (its own for the first).
    """
    order = np.lexsort((seconds, card))
    cards, times = card[order].astype(np.int64), seconds[order].astype(np.int64)
    # Cards lie so far apart that no window reaches into another one.
    stride = int(times.max(initial=0)) + 2 * DAY
    place = cards * stride + times
    # In cents, whose sums are exact: they do not depend on what other cards spent.
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
    """Return the expected AUC of ranking by the true probabilities: the share in the right order of
    all pairs of a fraud and another transaction, each with its probability.
    """
    ordered = np.sort(probability)
    below = np.concatenate([[0.0], np.cumsum(1 - ordered)[:-1]])
    # A pair of a row with itself does not exist; ties have no part in continuous probabilities.
    total = ordered.sum() * (1 - ordered).sum() - (ordered * (1 - ordered)).sum()
    return float((ordered * below).sum() / total)


def payments(transactions: Transactions, seed: int) -> pl.DataFrame:
    """Return the source of the feature set, in the order of arrival."""
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
    """Generate and write, by the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Write a table of transactions.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    for name, usual in (("seed", 0), ("cards", CARDS), ("days", DAYS)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    transactions = generate(options.seed, options.cards, options.days)
    # In the last days only frauds have known labels: these days would make fraud seem common.
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
    """Return the card and the second of each transaction, in the order of time."""
    count = draw.poisson(0.4 * cards * days)
    card = draw.integers(0, cards, count)
    # By day more than by night.
    hour = np.where(
        draw.random(count) < 0.08, draw.uniform(0, 6, count), draw.uniform(6, 24, count)
    )
    seconds = (draw.integers(0, days, count) * DAY + hour * HOUR).astype(np.int64)
    more = np.where(draw.random(count) < BURSTS, draw.integers(2, LONGEST + 1, count), 0)
    again = np.repeat(np.arange(count), more)
    card = np.concatenate([card, card[again]])
    later = seconds[again] + draw.integers(1, HOUR, len(again))
    seconds = np.concatenate([seconds, later])
    # A card is in one place at a time.
    _, unique = np.unique(card * (days + 1) * DAY + seconds, return_index=True)
    card, seconds = card[unique], seconds[unique]
    order = np.argsort(seconds, kind="stable")
    return card[order], seconds[order]


def _with_rate(odds: Floats, rate: float) -> Floats:
    """Return the probabilities of these log odds, shifted so that their mean is the rate."""
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
