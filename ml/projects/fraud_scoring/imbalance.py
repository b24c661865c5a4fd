"""What weights and sampling do for the rare class, over several generated tables.

python -m ml.projects.fraud_scoring.imbalance [--seeds N --leaves N]

Each table is split by time, a model is fitted with each setting, and its answers to the test are
ranked: the average precision, and the precision where half of the frauds are found.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.projects.fraud_scoring import model, transactions
from ml.projects.fraud_scoring.train import PROJECT
from ml.toolkit.data.datasets import TEST

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "all rows alike": {"positive_weight": 1.0},
    "a fraud counts 3 times": {"positive_weight": 3.0},
    "a fraud counts 10 times": {"positive_weight": 10.0},
    "a fraud counts 99 times": {"positive_weight": 99.0},
    "a fifth of the others": {"positive_weight": 1.0, "others_share": 0.2},
    "a twentieth of the others": {"positive_weight": 1.0, "others_share": 0.05},
}


def precision_at_half(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """The share of frauds among the highest scores that have half of the frauds."""
    caught = np.cumsum(labels[np.argsort(-scores, kind="stable")])
    last = int(np.searchsorted(caught, np.ceil(caught[-1] / 2)))
    return float(caught[last] / (last + 1))


def measure(seed: int, leaves: int) -> dict[str, tuple[float, float, float]]:
    """Of each setting the AUC, the average precision and the precision at half of the frauds."""
    with tempfile.TemporaryDirectory() as folder:
        transactions.main(["--out", folder, "--seed", str(seed)])
        dataset = PROJECT.read(Path(folder) / transactions.PROJECT)
    measured = {}
    for name, changes in SETTINGS.items():
        columns, fitted = PROJECT.fit(
            dataset, {**model.SETTINGS, "num_leaves": leaves, **changes}, seed
        )
        scores = PROJECT.scores(dataset, TEST, columns, fitted)
        values = dataset.metrics(TEST, scores)
        half = precision_at_half(dataset.test.labels, scores)
        measured[name] = values["test_auc"], values["test_average_precision"], half
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the means over the tables."""
    parser = argparse.ArgumentParser(description="Compare weights and sampling.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--leaves", type=int, default=model.SETTINGS["num_leaves"])
    options = parser.parse_args(arguments)
    runs = [measure(seed, options.leaves) for seed in range(options.seeds)]
    print("| training | AUC | average precision | precision at half of the frauds |")
    print("|---|---|---|---|")
    for name in SETTINGS:
        auc, average, half = np.mean([run[name] for run in runs], axis=0)
        print(f"| {name} | {auc:.3f} | {average:.3f} | {half:.3f} |")


if __name__ == "__main__":
    main()
