"""What drawing all events equally often does for the rare ones, by trainings with several seeds.

python -m ml.projects.filings_nlp.imbalance --data DIR [--seeds N --epochs N]

With `prior taken back`, as train.py does it, probabilities are those of all filings again; without,
rare events are predicted too often.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, log_loss, recall_score
from torch import Tensor

from ml.projects.filings_nlp import train
from ml.projects.filings_nlp.corpus import TEST, TRAIN, Corpus, read

RAREST = 2
COLUMNS = ("log loss", "macro F1", f"the {RAREST} rarest: average precision", "and recall")


def effect(corpus: Corpus, logits: Tensor) -> list[float]:
    """COLUMNS of these answers to the filings of the test."""
    labels, scores = corpus.numbers(TEST), logits.double().softmax(1).numpy()
    rare = np.argsort(np.bincount(corpus.numbers(TRAIN)))[:RAREST]
    predicted = scores.argmax(axis=1)
    precisions = [average_precision_score(labels == of, scores[:, of]) for of in rare]
    return [
        log_loss(labels, scores, labels=range(len(corpus.classes))),
        f1_score(labels, predicted, average="macro"),
        float(np.mean(precisions)),
        recall_score(labels, predicted, labels=rare, average="macro"),
    ]


def effects(corpus: Corpus, epochs: int, seed: int) -> Iterator[tuple[str, list[float]]]:
    """One training of each way to draw."""
    for sampling in ("natural", "balanced"):
        settings = {**train.SETTINGS, "epochs": epochs, "sampling": sampling}
        with TemporaryDirectory() as folder:
            fitted = train.fit(corpus, settings, seed, Path(folder))
        assert fitted is not None  # one process
        encoded = [fitted.vocabulary.encode(document) for document in corpus.parts[TEST].documents]
        logits = train.logits(fitted.model, encoded)
        if sampling == "natural":
            yield "as they come", effect(corpus, logits)
        else:
            yield "equally often, prior taken back", effect(corpus, logits)
            yield "equally often", effect(corpus, logits - fitted.model.prior)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the means over the seeds."""
    parser = argparse.ArgumentParser(description="Compare ways of drawing.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=train.SETTINGS["epochs"])
    options = parser.parse_args(arguments)
    corpus = read(options.data)
    rows: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        for way, values in effects(corpus, options.epochs, seed):
            rows.setdefault(way, []).append(values)
    print(" | ".join(["events are drawn", *COLUMNS]))
    for way, entry in rows.items():
        print(" | ".join([way, *(f"{value:.3f}" for value in np.mean(entry, axis=0))]))


if __name__ == "__main__":
    main()
