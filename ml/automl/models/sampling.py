"""Balance the classes of a fold's training rows: weights, undersampling or SMOTE.

It uses imbalanced-learn. Validation rows are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ml.automl.models.estimators import Numbers

# The values of the hyperparameter `balance`.
BALANCES = ("none", "classes", "under", "smote")
# Sampling methods that depend on the seed.
DRAWN = ("under", "smote")
# Minimum ratio of a class's rows to those of the most frequent class, after smote and after under.
MADE, LEFT = 0.3, 0.3
# Number of nearest neighbours in SMOTE.
NEIGHBOURS = 5


def balanced(numbers: Numbers, balance: str, seed: int) -> Numbers:
    """Return training rows with more balanced classes; `balance` is one of BALANCES.

    `classes` weights all classes equally. `under` drops rows of frequent classes. `smote` adds
    synthetic rows of rare classes (Chawla et al. 2002), but leaves weighted rows unchanged. `none`
    changes nothing, nor does any method for a regression.
    """
    if balance == "none" or numbers.task == "regression":
        return numbers
    if balance == "classes":
        from sklearn.utils.class_weight import compute_sample_weight

        weights = compute_sample_weight("balanced", numbers.labels)
        return replace(
            numbers, weights=weights if numbers.weights is None else weights * numbers.weights
        )
    counts = np.bincount(numbers.labels.astype(np.int64), minlength=numbers.classes)
    if balance == "under":
        return _under(numbers, counts, seed)
    return _smote(numbers, counts, seed)


def _under(numbers: Numbers, counts: np.ndarray[Any, Any], seed: int) -> Numbers:
    from imblearn.under_sampling import RandomUnderSampler

    most = int(counts[counts > 0].min() / LEFT) + 1
    wanted: Mapping[int, int] = {
        label: min(int(count), most) for label, count in enumerate(counts) if count
    }
    sampler = RandomUnderSampler(sampling_strategy=wanted, random_state=seed)
    sampler.fit_resample(np.zeros((len(numbers.labels), 1)), numbers.labels)
    rows = np.sort(sampler.sample_indices_)
    weights = None if numbers.weights is None else numbers.weights[rows]
    return replace(numbers, table=numbers.table[rows], labels=numbers.labels[rows], weights=weights)


def _smote(numbers: Numbers, counts: np.ndarray[Any, Any], seed: int) -> Numbers:
    """Add synthetic rows; impute missing numbers by medians, since neighbours need distances."""
    from imblearn.over_sampling import SMOTE, SMOTENC
    from sklearn.impute import SimpleImputer

    least = int(counts.max() * MADE)
    wanted = {label: least for label, count in enumerate(counts) if NEIGHBOURS < count < least}
    if not wanted or numbers.weights is not None:
        return numbers
    if len(numbers.categorical) == numbers.table.shape[1]:  # SMOTENC needs a numeric column
        return numbers
    # Pass only the classes to extend, and one other row: neighbours are of the same class.
    rows = np.flatnonzero(np.isin(numbers.labels, [*wanted]))
    row = np.flatnonzero(~np.isin(numbers.labels, [*wanted]))[:1]
    table, labels = numbers.table[[*rows, *row]], numbers.labels[[*rows, *row]]
    filled = SimpleImputer(strategy="median", keep_empty_features=True).fit_transform(table)
    # Treat a missing category as a category with an unused code.
    codes = [*numbers.categorical]
    filled[:, codes] = np.nan_to_num(table[:, codes], nan=-1.0)
    usual = {"sampling_strategy": wanted, "random_state": seed, "k_neighbors": NEIGHBOURS}
    sampler: Any = SMOTENC(codes, **usual) if codes else SMOTE(**usual)
    resampled, classes = sampler.fit_resample(filled, labels)
    new = resampled[len(filled) :].astype(np.float32)
    new[:, codes] = np.where(new[:, codes] < 0, np.nan, new[:, codes])
    return replace(
        numbers,
        table=np.concatenate([numbers.table, new]),
        labels=np.concatenate([numbers.labels, classes[len(labels) :]]),
    )
