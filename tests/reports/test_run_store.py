"""Curves and tags that a store of runs reads are those that MLflow has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ml.backends.base import Run, TrackingUnavailable
from ml.core import home as place
from tests.reports.made import STORE, log_metrics

LARGEST = 1.7976931348623157e308


def runs(*ids: str) -> list[Run]:
    """Runs of which only the ids count."""
    return [Run(run_id, run_id, "Completed", "tests", Path(), 0.0) for run_id in ids]


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
    curves = STORE.curves(runs(*ids, "nobody"), "score")
    assert set(curves) == set(ids)
    for run_id in ids:
        said = client.get_metric_history(run_id, "score")
        # MLflow keeps an infinity as the largest number; the script logged an infinity.
        kept = sorted((one.step, one.value) for one in said)
        told = [(step, min(value, LARGEST)) for step, value in curves[run_id]]
        assert repr(told) == repr(kept)
    assert set(STORE.all_curves(*runs(ids[0]))) == {"score", "other"}
    assert STORE.tag(runs(*ids), "ended_by") == {ids[0]: "bandit at interval 2"}


def test_more_runs_than_a_statement_takes(home: Path) -> None:
    """Ids go to SQLite in portions."""
    ids = [f"run-{number}" for number in range(2000)]
    log_metrics([(run_id, "score", [float(number)]) for number, run_id in enumerate(ids)])
    found = STORE.curves(runs(*ids), "score")
    assert [found[run_id] for run_id in ids] == [((0, float(n)),) for n in range(2000)]


def test_without_a_store(own_home: Path) -> None:
    """Nothing is made in its place."""
    with pytest.raises(TrackingUnavailable):
        STORE.curves(runs("a"), "score")
    assert list(own_home.iterdir()) == []
