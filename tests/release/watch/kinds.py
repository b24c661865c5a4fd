"""Rows of every kind of column, drawn alike or drifted."""

from __future__ import annotations

from typing import Any

import numpy as np

from ml.measures.reference import Kind, summary

Columns = dict[str, tuple[Kind, list[Any]]]
_TEXTS = """how do i run the job on a spot node and where are its logs kept when it ends
model pipeline sweep trial release canary digest gate quota region disk cost
wie kann ich einen hund im garten halten und was frisst er jeden tag gerne"""
_COMMON, _RARE, _OTHER = (line.split() for line in _TEXTS.splitlines())


def question(rng: np.random.Generator, other: bool = False) -> str:
    """A text of our kind, or one in another language."""
    words = _OTHER if other else [*_COMMON, *_COMMON, *_RARE]
    return " ".join(words[at] for at in rng.integers(len(words), size=int(rng.poisson(7)) + 2))


def columns(rng: np.random.Generator, rows: int) -> Columns:
    """What requests and answers are made of, two in a hundred values missing."""
    rates = 1 / np.arange(1, 61)

    def holed(values: list[Any]) -> list[Any]:
        return [None if hole else value for hole, value in zip(holes, values, strict=True)]

    holes = rng.random(rows) < 0.02
    return {
        "amount": ("numeric", holed(rng.lognormal(0, 1, rows).tolist())),
        "count": ("numeric", rng.poisson(3, rows).astype(float).tolist()),
        "entry": ("categorical", holed(rng.choice(60, rows, p=rates / rates.sum()).tolist())),
        "rare": ("categorical", np.where(rng.random(rows) < 0.03, "yes", "no").tolist()),
        "question": ("text", [question(rng) for _ in range(rows)]),
    }


def summaries(made: Columns) -> dict[str, dict[str, Any]]:
    """The reference of every column."""
    return {name: summary(*column) for name, column in made.items()}
