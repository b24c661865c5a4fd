"""ml.toolkit.training.words: the importance of words."""

from __future__ import annotations

import numpy as np
import pytest

from ml.serving.scoring.columns import Columns, Value
from ml.toolkit.training.words import word_importance

pytest.importorskip("sklearn")


def test_the_telling_word_has_the_largest_share() -> None:
    """All of it for a model that reads this word alone; a word that every text has is none."""
    texts: list[list[Value]] = [
        [f"the {'late' if at % 2 else 'early'} parcel {'mail' if at % 3 else 'chat'}"]
        for at in range(60)
    ]
    columns = Columns.fit({"note": "text"}, texts, lambda row: row, "tokens")
    table, labels = columns.matrix(texts), np.arange(60) % 2
    late = columns.words.index("late") + 2

    def loss(rows: np.ndarray) -> float:
        return float(np.abs((rows == late).any(axis=1) - labels).mean())

    found = word_importance(loss, table, labels, columns)
    shares = {of.feature: of.share for of in found.shares(found.names)}
    assert {*shares} == {"late", "early", "mail", "chat"}
    assert shares["late"] == 1.0 and 0.3 < found.values.max() < 0.7
    assert loss(table) == 0  # the rows stay as they were
