"""Reading feature sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from ml.features.definition import FeatureSet, read
from ml.features.timeline import FeatureError, Timeline
from tests.features.conftest import CODE, SET, SPEC, write_set


def test_a_definition_is_read(account_payments: FeatureSet) -> None:
    """Every field that the engine uses."""
    read_set = account_payments
    assert (read_set.name, read_set.version) == ("account_payments", "1")
    assert read_set.timeline == Timeline("event", "written", timedelta(minutes=5))
    assert read_set.transformed == Timeline("event", "arrival", timedelta(minutes=5))
    assert read_set.keys == {"account": "string"}
    assert read_set.features == {"count_3h": "long", "spent_30h": "double"}
    assert (read_set.lookback, read_set.source_lookback) == (
        timedelta(days=2),
        timedelta(hours=30),
    )
    assert read_set.local_source == read_set.file.parent / "../source"
    assert read_set.schedule == timedelta(days=1)


def test_the_digest_changes_with_each_file(account_payments: FeatureSet, tmp_path: Path) -> None:
    """It does not change with the folder that the set is in."""
    path = write_set(tmp_path)
    assert read(path).digest == account_payments.digest
    digests = {account_payments.digest}
    for file in [path, *tmp_path.rglob("*.yaml"), *tmp_path.rglob("*.py")]:
        file.write_text(file.read_text() + "# changed\n")
        digests.add(read(path).digest)
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("set", "name: account_payments\n", "", "KeyError: 'name'"),
        ("set", "name: account_payments", "name: ../../out", "'../../out' does not match"),
        ("set", 'version: "1"', 'version: ".."', "'..' does not match"),
        ("spec", "payments.Payments", "....etc.Payments", "'....etc.Payments' does not match"),
        ("set", SET, "[]", "TypeError"),
        ("set", SET, "", "TypeError"),
        ("set", SET, "a: [", "while parsing"),
        ("set", "./account_payments", "./nothing", "FeatureSetSpec.yaml does not exist"),
        ("set", "tags:\n", "tags: [a]\nother:\n", "AttributeError"),
        ("set", SET[SET.index("  offline") :], "  - a", "AttributeError"),
        ("spec", "name: spent_30h", "name: count_3h", "a column name occurs twice"),
        ("spec", "type: long", "type: number", "a type is not one of string, "),
        ("spec", "    name: event\n", "", "TypeError"),
        ("spec", "minutes: 5", "days: 99999999999", "OverflowError"),
        ("spec", "minutes: 5", "fortnights: 5", "'fortnights'"),
        ("spec", "payments.Payments", "other.Payments", "other.py does not exist"),
        ("spec", SPEC[SPEC.index("index") : SPEC.index("source_l")], "", "'index_columns'"),
    ],
)
def test_what_is_wrong_names_the_file(
    file: str, before: str, after: str, message: str, tmp_path: Path
) -> None:
    """And what `ml check` then says more about."""
    path = write_set(tmp_path)
    changed = path if file == "set" else tmp_path / "account_payments/FeatureSetSpec.yaml"
    changed.write_text(changed.read_text().replace(before, after))
    with pytest.raises(FeatureError) as caught:
        read(path)
    assert message in caught.value.message and str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("class Payments", "class Other", "has no attribute 'Payments'"),
        ("return windows", "return 1 / 0 * windows", "ZeroDivisionError"),
        ('"spent_30h", "sum"', '"spent_30h", "count"', "`spent_30h` is Int64"),
        ('"spent_30h"', '"spent"', "no column `spent_30h`"),
        ('"amount"', '"price"', "no column `price`"),
        ("return windows", "raise SystemExit(3)\n        return windows", "SystemExit: 3"),
        ("return windows", "raise pl.exceptions.PanicException('x')\n        windows", "Panic"),
        ("return windows", "return None\n        windows", "a table is a builtins NoneType"),
        ("timeline=TIMELINE)", "timeline=TIMELINE).lazy()", "a table is a polars LazyFrame"),
    ],
)
def test_a_transformation_that_fails_is_an_error(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    """With the file of the code."""
    path = write_set(tmp_path)
    code = tmp_path / "account_payments/transformation/payments.py"
    code.write_text(CODE.replace(before, after))
    with pytest.raises(FeatureError) as caught:
        read(path).transform(
            pl.DataFrame(
                schema={
                    "account": pl.String,
                    "event": pl.Datetime("us", "UTC"),
                    "written": pl.Datetime("us", "UTC"),
                    "amount": pl.Float64,
                }
            )
        )
    assert message in caught.value.message and str(code) in caught.value.message


def test_a_transformation_may_define_dataclasses(tmp_path: Path) -> None:
    """Whose annotations are texts."""
    path = write_set(tmp_path)
    code = tmp_path / "account_payments/transformation/payments.py"
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    settings = "@dataclass\nclass Settings:\n    hours: int = 3\n\n\nclass Payments:"
    text = CODE.partition("\n\n")[2].replace("class Payments:", settings)
    code.write_text(imports + text)
    time = [datetime(2026, 3, 1, tzinfo=UTC)]
    rows = pl.DataFrame({"account": ["a"], "event": time, "written": time, "amount": [1.0]})
    assert read(path).transform(rows)["count_3h"].to_list() == [1]


def test_a_feature_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    """With the file of the code and the row of its table."""
    path = write_set(tmp_path)
    code = tmp_path / "account_payments/transformation/payments.py"
    ratio = 'timeline=TIMELINE).with_columns(spent_30h=pl.col("spent_30h") / 0)'
    code.write_text(CODE.replace("timeline=TIMELINE)", ratio))
    time = [datetime(2026, 3, 1, tzinfo=UTC)]
    rows = pl.DataFrame({"account": ["a"], "event": time, "written": time, "amount": [1.0]})
    with pytest.raises(FeatureError, match=rf"{code}: row 0: `spent_30h` is inf"):
        read(path).transform(rows)
