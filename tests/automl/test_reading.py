"""Files of a table: what is read as it stands, and what is refused with a sentence."""

from __future__ import annotations

import json
from datetime import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ml.toolkit.automl import reading
from tests.automl.conftest import folder_of, of_numbers


def texts(rows: pd.DataFrame, name: str) -> list[Any]:
    """The cells of a column, "" a missing one."""
    return rows[name].astype(object).where(rows[name].notna(), "").tolist()


def test_a_delimiter_at_the_end_of_each_line_moves_no_column(tmp_path: Path) -> None:
    lines = [f"{'yes' if at % 2 else 'no'},{at},{at * 2},\n" for at in range(6)]
    text = "y,a,b\n" + "".join(lines)
    rows = reading.read(folder_of(tmp_path, {"rows.csv": text}), "y")
    assert texts(rows, "y") == ["no", "yes"] * 3
    assert texts(rows, "a") == [*range(6)] and texts(rows, "b") == [*range(0, 12, 2)]


@pytest.mark.parametrize("part", [3, 50_000])
@pytest.mark.parametrize(
    "lines",
    ["1,2,3,4\n5,6,7,8\n", "1,2,3\n5,6,7\n9,9,9,9\n", "1,2,3,\n5,6,7,\n9,9,9,9\n", "x,2,3,,\n"],
    ids=["each", "the last", "the last of those with an empty one", "two empty ones"],
)
def test_rows_that_are_longer_than_the_header_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, part: int
) -> None:
    monkeypatch.setattr(reading, "PART", part)
    folder = folder_of(tmp_path, {"rows.csv": f"y,a,b\n{lines}"})
    with pytest.raises(SystemExit, match=r"error\[unreadable\].*rows\.csv"):
        reading.read(folder, "y")


