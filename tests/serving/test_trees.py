"""ml.serving.scoring.trees: LightGBM's own predictions."""

from __future__ import annotations

from pathlib import Path

import lightgbm
import numpy as np
import pytest

from ml.serving.scoring.trees import Trees

MODEL = "model.txt"
ROWS = np.array([[0.3, 1, 1], [1.5, 0, -2.5], [2, np.nan, np.nan], [0.1, np.nan, 0.0]])


def train(folder: Path, objective: str = "binary") -> lightgbm.Booster:
    """A model over three columns, of which the second is a category."""
    draw = np.random.default_rng(0)
    table = np.column_stack(
        [draw.normal(size=600), draw.integers(0, 2, 600), draw.normal(size=600)]
    )
    target = (table[:, 0] + table[:, 1] > 0.5).astype(int) + (table[:, 2] > 0)
    settings = {"objective": objective, "verbose": -1, "num_threads": 1}
    if objective == "multiclass":
        settings["num_class"] = 3
    else:
        target = target > 0
    data = lightgbm.Dataset(table, target, categorical_feature=[1])
    booster = lightgbm.train(settings, data, num_boost_round=20)
    booster.save_model(folder / MODEL)
    return booster


@pytest.mark.parametrize("objective", ["binary", "regression", "multiclass"])
def test_predictions_equal_those_of_lightgbm(tmp_path: Path, objective: str) -> None:
    """To the last bit, row by row; no value of the row before remains."""
    booster = train(tmp_path, objective)
    trees = Trees(tmp_path / MODEL)
    assert np.array_equal(trees.predict(ROWS), booster.predict(ROWS))
    assert np.array_equal(trees.predict(ROWS[::-1]), booster.predict(ROWS[::-1]))
    assert len(trees.predict(ROWS[:0])) == 0


def test_a_model_of_other_columns_is_refused(tmp_path: Path) -> None:
    """When it predicts; a missing file, and a file that is not a model, when it is loaded."""
    train(tmp_path)
    with pytest.raises(lightgbm.basic.LightGBMError, match=r"features in data \(2\)"):
        Trees(tmp_path / MODEL).predict(ROWS[:, :2])
    with pytest.raises(lightgbm.basic.LightGBMError, match="Could not open"):
        Trees(tmp_path / "other.txt")
    (tmp_path / MODEL).write_text("no model")
    with pytest.raises(lightgbm.basic.LightGBMError):
        Trees(tmp_path / MODEL)
