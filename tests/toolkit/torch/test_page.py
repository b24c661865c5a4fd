"""The page's training runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from mlflow.tracking import MlflowClient

from ml.toolkit.torch.loading import write_shards
from tests.conftest import ROOT

PAGE = (ROOT / "ml/toolkit/torch/README.md").read_text()
[CODE] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.slow
def test_the_training_of_the_page_learns_and_goes_on(tmp_path: Path) -> None:
    """It learns which words matter; run again, there is nothing left to do."""
    generator = np.random.default_rng(0)
    words = generator.integers(3, 50, size=(600, 4, 6))
    label = generator.integers(3, size=600)
    words[np.arange(600), generator.integers(4, size=600), 2] = label  # one telling word
    for name, rows in (("train", slice(500)), ("validation", slice(500, None))):
        write_shards(tmp_path / "data" / name, [{"words": words[rows], "label": label[rows]}])
    (tmp_path / "output").mkdir()
    (tmp_path / "train.py").write_text(CODE)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", "data", "output"]
    said = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "resuming from" not in said[0] and "resuming from step-00000040" in said[1]
    client = MlflowClient(uri)
    [second, first] = client.search_runs(["0"])
    history = client.get_metric_history(first.info.run_id, "accuracy")
    assert [point.step for point in history] == [8, 16, 24, 32, 40]
    assert history[0].value < 0.8 < history[-1].value
    assert {"train_loss", "samples_per_second", "waiting_share"} <= first.data.metrics.keys()
    assert "accuracy" not in second.data.metrics


def test_the_page_is_short() -> None:
    """At most 70 lines, whole."""
    assert len([line for line in CODE.splitlines() if line]) <= 70
