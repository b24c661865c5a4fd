"""Wrong files: an error with file, row and column, or the documented result."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from ml.features import source
from ml.features.definition import FeatureSet
from ml.features.materialize import materialize
from ml.features.store import stored
from ml.features.timeline import FeatureError
from tests.features.test_materialize import START, TYPES, payment, write

GOOD = pl.DataFrame([payment(1), payment(2)], schema=TYPES, orient="row")
NULL = pl.lit(None)


@pytest.mark.parametrize(
    ("table", "code", "message"),
    [
        (GOOD.drop("event"), "missing-column", "there is no column `event`"),
        (GOOD.drop("amount"), "missing-column", "there is no column `amount`"),
        (GOOD.with_columns(account=pl.lit(1)), "wrong-type", "`account` is Int32"),
        (GOOD.with_columns(amount=pl.lit("1")), "wrong-type", "`amount` is String"),
        (GOOD.with_columns(event=pl.lit("soon")), "wrong-type", "`event` is String"),
        (
            GOOD.with_columns(pl.col("written").dt.replace_time_zone(None)),
            "no-time-zone",
            "`written` has no time zone",
        ),
        (
            GOOD.with_columns(event=pl.when(pl.col("event") == START).then("event")),
            "empty-time",
            "row 0: `event` is empty",
        ),
        (
            GOOD.with_columns(account=pl.when(pl.int_range(pl.len()) == 0).then("account")),
            "empty-key",
            "row 1: `account` is empty",
        ),
    ],
)
def test_a_wrong_table_names_file_row_and_column(
    table: pl.DataFrame, code: str, message: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """The first file is right, so the second is the one that is named."""
    write(tmp_path / "source", "1.parquet", [payment(0)])
    table.write_parquet(tmp_path / "source/2.parquet")
    with pytest.raises(FeatureError) as caught:
        materialize(account_payments, tmp_path / "source", tmp_path / "store")
    assert caught.value.code == code
    assert f"2.parquet: {message}" in caught.value.message


@pytest.mark.parametrize("length", [0, 4, 300])
def test_a_truncated_file_is_named(
    length: int, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """An empty one too; nothing is written."""
    path = write(tmp_path / "source", "1.parquet", [payment(0)]) / "1.parquet"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FeatureError) as caught:
        materialize(account_payments, tmp_path / "source", tmp_path / "store")
    assert caught.value.code == "unreadable-file" and str(path) in caught.value.message
    assert not list((tmp_path / "store").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unreadable-file"),
        ("account,event,written,amount\n", "wrong-type"),
        ("account,event,written,amount\na,2026-03-01T00:00:00Z,2026-03-01", "wrong-type"),
        ("account,event,written,amount\na,2026-03-01 00:00,2026-03-01 00:00,1\n", "no-time-zone"),
    ],
)
def test_a_wrong_csv_is_named(
    text: str, code: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Empty, without rows, truncated, and with times without a zone."""
    (tmp_path / "1.csv").write_text(text)
    with pytest.raises(FeatureError) as caught:
        materialize(account_payments, tmp_path / "1.csv", tmp_path / "store")
    assert caught.value.code == code and "1.csv" in caught.value.message


def test_a_source_without_rows_is_an_error(account_payments: FeatureSet, tmp_path: Path) -> None:
    """A folder without files, and files without rows; one empty file among others counts."""
    with pytest.raises(FeatureError, match="Parquet or CSV files"):
        source.files(tmp_path)
    folder = write(tmp_path / "source", "1.parquet", [])
    with pytest.raises(FeatureError, match="at least one row"):
        materialize(account_payments, folder, tmp_path / "store")
    write(folder, "2.parquet", [payment(0)])
    materialize(account_payments, folder, tmp_path / "store")
    assert stored(account_payments, tmp_path / "store").height == 1


def test_late_duplicate_and_unordered_rows_have_a_result(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Both copies of a duplicate count in a window; the order in the file does not matter."""
    (tmp_path / "1.csv").write_text(
        "account,event,written,amount\n"
        "a,2026-03-01T02:00:00Z,2026-03-01T02:00:00Z,1.0\n"
        "a,2026-03-01T01:00:00Z,2026-03-01T09:00:00Z,1.0\n"
        "a,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,1.0\n"
        "a,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z,1.0\n"
    )
    materialize(account_payments, tmp_path / "1.csv", tmp_path / "store")
    rows = stored(account_payments, tmp_path / "store").select("arrival", "count_3h").rows()
    assert [(arrival.hour, count) for arrival, count in rows] == [(0, 2), (2, 3), (9, 4)]
