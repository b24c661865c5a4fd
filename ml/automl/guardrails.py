"""What a person should know about the table before they believe a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.tables import A_TIME, Column, Table
from ml.automl.validation import Rows
from ml.measures.leakage import features as leaking_features
from ml.measures.leakage import leaks
from ml.measures.tasks import Task

# Of so few rows scores move by chance.
FEW_ROWS = 200
# A class of a smaller share is rare: accuracy hardly sees it.
RARE = 0.1
MOSTLY_MISSING = 0.4
# Rows that are looked at for columns which give the target away.
PROBED = 10_000
# A category of so many values, each of so few rows, may be what rows belong to.
GROUPS, ROWS_OF_GROUP = 20, (2.0, 50.0)


def report(
    table: Table,
    labels: NDArray[Any],
    task: Task,
    classes: Sequence[str],
    fitted: Rows,
    metric: str,
    numbers: NDArray[np.float32],
    shuffled: bool,
) -> list[dict[str, str]]:
    """The findings, each with its check; `numbers` are all rows as models take them.

    `shuffled` says that rows judge which were drawn at random: others of their group, and later
    ones, are fitted.
    """
    findings = [("rows", note) for note in table.notes]
    if len(fitted) < FEW_ROWS:
        findings.append(("rows", f"{len(fitted)} rows: scores of so few move by chance"))
    for column in table.columns:
        if not column.used:
            findings.append(("columns", f"{column.name}: {column.choice}"))
        elif column.missing > MOSTLY_MISSING:
            findings.append(("missing", f"{column.name}: {column.missing:.0%} missing"))
        if shuffled and (reason := _hangs_together(table, column, fitted)):
            findings.append(("validation", f"{column.name}: {reason}"))
    if classes:
        counts = np.bincount(labels[fitted].astype(np.int64), minlength=len(classes))
        rare = int(counts.argmin())
        share = counts[rare] / max(1, len(fitted))
        if share < RARE:
            found = f"{classes[rare]} is {share:.2%} of the rows"
            if metric == "accuracy":
                found += ": accuracy hardly sees it; take AUC_weighted or norm_macro_recall"
            findings.append(("imbalance", found))
    names = [column.name for column in table.columns if column.used]
    probed = fitted[:: max(1, len(fitted) // PROBED)]
    if task != "multiclass":
        for check in leaking_features(numbers[probed].astype(np.float64), labels[probed], names):
            if leaks(check):
                findings.append(("leakage", check.found or ""))
    return [{"check": check, "found": found} for check, found in findings]


def _hangs_together(table: Table, column: Column, fitted: Rows) -> str:
    """Why rows that are drawn at random may know too much of each other by this column, or ""."""
    advice = "give validation_data or cv_split_column_names"
    if column.choice.startswith(A_TIME):
        return f"a time, and rows are judged that are earlier than those fitted; {advice}"
    if column.kind != "text":
        return ""
    values = table.frame[column.name].iloc[fitted].dropna()
    different = values.nunique()
    low, high = ROWS_OF_GROUP
    if different < GROUPS or not low <= len(values) / different <= high:
        return ""
    return (
        f"{different} values of about {len(values) / different:.0f} rows each, which are both "
        f"fitted and judged; if they are one customer or device each, {advice}"
    )
