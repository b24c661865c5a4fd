"""The hyperparameters and their command-line arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args, get_type_hints

Objective = Literal["binary", "lambdarank"]


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that a sweep may change.

    The defaults were chosen by cross-validation on the training and validation questions of this
    project's own FAQ.
    """

    word_ngrams: int = 1  # longest word n-gram
    char_ngrams: int = 4  # longest character n-gram
    matches: int = 40  # pairs per question: its match, and negatives
    hard_negatives: int = 0  # number of negatives that are the entries most similar to the match
    discriminant_steps: int = 20  # gradient steps of the memory's linear classifier
    discriminant_rate: float = 30.0  # its learning rate
    trees: int = 60
    learning_rate: float = 0.13
    leaves: int = 15
    min_child_samples: int = 50
    feature_fraction: float = 0.5
    objective: Objective = "binary"
    weighted: bool = True  # matches weigh as much as all non-matches together

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {low} to {high}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Hyperparameters:
        """Return the hyperparameters in `values`; ignore other names, default missing ones."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, str | int | float | bool]:
        """Return name → value, as logged to MLflow and written to evaluation.json."""
        return asdict(self)


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("word_ngrams", 1, 4),
    ("char_ngrams", 3, 8),
    ("matches", 2, 1000),
    ("hard_negatives", 0, 999),
    ("discriminant_steps", 0, 1000),
    ("discriminant_rate", 0, 1000),
    ("trees", 1, 10000),
    ("learning_rate", 1e-4, 1),
    ("leaves", 2, 1000),
    ("min_child_samples", 1, 100000),
    ("feature_fraction", 0.01, 1),
)


def boolean(text: str) -> bool:
    """Parse true/false, 1/0 or yes/no; raise ArgumentTypeError for anything else."""
    values = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command-line argument for every hyperparameter, such as `--word-ngrams`."""
    hints = get_type_hints(Hyperparameters)
    for field in fields(Hyperparameters):
        name, kind = "--" + field.name.replace("_", "-"), hints[field.name]
        if choices := get_args(kind):
            parser.add_argument(name, choices=choices, default=field.default)
        else:
            kind = boolean if kind is bool else kind
            parser.add_argument(
                name, type=kind, default=field.default, metavar=f"({field.default})"
            )
