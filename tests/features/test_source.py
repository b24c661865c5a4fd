"""Wrong files: an error with file, column and the line or row, or the documented result."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from ml.features import source
from ml.features.definition import FeatureSet
from ml.features.materialize import materialize
from ml.features.store import stored
from ml.features.timeline import FeatureError
from ml.features.training_set import training_set
from tests.features.test_materialize import HOUR, START, TYPES, payment, write

GOOD = pl.DataFrame([payment(1), payment(2)], schema=TYPES, orient="row")
INFINITE = 1 / (1 - pl.int_range(pl.len()))  # 1, then infinity


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
        (GOOD.with_columns(__row__=1), "reserved-column", "there is a column `__row__`"),
        (GOOD.with_columns(amount=INFINITE), "not-finite", "row 1: `amount` is inf"),
        (GOOD.with_columns(amount=-INFINITE), "not-finite", "row 1: `amount` is -inf"),
        (GOOD.with_columns(amount=INFINITE * 0), "not-finite", "row 1: `amount` is nan"),
        (
            GOOD.with_columns(amount=INFINITE.cast(pl.Float32)),
            "not-finite",
            "row 1: `amount` is inf",
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


def test_a_file_that_polars_panics_over_is_named(
    account_payments: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic is no Exception."""

    def panic(path: Path, **words: object) -> None:
        raise pl.exceptions.PanicException("unwrap of None")

    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    monkeypatch.setattr(pl, "scan_parquet", panic)
    with pytest.raises(FeatureError, match=r"1\.parquet: unwrap of None"):
        materialize(account_payments, source, tmp_path / "store")


