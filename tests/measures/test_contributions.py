"""Rows with what each feature added to their scores: written, read, and refused in another form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ml.measures.contributions import (
    FILE,
    PERMUTATION,
    Contributions,
    ExplainedRows,
    explained_rows,
    permuted,
)

NAMES = ("age", "city", "idle")
ADDED = np.array([[0.1, -2.0, 0.0], [0.3, 1.0, 0.0]])
TABLE = np.array([[40.0, 1.0, np.nan], [50.12345, 0.0, 7.0], [60.0, 1.0, 8.0]])


def rows() -> ExplainedRows:
    of = Contributions(ADDED, 2, "TreeSHAP", 0.0)
    explained = explained_rows(of, NAMES, ["a", "b", "c"], TABLE, {"city": ["north", "south"]})
    assert explained is not None
    return explained


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The features by their shares, the rows that are explained, categories and gaps."""
    rows().write(tmp_path)
    read = ExplainedRows.read(tmp_path)
    assert read is not None
    assert (read.ids, read.names) == (["a", "b"], ["city", "age", "idle"])
    assert read.added.tolist() == [[-2.0, 0.1, 0.0], [1.0, 0.3, 0.0]]
    assert read.values[1].tolist() == [0.0, 50.12, 7.0] and np.isnan(read.values[0, 2])
    assert read.categories == {"city": ["north", "south"]}


def test_a_score_a_class_is_not_of_a_row() -> None:
    """Several scores a row have no single summary; a folder without the file has none."""
    of_classes = Contributions(np.zeros((6, 3)), 2, "TreeSHAP", 0.0)
    assert explained_rows(of_classes, NAMES, ["a", "b"], TABLE, {}) is None
    assert ExplainedRows.read(Path("/nowhere")) is None


@pytest.mark.parametrize(
    "changes",
    [{"ids": ["a"]}, {"contributions": [[None, 1, 2]] * 2}, {"values": None}, {"names": 3}],
)
def test_another_form_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    """Fewer ids than rows, a gap among what was added, no table, no names."""
    rows().write(tmp_path)
    document = json.loads((tmp_path / FILE).read_text()) | changes
    (tmp_path / FILE).write_text(json.dumps(document))
    with pytest.raises(ValueError):
        ExplainedRows.read(tmp_path)


def test_what_a_model_relies_on_is_found_by_shuffling() -> None:
    """As scikit-learn finds it; a feature that it does not read adds nothing, and a model that
    reads none has no shares.
    """
    from sklearn.inspection import permutation_importance
    from sklearn.linear_model import LinearRegression

    table = np.random.default_rng(1).normal(size=(400, 3))
    target = 3 * table[:, 0] + table[:, 1]
    fitted = LinearRegression().fit(table, target)
    of = permuted(lambda rows: abs(fitted.predict(rows) - target).mean(), table.tolist(), "abc")
    error = "neg_mean_absolute_error"
    theirs = permutation_importance(fitted, table, target, scoring=error, random_state=0)
    assert of.values[0] == pytest.approx(theirs.importances_mean, rel=0.1, abs=1e-9)
    assert (of.method, of.rows) == (PERMUTATION, 400) and 0 < of.error < 0.05
    shares = {str(share.feature): share.share for share in of.shares(of.names)}
    assert sum(shares.values()) == pytest.approx(1) and shares["c"] < 1e-9 < shares["b"]
    idle = permuted(lambda rows: 1.0, table.tolist(), "abc")
    assert {share.share for share in idle.shares("abc")} == {0.0}
