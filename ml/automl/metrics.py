"""Compute the metrics of Azure ML's AutoML for classification and regression, by its names.

Their definitions are in Microsoft's page how-to-understand-automated-ml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.tasks import Task
from ml.serving.scoring.members import normalized

Defined = Mapping[str, Callable[[], float]]


def defined(
    task: Task,
    labels: NDArray[Any],
    answers: NDArray[np.float64],
    classes: int,
    target_range: float,
) -> Defined:
    """Return the name of each metric that is defined on these rows → a function that computes it.

    `answers` are predictions as from `Fitted.predict`; `classes` is the number of classes. A
    regression's errors are divided by `target_range`, the range of the target in all rows.
    """
    if task == "regression":
        return _regression(labels, answers, target_range)
    probabilities = answers if answers.ndim == 2 else np.column_stack([1 - answers, answers])
    # Normalize, since single-precision probabilities sum to 1 only to seven digits.
    return _classification(labels.astype(np.int64), normalized(probabilities), classes)


def _regression(labels: NDArray[Any], answers: NDArray[np.float64], target_range: float) -> Defined:
    from scipy.stats import spearmanr
    from sklearn import metrics

    functions: dict[str, Callable[[], float]] = {
        "normalized_root_mean_squared_error": lambda: (
            float(np.sqrt(np.mean((labels - answers) ** 2))) / target_range
        ),
        "normalized_mean_absolute_error": lambda: (
            float(np.mean(np.abs(labels - answers))) / target_range
        ),
    }
    if len(labels) > 1 and np.ptp(labels) > 0:
        functions["r2_score"] = lambda: metrics.r2_score(labels, answers)
        # The rank correlation of constant predictions is undefined: use 0.
        functions["spearman_correlation"] = lambda: (
            spearmanr(labels, answers).statistic if np.ptp(answers) > 0 else 0.0
        )
    return functions


def _classification(
    labels: NDArray[np.int64], probabilities: NDArray[np.float64], classes: int
) -> Defined:
    from scipy.stats import rankdata
    from sklearn import metrics

    chosen = probabilities.argmax(axis=1)
    # One-vs-rest metrics need rows of the class and of other classes.
    counts = np.bincount(labels, minlength=classes)
    mixed_classes = [label for label in range(classes) if 0 < counts[label] < len(labels)]

    def recall() -> float:
        guessing = 1 / classes
        score = metrics.recall_score(labels, chosen, average="macro", zero_division=0)
        return float((score - guessing) / (1 - guessing))

    def average_precision() -> float:
        scores = [
            metrics.average_precision_score(labels == label, probabilities[:, label])
            for label in mixed_classes
        ]
        return float(np.average(scores, weights=counts[mixed_classes]))

    def auc() -> float:
        """Compute the weighted one-vs-rest AUC from ranks (Mann and Whitney 1947).

        It is vectorized over the classes, since ensembles call it hundreds of times.
        """
        ranks = rankdata(probabilities[:, mixed_classes], axis=0)
        ones = counts[mixed_classes]
        sums = np.array([ranks[labels == label, i].sum() for i, label in enumerate(mixed_classes)])
        areas = (sums - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))
        return float(np.average(areas, weights=ones))

    functions: dict[str, Callable[[], float]] = {
        "accuracy": lambda: float((chosen == labels).mean()),
        "norm_macro_recall": recall,
        "precision_score_weighted": partial(
            metrics.precision_score, labels, chosen, average="weighted", zero_division=0
        ),
        "log_loss": partial(metrics.log_loss, labels, probabilities, labels=[*range(classes)]),
    }
    if mixed_classes:
        functions |= {"AUC_weighted": auc, "average_precision_score_weighted": average_precision}
    return functions
