"""Curves and tags that a store of runs reads are those that MLflow has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ml.backends.runs import Run, TrackingUnavailable
from ml.core import home as place
from tests.local import BACKEND
from tests.reports.run_records import log_metrics

LARGEST = 1.7976931348623157e308


def runs(*ids: str) -> list[Run]:
    """Runs of which only the ids count."""
    return [Run(run_id, run_id, "Completed", "tests", Path(), 0.0) for run_id in ids]


def test_curves_and_tags_equal_mlflow_s(home: Path) -> None:
    """Every value in the order of arrival, with NaN and infinities; tags."""
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
    curves = BACKEND.runs.curves(runs(*ids, "nobody"), "score")
    assert set(curves) == set(ids)
    for run_id in ids:
        history = client.get_metric_history(run_id, "score")
        # MLflow keeps an infinity as the largest number; the script logged an infinity.
        expected = sorted((metric.step, metric.value) for metric in history)
        values = [(step, min(value, LARGEST)) for step, value in curves[run_id]]
        assert repr(values) == repr(expected)
    assert set(BACKEND.runs.all_curves(*runs(ids[0]))) == {"score", "other"}
    assert BACKEND.runs.tag(runs(*ids), "ended_by") == {ids[0]: "bandit at interval 2"}


def test_more_runs_than_a_statement_takes(home: Path) -> None:
    """Ids are sent to SQLite in batches."""
    ids = [f"run-{number}" for number in range(2000)]
    log_metrics([(run_id, "score", [float(number)]) for number, run_id in enumerate(ids)])
    curves = BACKEND.runs.curves(runs(*ids), "score")
    assert [curves[run_id] for run_id in ids] == [((0, float(n)),) for n in range(2000)]


def test_without_a_store(own_home: Path) -> None:
    """No store is created."""
    with pytest.raises(TrackingUnavailable):
        BACKEND.runs.curves(runs("a"), "score")
    assert list(own_home.iterdir()) == []
