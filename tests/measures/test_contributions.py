"""Rows with what each feature added to their scores: written, read, and refused in another form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ml.measures.contributions import FILE, Contributions, ExplainedRows, explained_rows

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
