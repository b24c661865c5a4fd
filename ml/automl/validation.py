"""Which rows a trial fits and which it is judged by: the same for every trial of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.tables import Table, stop

Rows = NDArray[np.int64]
Fold = tuple[Rows, Rows]
# Without a setting: "if the dataset is larger than 20,000 rows … 10% is taken", "less than 1,000
# rows, 10 folds", else 3 (how-to-configure-cross-validation-data-splits).
SHARE, MANY_ROWS, FEW_ROWS = 0.1, 20_000, 1_000
FOLDS_OF_FEW, FOLDS = 10, 3


def hold_out(labels: NDArray[Any], share: float, seed: int, stratified: bool) -> Fold:
    """The rows that are left, and a share of them that no trial fits or is chosen by."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    rare = stratified and min(np.unique(labels, return_counts=True)[1]) < 2
    left, held = train_test_split(
        rows,
        test_size=share,
        random_state=seed,
        stratify=labels if stratified and not rare else None,
    )
    return np.sort(left), np.sort(held)


def folds(
    table: Table, rows: Rows, settings: Mapping[str, Any], seed: int, stratified: bool
) -> tuple[Sequence[Fold], str]:
    """The folds of these rows, and a sentence about them.

    By columns of the table, by a share, or by the number of folds; else as Azure ML chooses by the
    number of rows. Of a classification each fold has its share of each class.
    """
    labels = table.labels[rows]
    if table.splits:
        marked = [(rows[mark[rows]], rows[~mark[rows]]) for mark in table.splits]
        if any(len(train) == 0 or len(judged) == 0 for train, judged in marked):
            stop("empty-fold", "a column of `cv_split_column_names` is one value", "0 and 1 in it")
        return marked, f"{len(marked)} folds by the columns of `cv_split_column_names`"
    share = settings.get("validation_data_size")
    number = settings.get("n_cross_validations")
    chosen = "" if share or isinstance(number, int) else f", by the number of rows ({len(rows)})"
    if not share and not isinstance(number, int) and len(rows) > MANY_ROWS:
        share = SHARE
    if share and not isinstance(number, int):
        train, judged = hold_out(labels, float(share), seed, stratified)
        return [(rows[train], rows[judged])], f"{len(judged)} rows are held out{chosen}"
    most = number if isinstance(number, int) else FOLDS_OF_FEW if len(rows) < FEW_ROWS else FOLDS
    fewest = int(min(np.unique(labels, return_counts=True)[1])) if stratified else len(rows)
    count = max(2, min(most, fewest, len(rows) // 2))
    if len(rows) < 4 or (stratified and fewest < 2 and len(np.unique(labels)) == 2):
        stop(
            "too-few-rows",
            f"{len(rows)} rows, {fewest} of the rarest class",
            "two or more rows of each class, to fit one and be judged by another",
        )
    if count != most:
        chosen += f"; {most} would leave folds without the rarest class"
    return _k_folds(rows, labels, count, seed, stratified), f"{count} folds{chosen}"


def _k_folds(
    rows: Rows, labels: NDArray[Any], count: int, seed: int, stratified: bool
) -> Sequence[Fold]:
    import warnings

    from sklearn.model_selection import KFold, StratifiedKFold

    kind = StratifiedKFold if stratified else KFold
    splitter = kind(n_splits=count, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # Of many classes one may have fewer rows than there are folds.
        warnings.simplefilter("ignore", UserWarning)
        return [(rows[train], rows[judged]) for train, judged in splitter.split(rows, labels)]
