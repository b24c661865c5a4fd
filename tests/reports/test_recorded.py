"""What is read from the store is what MLflow says."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from ml.core import home as place
from ml.reports import recorded

LARGEST = 1.7976931348623157e308


def test_as_mlflow_says(home: Path) -> None:
    """Every value in the order of its arrival, NaN and infinities included; tags."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(place.tracking_uri())
    logged = [0.1, 0.3, math.nan, math.inf, 0.2]
    ids = []
    for _ in range(2):
        run = client.create_run("0")
        ids.append(run.info.run_id)
        for step, value in enumerate(logged):
            client.log_metric(run.info.run_id, "score", value, step=step)
        client.log_metric(run.info.run_id, "other", 1.0)
    client.set_tag(ids[0], "ended_by", "bandit at interval 2")
    curves = recorded.curves([*ids, "nobody"], "score")
    assert set(curves) == set(ids)
    for run_id in ids:
        said = client.get_metric_history(run_id, "score")
        # MLflow keeps an infinity as the largest number; the script logged an infinity.
        kept = sorted((one.step, one.value) for one in said)
        told = [(step, min(value, LARGEST)) for step, value in curves[run_id]]
        assert repr(told) == repr(kept)
    assert set(recorded.metrics(ids[0])) == {"score", "other"}
    assert recorded.tag(ids, "ended_by") == {ids[0]: "bandit at interval 2"}


def test_more_runs_than_a_statement_takes(home: Path) -> None:
    """Ids go to SQLite in portions."""
    from tests.reports.made import log_metrics

    ids = [f"run-{number}" for number in range(2000)]
    log_metrics([(run_id, "score", [float(number)]) for number, run_id in enumerate(ids)])
    found = recorded.curves(ids, "score")
    assert [found[run_id] for run_id in ids] == [((0, float(n)),) for n in range(2000)]


def test_without_a_store(own_home: Path) -> None:
    """Nothing is made in its place."""
    with pytest.raises(sqlite3.Error):
        recorded.curves(["a"], "score")
    assert list(own_home.iterdir()) == []