HEADER = "account,event,written,amount\n"
AT = "2026-03-01T00:00:00Z"
ROW = f"a,{AT},{AT},1\n"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "unreadable-file", ": Empty CSV"),
        ("\n\n", "unreadable-file", ": CSV parse error: Empty CSV"),
        (
            f"{HEADER}{ROW}a,{AT},2026-03-01",
            "wrong-field-count",
            ":3: a row with other fields than the header: Expected 4 columns, got 3",
        ),
        (
            f"{HEADER}{ROW}a,{AT},{AT},1,2\n{ROW}",
            "wrong-field-count",
            ":3: a row with other fields than the header: Expected 4 columns, got 5",
        ),
        (
            f'{HEADER}{ROW}"a,{AT},{AT},1\n{ROW}',
            "wrong-field-count",
            ":3: a row with other fields",
        ),
        (f"{HEADER}{ROW}a\udcff,{AT},{AT},1\n", "wrong-type", ":3: `account` is invalid UTF8"),
        (f"\udcff\udcfe{HEADER}{ROW}", "unreadable-file", ": header: 'utf-8' codec"),
        (f"{HEADER}{ROW}a,{AT},2026-03-01,1\n", "wrong-type", ":3: `written` is '2026-03-01'"),
        (f"{HEADER}{ROW}a,2026-03-01 00:00,{AT},1\n", "wrong-type", ":3: `event` is '2026-03"),
        (f"{HEADER}{ROW}a,2026-03-01T00:00:00,{AT},1\n", "wrong-type", ":3: `event`"),
        (f"{HEADER}{ROW}a,soon,{AT},1\n", "wrong-type", ":3: `event` is 'soon'"),
        (f"{HEADER}{ROW}a,,{AT},1\n", "empty-time", ":3: `event` is empty"),
        (f"{HEADER}{ROW},{AT},{AT},1\n", "empty-key", ":3: `account` is empty"),
        (f"{HEADER}{ROW}a,{AT},{AT},x1\n", "wrong-type", ":3: `amount` is 'x1'"),
        (f"{HEADER}{ROW}a,{AT},{AT},NaN\n", "not-finite", ":3: `amount` is nan"),
        (f"{HEADER}{ROW}a,{AT},{AT},-inf\n", "not-finite", ":3: `amount` is -inf"),
        (f"{HEADER}{ROW}a,{AT},{AT},1e999\n", "not-finite", ":3: `amount` is inf"),
        (f'\n\n{HEADER}{ROW}"a\n",{AT},{AT},1\n,{AT},{AT},1\n', "empty-key", ":4: `account` is"),
        (f"{HEADER}\n,{AT},{AT},1\n", "empty-key", ":2: `account` is empty"),
        ("account,written,amount\n", "missing-column", ": there is no column `event`"),
        (f"account,{HEADER}a,{ROW}", "column-twice", ": the column `account` is there twice"),
        (HEADER.replace(",amount", ""), "missing-column", ": there is no column `amount`"),
    ],
)
def test_a_wrong_csv_names_file_line_and_column(
    text: str, code: str, message: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """The first file is right, so the second is the one that is named."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.csv").write_text(HEADER + ROW)
    (source / "2.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FeatureError) as caught:
        materialize(account_payments, source, tmp_path / "store")
    assert caught.value.code == code
    assert f"2.csv{message}" in caught.value.message


@pytest.mark.parametrize("position", [1, 30])
def test_a_text_among_numbers_is_named(
    position: int, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Also after the rows that a plan transforms, and by a training set."""
    cells = ["1"] * 40
    cells[position] = "12.5€"
    rows = (f"{number % 7},{AT},{AT},{cell}\n" for number, cell in enumerate(cells))
    path = tmp_path / "1.csv"
    path.write_text(HEADER + "".join(rows))
    message = rf"1\.csv:{position + 2}: `amount` is '12\.5€'"
    with pytest.raises(FeatureError, match=message) as caught:
        materialize(account_payments, path, tmp_path / "store")
    assert caught.value.code == "wrong-type"
    labels, sources = pl.DataFrame({"account": ["1"], "time": [START]}), {"account_payments": path}
    with pytest.raises(FeatureError, match=message):
        training_set(labels, [account_payments], time="time", sources=sources)


def test_a_column_with_many_texts_is_text(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Codes, one in four of them a number; the features do not use them."""
    codes = ["7", "a1", "a2", "a3"]
    rows = (f"{ROW.strip()},{code}\n" for code in codes)
    (tmp_path / "1.csv").write_text(HEADER.strip() + ",code\n" + "".join(rows))
    frames = source.scan(account_payments, source.files(tmp_path / "1.csv"))
    assert frames["1.csv"].collect()["code"].to_list() == codes


def test_a_transformation_that_fails_names_the_source(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """A column that was renamed is none that a key or a time of the definition names."""
    (tmp_path / "1.csv").write_text(HEADER.replace("amount", "price") + f"a,{AT},{AT},1\n")
    with pytest.raises(FeatureError, match=r"1\.csv: .*payments\.py: .*`amount`") as caught:
        materialize(account_payments, tmp_path / "1.csv", tmp_path / "store")
    assert caught.value.code == "missing-column"


@pytest.mark.parametrize(
    ("first", "second", "sums"),
    [
        (f"1,{AT},{AT},1\n", f"x1,{AT},{AT},2\n", [1.0, 2.0]),  # keys that look like numbers
        (f"a,{AT},{AT},1\n", f"b,{AT},{AT},2.5\n", [1.0, 2.5]),
        (f"a,{AT},{AT},\na,{AT},{AT},1\n", f"b,{AT},{AT},\n", [1.0, 0.0]),
        ("", f"a,{AT},{AT},1\n", [1.0]),
        (f"a,{AT},{AT},1\n", "", [1.0]),
        (f"a,{AT},{AT},1\n", "b,2026-03-01T01:00:00+01:00,2026-03-01 00:00:00Z,2\n", [1.0, 2.0]),
    ],
)
def test_the_types_of_csv_files_agree(
    first: str, second: str, sums: list[float], account_payments: FeatureSet, tmp_path: Path
) -> None:
    """In one run, and in two."""
    for store, runs in (("one", 1), ("two", 2)):
        source = tmp_path / store / "source"
        source.mkdir(parents=True)
        (source / "1.csv").write_text(HEADER + first)
        if runs == 2 and first:
            materialize(account_payments, source, tmp_path / store)
        (source / "2.csv").write_text(HEADER + second)
        materialize(account_payments, source, tmp_path / store)
        assert stored(account_payments, tmp_path / store)["spent_30h"].to_list() == sums


def test_a_source_without_rows_is_an_error(account_payments: FeatureSet, tmp_path: Path) -> None:
    """A folder without files, and files without rows; one empty file among others counts."""
    with pytest.raises(FeatureError, match="Parquet or CSV files"):
        source.files(tmp_path)
    with pytest.raises(FeatureError, match="nothing does not exist"):
        source.files(tmp_path / "nothing")
    (tmp_path / "1.csv").write_text(HEADER)
    with pytest.raises(FeatureError, match="at least one row"):
        materialize(account_payments, tmp_path / "1.csv", tmp_path / "store")
    folder = write(tmp_path / "source", "1.parquet", [])
    with pytest.raises(FeatureError, match="at least one row"):
        materialize(account_payments, folder, tmp_path / "store")
    write(folder, "2.parquet", [payment(0)])
    materialize(account_payments, folder, tmp_path / "store")
    assert stored(account_payments, tmp_path / "store").height == 1


def test_an_empty_column_has_the_type_of_another_file(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Alone, its sum is 0."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "1.csv").write_text(f"{HEADER}a,{AT},{AT},\n")
    materialize(account_payments, folder, tmp_path / "store")
    assert stored(account_payments, tmp_path / "store")["spent_30h"].to_list() == [0.0]
    (folder / "2.csv").write_text(f"{HEADER}a,{AT},{AT},2.5\n")
    materialize(account_payments, folder, tmp_path / "store")
    assert stored(account_payments, tmp_path / "store")["spent_30h"].to_list() == [2.5]


def test_an_empty_number_is_null(account_payments: FeatureSet, tmp_path: Path) -> None:
    """It counts as an event, and adds nothing to a sum."""
    (tmp_path / "1.csv").write_text(f"{HEADER}{ROW}a,{AT},{AT},\n")
    write(tmp_path / "source", "1.parquet", [payment(0), payment(0, amount=None)])
    for number, path in enumerate([tmp_path / "1.csv", tmp_path / "source"]):
        materialize(account_payments, path, tmp_path / str(number))
        rows = stored(account_payments, tmp_path / str(number)).select("count_3h", "spent_30h")
        assert rows.rows() == [(2, 1.0)]


@pytest.mark.parametrize("name", ["2.csv", "2.csv.gz", "2.CSV", "notes.txt"])
def test_files_of_two_kinds_are_an_error(name: str, tmp_path: Path) -> None:
    """None is left out unnoticed; a CSV file states no types to compare with a Parquet file's."""
    (write(tmp_path, "1.parquet", [payment(0)]) / name).write_text(HEADER)
    with pytest.raises(FeatureError, match=rf"{name} is of another kind") as failed:
        source.files(tmp_path)
    assert failed.value.code == "mixed-files"
    (tmp_path / "1.parquet").unlink()
    if name != "2.csv":
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(FeatureError, match=rf"{name} is of another kind"):
                source.files(path)


def test_spark_folders_and_markers_are_read(tmp_path: Path) -> None:
    """Spark writes folders that end with .csv, with a marker and checksums beside the parts."""
    part = write(tmp_path / "payments.csv", "part-0.csv", [payment(0)]) / "part-0.csv"
    for marker in ("_SUCCESS", ".part-0.csv.crc"):
        part.with_name(marker).write_text("")
    assert source.files(tmp_path) == {"payments.csv/part-0.csv": part}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_with_wildcards_are_names(
    kind: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Of source files and of the store."""
    folder = write(tmp_path / "source", f"[1]*?.{kind}", [payment(0)])
    materialize(account_payments, folder, tmp_path / "store[x]*")
    labels = pl.DataFrame({"account": ["a"], "time": [START + HOUR]})
    joined = training_set(labels, [account_payments], time="time", store=tmp_path / "store[x]*")
    assert joined.table["count_3h"].to_list() == [1]


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
