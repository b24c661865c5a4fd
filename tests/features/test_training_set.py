"""Labels joined with feature sets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from ml.features.definition import FeatureSet
from ml.features.materialize import materialize
from ml.features.timeline import FeatureError
from ml.features.training_set import digest, training_set
from tests.features.test_materialize import HOUR, START, ZONE, payment, write

LABELS = pl.DataFrame(
    {
        "account": ["b", "a", "a"],
        "time": pl.Series([START + 2 * HOUR, START + 3 * HOUR, START + 99 * HOUR], dtype=ZONE),
    }
)


def test_the_features_are_those_known_at_the_time(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """From the store and from the source alike; the second payment arrives after the label."""
    source = write(tmp_path / "source", "1.parquet", [payment(1), payment(2, late=5)])
    materialize(account_payments, source, tmp_path)
    stored = training_set(LABELS, [account_payments], time="time", store=tmp_path)
    sources = {"account_payments": source}
    computed = training_set(LABELS, [account_payments], time="time", sources=sources)
    assert stored.digest == computed.digest and stored.sets == computed.sets
    assert stored.table.get_column("count_3h").to_list() == [None, 1, None]
    (joined,) = stored.sets
    assert (joined.name, joined.version) == ("account_payments", "1")
    assert joined.first_event == joined.last_event == START + HOUR
    assert (stored.first_label, stored.last_label) == (START + 2 * HOUR, START + 99 * HOUR)


def test_a_large_set_is_joined_in_parts(account_payments: FeatureSet, tmp_path: Path) -> None:
    """With the same table, digest and lineage."""
    source = write(tmp_path / "source", "1.parquet", [payment(1), payment(2), payment(30)])
    materialize(account_payments, source, tmp_path)
    words = {"time": "time", "store": tmp_path}
    spilled = training_set(LABELS, [account_payments], **words, memory=1000)  # type: ignore[arg-type]
    in_memory = training_set(LABELS, [account_payments], **words)  # type: ignore[arg-type]
    assert (spilled.digest, spilled.sets) == (in_memory.digest, in_memory.sets)


def test_a_feature_of_two_sets_is_an_error(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The file of the second one is named."""
    source = write(tmp_path / "source", "1.parquet", [payment(1)])
    materialize(account_payments, source, tmp_path)
    with pytest.raises(FeatureError, match="already has a column `count_3h`"):
        training_set(LABELS, [account_payments] * 2, time="time", store=tmp_path)


def test_labels_without_a_key_are_an_error(account_payments: FeatureSet, tmp_path: Path) -> None:
    """From the store and from the source alike."""
    source = write(tmp_path / "source", "1.parquet", [payment(1)])
    materialize(account_payments, source, tmp_path)
    empty = LABELS.with_columns(account=pl.when(pl.col("account") == "b").then("account"))
    for words in ({"store": tmp_path}, {"sources": {"account_payments": source}}):
        with pytest.raises(
            FeatureError, match=r"labels of .*: the table has no column for the key"
        ):
            training_set(LABELS.drop("account"), [account_payments], time="time", **words)  # type: ignore[arg-type]
        with pytest.raises(FeatureError, match=r"labels of .*: row 1: `account` is empty"):
            training_set(empty, [account_payments], time="time", **words)  # type: ignore[arg-type]


def test_labels_keep_columns_of_any_name(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The join's own columns do not collide with theirs."""
    source = write(tmp_path / "source", "1.parquet", [payment(1)])
    materialize(account_payments, source, tmp_path)
    names = ["event", "arrival", "__used__", "__label__", "__time__", "__row__", "__event__"]
    labels = LABELS.with_columns(pl.lit("x").alias(name) for name in names)
    for words in ({"store": tmp_path}, {"sources": {"account_payments": source}}):
        table = training_set(labels, [account_payments], time="time", **words).table  # type: ignore[arg-type]
        assert table.drop(account_payments.features).equals(labels)


def test_a_store_of_another_definition_is_an_error(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """As is a store without the set."""
    with pytest.raises(FeatureError, match="has no rows"):
        training_set(LABELS, [account_payments], time="time", store=tmp_path)
    source = write(tmp_path / "source", "1.parquet", [payment(1)])
    materialize(account_payments, source, tmp_path)
    other = replace(account_payments, digest="other")
    with pytest.raises(FeatureError, match="another definition"):
        training_set(LABELS, [other], time="time", store=tmp_path)
    with pytest.raises(FeatureError, match="no source on this machine"):
        training_set(LABELS, [replace(other, local_source=None)], time="time")


@pytest.mark.parametrize(
    "other",
    [
        pl.DataFrame({"a": [1, None], "b": ["x", "yz"]}),
        pl.DataFrame({"a": [1, 0], "b": ["xy", "z"]}),
        pl.DataFrame({"a": [1.0, 0.0], "b": ["x", "yz"]}),
        pl.DataFrame({"a": [1, 0], "c": ["x", "yz"]}),
        pl.DataFrame({"a": [0, 1], "b": ["yz", "x"]}),
        pl.DataFrame({"a": [1, 0], "b": ["x", None]}),
        pl.DataFrame({"a": [timedelta(1), None], "b": [[1], None]}),
    ],
)
def test_the_digest_is_of_names_types_and_values(other: pl.DataFrame) -> None:
    """A null is not a zero; where one text ends counts."""
    table = pl.DataFrame({"a": [1, 0], "b": ["x", "yz"]})
    assert digest(table) == digest(table.clone()) != digest(other)
