"""Freshness and drift of the feature sets of a version."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml.features.definition import FeatureSet, read
from ml.features.materialize import materialize
from ml.measures.reference import REFERENCE, write_reference
from ml.release.watch.limits import Limits
from ml.release.watch.report import Report, compare_features, compare_requests
from ml.release.watch.requests import CollectedRequests
from ml.reports.pages import watch_page
from tests.features.conftest import write_set
from tests.features.test_materialize import START, TYPES, Row, write

NOW_HOURS = (datetime.now(UTC) - START) / timedelta(hours=1)
COUNTS = [float(number % 4 + 1) for number in range(400)]


@pytest.fixture(name="feature_set")
def _feature_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """The feature set of accounts in a project of a repository, the working directory."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return read(write_set(tmp_path / "ml/projects/payments/features"))


def reference(feature_set: FeatureSet, folder: Path, spent: list[float]) -> dict[str, Any]:
    """A reference of a model that was trained on the feature set."""
    features = {"spent_30h": ("numeric", spent)}
    sets: Any = {feature_set.name: (feature_set.version, feature_set.digest, features)}
    write_reference(folder, "d", {}, {}, {}, sets)
    document: dict[str, Any] = json.loads((folder / REFERENCE).read_text())
    return document


def materialized(feature_set: FeatureSet, folder: Path, *, hours_ago: float, mean: float) -> Path:
    """A store with a payment of each of 200 accounts, all at one time."""
    draw = np.random.default_rng(0)
    event = START + timedelta(hours=NOW_HOURS - hours_ago)
    rows: list[Row] = [
        (f"a{number}", event, event, float(amount))
        for number, amount in enumerate(draw.normal(mean, 1, 200))
    ]
    materialize(feature_set, write(folder / "source", "1.parquet", rows), folder / "store")
    return folder / "store"


def report(document: dict[str, Any], store: Path | None, limits: Limits) -> Report:
    """Of no requests."""
    found = compare_features(Path(), document, store, limits)
    return compare_requests(
        document, CollectedRequests(()), limits, found, model="m", version="1", environment="local"
    )


@pytest.mark.parametrize(
    ("hours_ago", "mean", "breaches"),
    [
        (2, 10, set()),
        (2, 12, {"account_payments/spent_30h"}),
        (30, 10, {"account_payments: arrival"}),
        (60, 10, {"account_payments: arrival", "account_payments: event"}),
    ],
)
def test_old_and_drifted_features_are_a_breach(
    hours_ago: float, mean: float, breaches: set[str], feature_set: FeatureSet, tmp_path: Path
) -> None:
    """Arrivals are due after a day and five minutes, events count for two days."""
    document = reference(
        feature_set, tmp_path, np.random.default_rng(1).normal(10, 1, 400).tolist()
    )
    store = materialized(feature_set, tmp_path, hours_ago=hours_ago, mean=mean)
    found = report(document, store, Limits())
    assert {one.column for one in found.findings if one.is_breach} == breaches
    assert found.outcome == ("breach" if breaches else "too-few")
    assert len(found.findings) == 4 and found.notes == []
    page = watch_page(found)
    assert all(name in page for name in breaches) and "hours" in page
    told = json.loads(json.dumps(found.to_json()))
    assert {one["test"] for one in told["findings"]} == {"hours", "KS distance", "missing"}


def test_what_is_ignored_is_not_compared(feature_set: FeatureSet, tmp_path: Path) -> None:
    """A feature by its set and name, the ages by the name of the set."""
    store = materialized(feature_set, tmp_path, hours_ago=60, mean=99)
    limits = Limits(ignore=("account_payments/spent_30h", "account_payments"))
    assert report(reference(feature_set, tmp_path, COUNTS), store, limits).findings == []


def test_what_cannot_be_judged_is_said(feature_set: FeatureSet, tmp_path: Path) -> None:
    """No store, a set that is not materialised or not defined any more, another definition."""
    document = reference(feature_set, tmp_path, COUNTS)
    assert "--features DIR" in compare_features(Path(), document, None, Limits()).notes[0]
    (note,) = compare_features(Path(), document, tmp_path / "store", Limits()).notes
    assert note.startswith("account_payments is not watched") and "ml features materialize" in note
    for missing in (None, tmp_path / "store"):
        sentence = report(document, missing, Limits()).sentence
        assert sentence.endswith("; feature sets not watched: account_payments")
    store = materialized(feature_set, tmp_path, hours_ago=1, mean=1)
    document["features"]["account_payments"]["definition"] = "other"
    found = compare_features(Path(), document, store, Limits())
    assert "trained on version 1" in found.notes[0] and found.drift and found.ages
    feature_set.file.unlink()
    assert "no file defines" in compare_features(Path(), document, store, Limits()).notes[0]
    assert compare_features(Path(), {"inputs": {}}, store, Limits()).notes == []


def test_another_days_rows_are_not_compared(feature_set: FeatureSet, tmp_path: Path) -> None:
    """The drift is of the last day that has enough rows, not of all that were materialised."""
    store = materialized(feature_set, tmp_path, hours_ago=100, mean=50)
    materialized(feature_set, tmp_path, hours_ago=1, mean=10)
    assert store == tmp_path / "store" and TYPES
    document = reference(
        feature_set, tmp_path, np.random.default_rng(1).normal(10, 1, 400).tolist()
    )
    assert not any(one.is_breach for one in report(document, store, Limits()).findings)
    assert (
        pl.scan_parquet(store / "account_payments/1/offline/date=*/*")
        .select(pl.len())
        .collect()
        .item()
        > 200
    )
