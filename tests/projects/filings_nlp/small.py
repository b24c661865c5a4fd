"""A small corpus, and settings with which a training takes a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml.projects.filings_nlp import corpus, filings, train

COMPANIES = 120
SETTINGS: dict[str, Any] = {**train.SETTINGS, "epochs": 2, "width": 8, "learning_rate": 0.01}
# The same as arguments.
ARGUMENTS = ["--epochs", "2", "--width", "8", "--learning-rate", "0.01"]


def write_filings(folder: Path) -> Path:
    """The folder of its data asset."""
    filings.write(filings.generate(1, COMPANIES), folder / "filings.csv.gz")
    return folder


def read_filings(folder: Path) -> corpus.Corpus:
    """It, read."""
    return corpus.read(write_filings(folder))
