"""Few rows before many: which trials of a large table go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ml.automl import rungs
from tests.automl.conftest import people, write
from tests.automl.test_trial import of_family

Fit = Callable[..., tuple[Path, dict[str, float]]]


def test_only_of_many_rows() -> None:
    assert rungs.size(np.arange(rungs.MANY_ROWS - 1)) == 0
    assert rungs.size(np.arange(rungs.MANY_ROWS)) == rungs.FEWEST_ROWS
    assert rungs.size(np.arange(1_000_000)) == 100_000


def test_a_trial_ends_that_is_worse_than_the_middle_of_those_before(tmp_path: Path) -> None:
    """Once they are enough; those of higher numbers, which a search that was killed may have, do
    not count.
    """
    values = [0.7, 0.8, 0.5, 0.9, 0.74, 0.76]
    ended = []
    for round_of in range(2):
        ended = []
        for number, value in enumerate(values):
            predictions = tmp_path / "trials" / str(number) / "predictions"
            ended.append(bool(rungs.early_stop_reason(5000, value, predictions)))
        assert ended == [False, False, False, False, True, False], round_of
    sentence = "below the median of 6 trials on 5000 rows"
    assert rungs.early_stop_reason(5000, 0.1, tmp_path / "trials" / "6" / "predictions") == sentence
    (tmp_path / "trials" / "1" / "predictions" / rungs.FILE).write_text("{")
    assert rungs.early_stop_reason(5000, 0.1, tmp_path / "trials" / "7" / "predictions") == sentence


@pytest.mark.slow
def test_its_model_is_of_the_sample_and_no_member(
    tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of it; ensembles are made of the others, a stack of too few says so."""
    monkeypatch.setattr(rungs, "MANY_ROWS", 300)
    monkeypatch.setattr(rungs, "FEWEST_ROWS", 100)
    monkeypatch.setattr(rungs, "TRIALS", 2)
    table = write(tmp_path / "table", people(900))
    job = {"n_cross_validations": 2}
    for name in ("light_gbm", "logistic_regression"):
        fit(table, name, of_family(name, "classification"), **job)
    bad = {"n_estimators": 1, "learning_rate": 0.001, "num_leaves": 2, "min_data_in_leaf": 40}
    folder, metrics = fit(table, "light_gbm", bad, **job)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert facts["rows"]["fitted"] == 100 and "below the median" in facts["notes"]["stopped"]
    assert "AUC_weighted" in metrics and "AUC_weighted_std" not in metrics
    folder, _ = fit(table, "voting_ensemble", {"members": [0, 1, 2]}, **job)
    assert json.loads((folder / "members.json").read_text())["members"]
    with pytest.raises(SystemExit, match=r"error\[few-members\]"):
        fit(table, "stack_ensemble", {"members": [0, 2]}, **job)
