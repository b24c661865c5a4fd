"""Columns of a table that are joined from a feature set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml

from ml.serving.scoring.columns import Row, Value
from ml.toolkit.data.datasets import read_dataset
from ml.toolkit.data.feature_sets import FeatureJoin
from tests.features.conftest import write_set

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = {
    "task": "binary",
    "primary_metric": "auc",
    "target": "late",
    "positive": "yes",
    "time": "at",
    "slices": ["kind"],
    "delimiter": ",",
    "header": True,
    "rows": [1, 100],
    "columns": [
        {"name": "account", "type": "text"},
        {"name": "at", "type": "timestamp"},
        {"name": "kind", "type": "category"},
        {"name": "age", "type": "integer", "feature_set": "account_payments"},
        {
            "name": "spent",
            "type": "float",
            "optional": True,
            "feature_set": "account_payments",
        },
        {"name": "late", "type": "category"},
    ],
}


def columns(second: float, features: Mapping[str, Value]) -> Row:
    """The hour of the row, and what was spent."""
    hours = (second - START.timestamp()) / 3600
    return {"age": int(hours), "spent": features["spent_30h"]}


@pytest.fixture(name="features")
def _features(tmp_path: Path) -> FeatureJoin:
    """A feature set over payments of 2^hour each hour, which arrive 30 minutes later."""
    definition = write_set(tmp_path / "features")
    hours = [START + timedelta(hours=hour) for hour in range(10)]
    (tmp_path / "source").mkdir()
    pl.DataFrame(
        {
            "account": ["a"] * 10,
            "event": hours,
            "written": [hour + timedelta(minutes=30) for hour in hours],
            "amount": [2.0**hour for hour in range(10)],
        }
    ).write_parquet(tmp_path / "source/rows.parquet")
    return FeatureJoin((definition,), columns)


def table(folder: Path, accounts: str = "aaaaabaaaa", **changed: object) -> Path:
    """Ten labels, one an hour at 15 minutes past it; the schema has some fields changed."""
    lines = ["account,at,kind,late"]
    lines += [
        f"{account},2026-01-01T{hour:02}:15:00Z,k,{'yes' if hour % 2 else 'no'}"
        for hour, account in enumerate(accounts)
    ]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.yml").write_text(yaml.safe_dump(SCHEMA | changed))
    return folder / "schema.yml"


def test_each_row_has_what_was_known_at_its_time(tmp_path: Path, features: FeatureJoin) -> None:
    """The payment of a row's own hour has not arrived; an unknown account has no value."""
    dataset = read_dataset(tmp_path, table(tmp_path), features=features)
    rows = [row for part in ("train", "validation", "test") for row in dataset.splits[part].rows]
    expected = [None, 1.0, 3.0, 7.0, 15.0, None, 63.0, 127.0, 255.0, 511.0]
    assert rows == [["k", hour, value] for hour, value in enumerate(expected)]
    assert dataset.test.requests[-1] == {
        "input_data": {"columns": ["kind", "age", "spent"], "data": [["k", 9, 511.0]]}
    }
    joined = dataset.training_set
    assert joined is not None and joined.digest == joined.evaluated
    used = joined.sets["account_payments"]
    assert (used.version, used.first, used.last) == ("1", START, START + timedelta(hours=8))
    assert joined.last_label == START + timedelta(hours=9, minutes=15)
    values = dataset.joined["account_payments"]
    assert values["spent_30h"] == ("numeric", expected) and {*values} == {"count_3h", "spent_30h"}


def test_the_digest_is_of_labels_and_features(tmp_path: Path, features: FeatureJoin) -> None:
    """The same again for the same rows; another for other labels and for another source."""

    def digest(accounts: str = "aaaaabaaaa", sources: Mapping[str, Path] | None = None) -> object:
        read = read_dataset(
            tmp_path, table(tmp_path, accounts), features=features, sources=sources or {}
        )
        return read.training_set and read.training_set.digest

    other = tmp_path / "other.parquet"
    rows = pl.read_parquet(tmp_path / "source/rows.parquet")
    rows.with_columns(pl.col("amount") + 1).write_parquet(other)
    digests = [
        digest(),
        digest(),
        digest("aaaaaaaaaa"),
        digest(sources={"account_payments": other}),
    ]
    assert digests[0] == digests[1] and len({*digests}) == 3


@pytest.mark.parametrize(
    ("changed", "without", "told"),
    [
        ({"time": None}, False, "`time` is absent"),
        ({}, True, "`feature_set` is 'account_payments'"),
    ],
)
def test_a_schema_that_cannot_be_joined(
    tmp_path: Path, features: FeatureJoin, changed: dict[str, object], without: bool, told: str
) -> None:
    """Without a time, and a column of a set that the project does not join."""
    schema = table(tmp_path, **changed)
    with pytest.raises(SystemExit, match=rf"error\[wrong-schema\].*{told}"):
        read_dataset(tmp_path, schema, features=None if without else features)


def test_errors_name_the_file(tmp_path: Path, features: FeatureJoin) -> None:
    """A definition that is not there, and a set without a value for any row."""
    schema = table(tmp_path, "b" * 10)
    with pytest.raises(SystemExit, match=r"error\[no-known-values\].*table.csv"):
        read_dataset(tmp_path, schema, features=features)
    features.sets[0].unlink()
    with pytest.raises(SystemExit, match=r"error\[missing-file\].*account_payments.yml"):
        read_dataset(tmp_path, schema, features=features)
