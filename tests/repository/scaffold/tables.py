"""Generated tables of different shape, as people have them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

COUNT = 900
# What `tickets` are about, and the words that tell it.
TOPICS = {
    "billing": ["invoice", "charged", "refund"],
    "delivery": ["parcel", "courier", "late"],
    "login": ["password", "locked", "reset"],
}
TELLING = {word for words in TOPICS.values() for word in words}


def churn(path: Path, count: int = COUNT) -> Path:
    """Commas, an id, categories, missing numbers, yes or no."""
    draw = np.random.default_rng(0)

    def rows() -> Iterator[Sequence[object]]:
        yield "customerID", "tenure", "Contract", "Monthly Charges", "Total.Charges", "Churn"
        for at in range(count):
            tenure, monthly = int(draw.integers(0, 72)), round(float(draw.uniform(20, 120)), 2)
            contract = str(draw.choice(["month", "one year", "two years"]))
            total = "" if not tenure else f"{monthly * tenure:.2f}"
            risk = 3.0 * (contract == "month") - tenure / 20 + monthly / 40 - 1.5
            churned = draw.random() < 1 / (1 + np.exp(-risk))
            yield f"C{at:05}", tenure, contract, monthly, total, "Yes" if churned else "No"

    return _write(path, rows(), ",")


def houses(path: Path, count: int = COUNT) -> Path:
    """Semicolons, no id, numbers alone, a price."""
    draw = np.random.default_rng(1)

    def rows() -> Iterator[Sequence[object]]:
        yield "area", "rooms", "built", "price"
        for _ in range(count):
            area, rooms = round(float(draw.uniform(30, 200)), 1), int(draw.integers(1, 15))
            price = 2000 * area + 9000 * rooms + 15_000 * draw.normal()
            yield area, rooms, int(draw.integers(1900, 2024)), round(price)

    return _write(path, rows(), ";")


def flowers(path: Path, count: int = COUNT) -> Path:
    """Tabs and three classes."""
    draw = np.random.default_rng(2)

    def rows() -> Iterator[Sequence[object]]:
        yield "petal", "sepal", "colour", "species"
        for _ in range(count):
            at = int(draw.integers(0, 3))
            petal = at + 0.6 * draw.normal()
            colour = str(draw.choice(["blue", "white"]))
            yield f"{petal:.3f}", f"{draw.normal():.3f}", colour, ("setosa", "other", "rosa")[at]

    return _write(path, rows(), "\t")


def tickets(path: Path, count: int = COUNT) -> Path:
    """An id, a category and a text, whose topic one or two of its words tell, nine times of ten."""
    draw = np.random.default_rng(0)
    others = [
        "please",
        "help",
        "us",
        "since",
        "yesterday",
        "it",
        "is",
        "not",
        "what",
        "our",
        "team",
        "expected,",
        "thanks",
    ]

    def rows() -> Iterator[Sequence[object]]:
        yield "ticket", "channel", "message", "topic"
        for at in range(count):
            topic, odd = draw.choice([*TOPICS], 2)
            told = TOPICS[str(odd if draw.random() < 0.1 else topic)]
            words = [*draw.choice(told, draw.integers(1, 3))]
            words += [*draw.choice(others, draw.integers(4, 12))]
            channel = draw.choice(["chat", "mail"])
            yield f"T-{at:04}", channel, " ".join(draw.permutation(words)), topic

    return _write(path, rows(), ",")


def _write(path: Path, rows: Iterator[Sequence[object]], delimiter: str) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(rows)
    return path
