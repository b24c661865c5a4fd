"""The model of fraud-scoring: what is saved is what is served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ml.projects.fraud_scoring import model
from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.endpoint import score
from ml.projects.fraud_scoring.train import PROJECT, SCHEMA
from ml.serving.scoring.columns import Columns
from ml.toolkit.training.model_folder import seal

REQUESTS = Path(score.__file__).with_name("requests.jsonl")


def test_what_is_saved_is_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that was fitted, the one that is loaded and the endpoint give the same answers."""
    dataset = PROJECT.read(SCHEMA.parent / "fraud_scoring")
    columns, fitted = PROJECT.fit(dataset, {**model.SETTINGS, "trees": 20}, seed=0)
    columns.save(tmp_path)
    model.save(fitted, tmp_path)
    digest = seal(tmp_path, {})
    rows = [list(row) for row in dataset.test.rows[:500]]
    expected = PROJECT.scores(dataset, "test", columns, fitted)[:500]
    columns = Columns.load(tmp_path, derive)
    loaded = PROJECT.scores(dataset, "test", columns, model.load(tmp_path))[:500]
    assert np.allclose(loaded, expected, rtol=0, atol=1e-9)
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    request = json.loads(REQUESTS.read_text(encoding="utf-8").partition("\n")[0])
    names = request["input_data"]["columns"]
    answer = score.run(json.dumps({"input_data": {"columns": names, "data": rows}}))
    assert isinstance(answer, dict) and answer["model_digest"] == digest
    assert np.array_equal(answer.get("probabilities", answer["predictions"]), loaded)
