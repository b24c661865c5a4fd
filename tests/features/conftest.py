"""Fixture: a feature set of accounts' payments, as a team would write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.features.definition import FeatureSet, read

SET = """\
$schema: http://azureml/sdk-2-0/Featureset.json
name: account_payments
version: "1"
specification:
  path: ./account_payments
entities:
  - azureml:account:1
tags:
  arrival_column: written
  local_source: ../source
materialization_settings:
  offline_enabled: true
  schedule:
    type: recurrence
    frequency: day
    interval: 1
"""
ENTITY = """\
$schema: http://azureml/sdk-2-0/FeatureStoreEntity.json
name: account
version: "1"
index_columns:
  - name: account
    type: string
"""
SPEC = """\
$schema: http://azureml/sdk-2-0/FeatureSetSpec.json
source:
  type: parquet
  path: abfss://c@s.dfs.core.windows.net/payments/*.parquet
  timestamp_column:
    name: event
  source_delay:
    minutes: 5
feature_transformation_code:
  path: ./transformation
  transformer_class: payments.Payments
features:
  - name: count_3h
    type: long
  - name: spent_30h
    type: double
index_columns:
  - name: account
    type: string
source_lookback:
  hours: 30
temporal_join_lookback:
  days: 2
"""
CODE = '''\
"""Payments of the last hours."""

from datetime import timedelta

import polars as pl

from ml.features.timeline import Timeline
from ml.features.windows import Window, windows

FEATURES = [
    Window("count_3h", "count", timedelta(hours=3)),
    Window("spent_30h", "sum", timedelta(hours=30), "amount"),
]
TIMELINE = Timeline("event", "written", timedelta(minutes=5))


class Payments:
    def transform(self, rows: pl.DataFrame) -> pl.DataFrame:
        return windows(rows, FEATURES, keys=["account"], timeline=TIMELINE)
'''


def write_set(folder: Path) -> Path:
    """Write the feature set; return its file."""
    code = folder / "account_payments/transformation/payments.py"
    code.parent.mkdir(parents=True)
    code.write_text(CODE)
    (folder / "account_payments/FeatureSetSpec.yaml").write_text(SPEC)
    (folder / "account_payments.yml").write_text(SET)
    return folder / "account_payments.yml"


@pytest.fixture(scope="session")
def account_payments(tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    """Return the feature set, loaded from its files."""
    return read(write_set(tmp_path_factory.mktemp("definition") / "features"))