def test_texts_among_numbers_stay_in_their_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are read once more, as texts."""
    monkeypatch.setattr(reading, "PART", 2)
    text = "y,a,b\nyes,1,2,\nno,2,4,\nyes,old,6,\nno,4,8,\n"
    rows = reading.read(folder_of(tmp_path, {"rows.csv": text}), "y")
    assert texts(rows, "a") == ["1", "2", "old", "4"] and texts(rows, "b") == [2, 4, 6, 8]


def test_files_of_one_table(tmp_path: Path) -> None:
    """Their columns in any order; by the header of the first one where the others have none."""
    files = {"rows1.csv": "y,a\nyes,1\n", "rows2.csv": "a,y\n2,no\n"}
    rows = reading.read(folder_of(tmp_path / "a", files), "y")
    assert texts(rows, "y") == ["yes", "no"] and texts(rows, "a") == [1, 2]
    files = {"rows1.csv": "y,a\nyes,1\n", "rows2.csv": "no,2\nyes,3\n"}
    folder = folder_of(tmp_path / "b", files, options="header: from_first_file")
    rows = reading.read(folder, "y")
    assert texts(rows, "y") == ["yes", "no", "yes"] and texts(rows, "a") == [1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("y,a,z\n1,2,3\n", "y,a\n1,2\n", "rows2.csv lacks `z`"),
        ("y,a\n1,2\n", "y,a,z\n1,2,3\n", "rows2.csv also has `z`"),
        ("y,a\n1,2\n", "y,b\n1,2\n", "rows2.csv lacks `a`, also has `b`"),
    ],
)
def test_files_of_other_columns_are_refused(
    tmp_path: Path, first: str, second: str, found: str
) -> None:
    folder = folder_of(tmp_path, {"rows1.csv": first, "rows2.csv": second})
    with pytest.raises(SystemExit, match=rf"error\[column-mismatch\].*{found}"):
        reading.read(folder, "y")


@pytest.mark.parametrize(
    "option",
    [
        "infer_column_types: false",
        "empty_as_string: true",
        "include_path_column: true",
        "header: no_header",
        "delimiter: ab",
    ],
)
def test_options_that_are_not_read_are_refused(tmp_path: Path, option: str) -> None:
    folder = folder_of(tmp_path, {"rows.csv": "y,a\n1,2\n"}, options=option)
    with pytest.raises(SystemExit, match=rf"error\[bad-mltable\].*`{option}`"):
        reading.read(folder, "y")


def test_options_that_say_what_is_done_are_read(tmp_path: Path) -> None:
    """A field in quotes may have several lines."""
    options = (
        "infer_column_types: true, empty_as_string: false, include_path_column: false, "
        "support_multi_line: true, header: all_files_same_headers, encoding: utf8"
    )
    text = 'y,a\nyes,"two\nlines"\nno,""\n'
    rows = reading.read(folder_of(tmp_path, {"rows.csv": text}, options=options), "y")
    assert texts(rows, "a") == ["two\nlines", ""]


LETTERS = "y,a\nyes,A10\nno,007\n"
DIGITS = "y,a\nyes,007\nno,010\n"


def test_digits_of_a_column_that_has_texts_in_another_file(tmp_path: Path) -> None:
    """Are as the file writes them: of one table, and of those of validation and test."""
    rows = reading.read(folder_of(tmp_path / "a", {"rows1": DIGITS, "rows2": LETTERS}), "y")
    assert texts(rows, "a") == ["007", "010", "A10", "007"]
    folders = [
        folder_of(tmp_path / name, {"rows": of}) for name, of in (("b", DIGITS), ("c", LETTERS))
    ]
    for order in (folders, folders[::-1]):
        both = {
            at: texts(of, "a") for at, of in zip(order, reading.read_all(order, "y"), strict=True)
        }
        assert both == {folders[0]: ["007", "010"], folders[1]: ["A10", "007"]}


@pytest.mark.parametrize("second", ["true", ""])
def test_true_and_false_in_several_files(tmp_path: Path, second: str) -> None:
    files = {"rows1": "y,a\nyes,true\nno,false\n", "rows2": f"y,a\nyes,{second}\nno,\n"}
    rows = reading.read(folder_of(tmp_path, files), "y")
    assert texts(rows, "a") == ["true", "false", second, ""]


def test_a_column_without_values_is_of_any_type(tmp_path: Path) -> None:
    files = {"rows1": DIGITS, "rows2": "y,a\nyes,\nno,\n"}
    assert texts(reading.read(folder_of(tmp_path / "a", files), "y"), "a") == [7, 10, "", ""]
    files["rows1"] = LETTERS
    rows = reading.read(folder_of(tmp_path / "b", files), "y")
    assert texts(rows, "a") == ["A10", "007", "", ""]


def test_numbers_in_one_file_and_texts_in_another_are_refused(tmp_path: Path) -> None:
    """Where nobody wrote their digits; by its purpose the column is of texts."""
    for name, cells in (("rows1", [1.0, 2.5]), ("rows2", ["1", "x"])):
        pd.DataFrame({"y": ["yes", "no"], "a": cells}).to_parquet(tmp_path / name)
    folder = folder_of(tmp_path, {}, "read_parquet")
    expected = (
        r"(?s)error\[type-mismatch\]: `a` has texts in \S+rows2 and .*rows1.*\{a: Categorical\}"
    )
    with pytest.raises(SystemExit, match=expected):
        reading.read(folder, "y")
    (rows,) = reading.read_all([folder], "y", frozenset({"a"}))
    assert texts(rows, "a") == [1.0, 2.5, "1", "x"]


def test_an_index_with_a_name_is_a_column(tmp_path: Path) -> None:
    rows = pd.DataFrame({"y": ["yes", "no"], "a": [1, 2], "rating": [3, 5]})
    rows.set_index("rating").to_parquet(tmp_path / "rows")
    found = reading.read(folder_of(tmp_path, {}, "read_parquet"), "y")
    assert texts(found, "rating") == [3, 5] and len(found.columns) == 3


@pytest.mark.parametrize("how", ["read_json_lines", "read_parquet"])
def test_a_list_that_the_table_leaves_out(tmp_path: Path, how: str) -> None:
    rows = pd.DataFrame({"y": ["yes", "no"], "a": [1, 2], "l": [[1], [2]]})
    if how == "read_parquet":
        rows.to_parquet(tmp_path / "rows")
    else:
        rows.to_json(tmp_path / "rows", orient="records", lines=True)
    for step in ("drop_columns: [l]", "keep_columns: [a, y]"):
        text = f"paths: [{{file: rows}}]\ntransformations: [{how}, {{{step}}}]\n"
        (tmp_path / "MLTable").write_text(text)
        assert {*reading.read(tmp_path, "y").columns} == {"y", "a"}


@pytest.mark.parametrize("value", ["None", "NA", "null", "nan", "?"])
def test_any_text_is_the_name_of_a_class(tmp_path: Path, value: str) -> None:
    """Of a target an empty cell alone is missing; of other columns those texts are."""
    lines = "".join(f"{of},{of}\n" for of in (value, "Mild", "", "Severe") * 3)
    rows = reading.read(folder_of(tmp_path, {"rows.csv": f"y,a\n{lines}"}), "y")
    assert texts(rows, "y") == [value, "Mild", "", "Severe"] * 3
    assert texts(rows, "a") == ["", "Mild", "", "Severe"] * 3
    numbers = reading.read(tmp_path, "y", is_class=False)
    assert texts(numbers, "y") == ["", "Mild", "", "Severe"] * 3


@pytest.mark.parametrize("cell", [[1, 2], {"of": 1}])
@pytest.mark.parametrize("how", ["read_json_lines", "read_parquet"])
def test_cells_that_are_lists_or_objects_are_refused(
    tmp_path: Path, how: str, cell: object
) -> None:
    """With the name of the file among several."""
    for number, a in ((1, 1.5), (2, cell)):
        rows = [{"y": "yes", "a": a}, {"y": "no", "a": None if number == 2 else a}]
        if how == "read_parquet":
            pd.DataFrame(rows).to_parquet(tmp_path / f"rows{number}")
        else:
            (tmp_path / f"rows{number}").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit, match=r"error\[unreadable\]: \S+/rows2 has a .* in `a`"):
        reading.read(folder_of(tmp_path, {}, how), "y")


@pytest.mark.parametrize("cell", [b"ab", pd.Timedelta(days=1), time(12, 30)])
def test_columns_that_no_request_can_have_are_refused(tmp_path: Path, cell: object) -> None:
    """Unless the MLTable leaves them out."""
    table = pd.DataFrame({"y": ["yes", "no"], "b": [1, 2], "a": [cell, cell]})
    table.to_parquet(tmp_path / "rows")
    folder = folder_of(tmp_path, {}, "read_parquet")
    with pytest.raises(
        SystemExit, match=r"(?s)error\[unreadable\]: \S+/rows has `a` of type .*drop_"
    ):
        reading.read(folder, "y")
    text = (folder / "MLTable").read_text()
    (folder / "MLTable").write_text(text.replace("}}]", "}}, {drop_columns: a}]"))
    assert [*reading.read(folder, "y")] == ["y", "b"]


@pytest.mark.parametrize(
    ("how", "content"),
    [
        ("read_parquet", b"PAR1 and nothing more"),
        ("read_parquet", b""),
        ("read_json_lines", '{"y": "é"}'.encode("latin-1")),
        ("read_json_lines", b'{"y": \n'),
        ("read_json_lines", b"[1, 2]\n"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, how: str, content: bytes) -> None:
    (tmp_path / "rows.part").write_bytes(content)
    with pytest.raises(SystemExit, match=r"error\[unreadable\]: \S+rows\.part"):
        reading.read(folder_of(tmp_path, {}, how), "y")


def test_a_file_of_parquet_that_breaks_off(tmp_path: Path) -> None:
    """Behind a schema that can be read."""
    folder = of_numbers(tmp_path, [at / 3 for at in range(400)], "read_parquet")
    file = folder / "rows.parquet"
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    file.write_bytes(content)
    with pytest.raises(SystemExit, match=r"error\[unreadable\]: \S+rows\.parquet"):
        reading.read(folder, "y")
