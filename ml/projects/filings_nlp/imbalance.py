"""What drawing all events equally often does for the rare ones, by trainings with several seeds.

python -m ml.projects.filings_nlp.imbalance --data DIR [--seeds N --epochs N]

Of each way of drawing the log loss and the macro F1 on the test, and of the two rarest events the
average precision and the share that is predicted as such. With `prior taken back`, as train.py does
it, probabilities are those of all filings again; without, rare events are predicted too often.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.measures.measurement import metric_values
from ml.projects.filings_nlp import export, train
from ml.projects.filings_nlp.corpus import TEST, TRAIN, Corpus, read, rows
from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import stack

RAREST = 2


@dataclass(frozen=True)
class Effect:
    """What one way of drawing gives on the test."""

    log_loss: float
    f1: float
    precision: float
    recall: float


def measure(corpus: Corpus, scores: NDArray[np.float64]) -> Effect:
    """Of these probabilities of the test's filings; the rare events are the rarest of training."""
    part = corpus.parts[TEST]
    values = metric_values("multiclass", rows(part, scores), corpus.classes)
    labels, predicted = corpus.numbers(TEST), scores.argmax(axis=1)
    rare = [name for name, _ in Counter(corpus.parts[TRAIN].labels).most_common()[-RAREST:]]
    numbers = [corpus.classes.index(name) for name in rare]
    precision = np.mean([average_precision(labels == of, scores[:, of]) for of in numbers])
    recall = np.mean([(predicted[labels == of] == of).mean() for of in numbers])
    return Effect(values["log_loss"], values["f1"], float(precision), float(recall))


def average_precision(right: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """The precision at the place of each right one, on average."""
    ranked = right[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(ranked) / np.arange(1, len(ranked) + 1))[ranked].mean())


def compare(corpus: Corpus, epochs: int, seed: int) -> dict[str, Effect]:
    """One training of each way."""
    effects = {}
    for sampling in ("natural", "balanced"):
        with tempfile.TemporaryDirectory() as folder:
            settings = {**train.SETTINGS, "epochs": epochs, "sampling": sampling}
            fitted = train.fit(corpus, settings, seed, Path(folder) / "checkpoints")
            assert fitted is not None
            some = stack([fitted.vocabulary.encode(of) for of in corpus.parts[TEST].documents[:4]])
            model = Path(folder) / "model"
            export.write(model, fitted.model, fitted.vocabulary, corpus.classes, [some])
            classifier = Classifier(model)
            scores = classifier.probabilities(classifier.encode(corpus.parts[TEST].documents))
        if sampling == "natural":
            effects["as they come"] = measure(corpus, scores)
        else:
            effects["equally often, prior taken back"] = measure(corpus, scores)
            drawn = scores / np.exp(fitted.model.prior.numpy().astype(np.float64))
            drawn /= drawn.sum(axis=1, keepdims=True)
            effects["equally often"] = measure(corpus, drawn)
    return effects


def table(runs: Sequence[Mapping[str, Effect]]) -> str:
    """The means over the seeds."""
    lines = ["events are drawn | log loss | macro F1 | rare: average precision | rare: recall"]
    for way in runs[0]:
        means = np.mean([[*vars(run[way]).values()] for run in runs], axis=0)
        effect = replace(runs[0][way], **dict(zip(vars(runs[0][way]), means, strict=True)))
        lines.append(" | ".join([way, *(f"{value:.3f}" for value in vars(effect).values())]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the means over the seeds."""
    parser = argparse.ArgumentParser(description="Compare ways of drawing.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=train.SETTINGS["epochs"])
    options = parser.parse_args(arguments)
    corpus = read(options.data)
    print(table([compare(corpus, options.epochs, seed) for seed in range(options.seeds)]))


if __name__ == "__main__":
    main()
