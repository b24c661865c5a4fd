"""Tables as files have them: what is read as it stands, and what is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ml.automl import tables, validation
from ml.automl.tables import Choices

MLTABLE = "paths: [{{pattern: './rows*'}}]\ntransformations: [{{{how}: {{{options}}}}}]\n"
DELIMITED = "read_delimited"


def folder_of(
    folder: Path, files: Mapping[str, str], how: str = DELIMITED, options: str = ""
) -> Path:
    """An MLTable of files `rows*` with these texts."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "MLTable").write_text(MLTABLE.format(how=how, options=options))
    return folder


def texts(rows: pd.DataFrame, name: str) -> list[Any]:
    """The cells of a column, "" a missing one."""
    return rows[name].astype(object).where(rows[name].notna(), "").tolist()


def test_a_delimiter_at_the_end_of_each_line_moves_no_column(tmp_path: Path) -> None:
    lines = [f"{'yes' if at % 2 else 'no'},{at},{at * 2},\n" for at in range(6)]
    text = "y,a,b\n" + "".join(lines)
    rows = tables.read(folder_of(tmp_path, {"rows.csv": text}), "y")
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
    monkeypatch.setattr(tables, "PART", part)
    folder = folder_of(tmp_path, {"rows.csv": f"y,a,b\n{lines}"})
    with pytest.raises(SystemExit, match=r"error\[unreadable\].*rows\.csv"):
        tables.read(folder, "y")


def test_texts_among_numbers_stay_in_their_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are read once more, as texts."""
    monkeypatch.setattr(tables, "PART", 2)
    text = "y,a,b\nyes,1,2,\nno,2,4,\nyes,old,6,\nno,4,8,\n"
    rows = tables.read(folder_of(tmp_path, {"rows.csv": text}), "y")
    assert texts(rows, "a") == ["1", "2", "old", "4"] and texts(rows, "b") == [2, 4, 6, 8]


def test_files_of_one_table(tmp_path: Path) -> None:
    """Their columns in any order; by the header of the first one where the others have none."""
    files = {"rows1.csv": "y,a\nyes,1\n", "rows2.csv": "a,y\n2,no\n"}
    rows = tables.read(folder_of(tmp_path / "a", files), "y")
    assert texts(rows, "y") == ["yes", "no"] and texts(rows, "a") == [1, 2]
    files = {"rows1.csv": "y,a\nyes,1\n", "rows2.csv": "no,2\nyes,3\n"}
    folder = folder_of(tmp_path / "b", files, options="header: from_first_file")
    rows = tables.read(folder, "y")
    assert texts(rows, "y") == ["yes", "no", "yes"] and texts(rows, "a") == [1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("y,a,z\n1,2,3\n", "y,a\n1,2\n", "rows2.csv lacks `z`"),
        ("y,a\n1,2\n", "y,a,z\n1,2,3\n", "rows2.csv has `z` besides"),
        ("y,a\n1,2\n", "y,b\n1,2\n", "rows2.csv lacks `a`, has `b` besides"),
    ],
)
def test_files_of_other_columns_are_refused(
    tmp_path: Path, first: str, second: str, found: str
) -> None:
    folder = folder_of(tmp_path, {"rows1.csv": first, "rows2.csv": second})
    with pytest.raises(SystemExit, match=rf"error\[other-columns\].*{found}"):
        tables.read(folder, "y")


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
        tables.read(folder, "y")


def test_options_that_say_what_is_done_are_read(tmp_path: Path) -> None:
    """A field in quotes may have several lines."""
    options = (
        "infer_column_types: true, empty_as_string: false, include_path_column: false, "
        "support_multi_line: true, header: all_files_same_headers, encoding: utf8"
    )
    text = 'y,a\nyes,"two\nlines"\nno,""\n'
    rows = tables.read(folder_of(tmp_path, {"rows.csv": text}, options=options), "y")
    assert texts(rows, "a") == ["two\nlines", ""]


@pytest.mark.parametrize("value", ["None", "NA", "null", "nan", "?"])
def test_any_text_is_the_name_of_a_class(tmp_path: Path, value: str) -> None:
    """Of a target an empty cell alone is missing; of other columns those texts are."""
    lines = "".join(f"{of},{of}\n" for of in (value, "Mild", "", "Severe") * 3)
    rows = tables.read(folder_of(tmp_path, {"rows.csv": f"y,a\n{lines}"}), "y")
    assert texts(rows, "y") == [value, "Mild", "", "Severe"] * 3
    assert texts(rows, "a") == ["", "Mild", "", "Severe"] * 3
    numbers = tables.read(tmp_path, "y", is_class=False)
    assert texts(numbers, "y") == ["", "Mild", "", "Severe"] * 3


def of_numbers(folder: Path, numbers: list[object], how: str = DELIMITED) -> Path:
    """An MLTable of these as `a`, with a number `b` and a class `y`."""
    rows = pd.DataFrame({"a": numbers, "b": np.arange(len(numbers)) % 7})
    rows["y"] = np.where(rows["b"] > 3, "yes", "no")
    folder.mkdir(exist_ok=True)
    if how == DELIMITED:
        rows.to_csv(folder / "rows.csv", index=False)
    else:
        rows.to_parquet(folder / "rows.parquet")
    return folder_of(folder, {}, how)


def table_of(folder: Path, choices: Choices | None = None) -> tables.Table:
    return tables.as_table(tables.read(folder, "y"), choices, target="y", regression=False)


@pytest.mark.parametrize("how", [DELIMITED, "read_parquet"])
@pytest.mark.parametrize("purpose", ["Categorical", "Text"])
def test_large_numbers_are_told_apart_as_categories(tmp_path: Path, purpose: str, how: str) -> None:
    """Also where one is missing, for which a column has no whole numbers any more."""
    numbers: list[object] = [100_000_001 + at % 20 for at in range(59)]
    folder = of_numbers(tmp_path, [*numbers, None], how)
    table = table_of(folder, Choices(purposes={"a": purpose}))
    assert [*table.frame["a"].cat.categories] == [str(100_000_001 + at) for at in range(20)]
    assert table.frame["a"].isna().sum() == 1


def test_categories_of_decimals_are_as_the_file_writes_them(tmp_path: Path) -> None:
    folder = of_numbers(tmp_path, [(0.1, 0.25, 12.3)[at % 3] for at in range(60)])
    table = table_of(folder, Choices(purposes={"a": "Categorical"}))
    assert [*table.frame["a"].cat.categories] == ["0.1", "0.25", "12.3"]


def test_large_numbers_of_groups_and_times_are_told_apart(tmp_path: Path) -> None:
    """Of a group one may be missing; a time may have parts of a second."""
    numbers: list[object] = [100_000_001 + at % 20 for at in range(59)]
    choices = Choices(group="a")
    table = table_of(of_numbers(tmp_path / "group", [*numbers, None]), choices)
    groups = validation.divided(table, None, choices, 0).groups
    assert groups is not None and len(np.unique(groups)) == 21
    choices = Choices(time="a")
    seconds: list[object] = [1.7e9 + at / 4 for at in range(60)]
    table = table_of(of_numbers(tmp_path / "time", seconds), choices)
    assert validation.times(table, "a").tolist() == seconds


def test_large_numbers_are_fitted_in_single_precision(tmp_path: Path) -> None:
    """What none can have in it is infinite."""
    table = table_of(of_numbers(tmp_path, [1e300, 0.5, -3e9] * 20))
    assert table.frame["a"].dtype == np.float32
    assert table.columns[0].choice == "a number, 20 infinite taken as missing"
    assert table.frame["a"].dropna().unique().tolist() == [0.5, -3e9]


def used(folder: Path, values: list[object], choices: Choices) -> tables.Table:
    """The table of a number, a class and a column `use` of these values."""
    folder.mkdir(exist_ok=True)
    rows = pd.DataFrame({"a": np.arange(len(values)) % 5, "use": values})
    rows["y"] = np.where(rows["a"] > 2, "yes", "no")
    rows.to_csv(folder / "rows.csv", index=False)
    return table_of(folder_of(folder, {}), choices)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["heavy", "light"], "is 'heavy' in a row"),
        ([0, 0], "is 0 in all rows"),
        ([1, -1], "is -1 in a row"),
        ([1.5, None], "is missing in a row"),
        ([1.5, "inf"], "is inf in a row"),
    ],
)
def test_weights_that_are_none(tmp_path: Path, values: list[object], found: str) -> None:
    with pytest.raises(SystemExit, match=rf"error\[bad-weights\]: `use` {found}"):
        used(tmp_path, values * 20, Choices(weight="use"))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, 2, 3, 4, 5], "'2'"),
        ([0, 1, None], "missing"),
        (["train", "test"], "'test'"),
        ([0.5, 1], "'0.5'"),
    ],
)
def test_splits_that_are_none(tmp_path: Path, values: list[object], found: str) -> None:
    """Numbers of folds would be taken for the rows of the first one."""
    expected = rf"error\[bad-splits\]: `use` of `cv_split_column_names` is {found} in a row"
    with pytest.raises(SystemExit, match=expected):
        used(tmp_path, values * 20, Choices(splits=["use"]))


@pytest.mark.parametrize("values", [[1, 0], [1.0, 0.0], [True, False], ["TRUE", "false"]])
def test_splits_of_1_and_0(tmp_path: Path, values: list[object]) -> None:
    table = used(tmp_path, values * 20, Choices(splits=["use"]))
    assert table.splits[0].tolist() == [True, False] * 20


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        (Choices(group="y"), "both the target and what rows belong to"),
        (Choices(time="y"), "both the target and the time of rows"),
        (Choices(weight="y"), "both the target and the weight of rows"),
        (Choices(weight="use", group="use"), "both the weight of rows and what rows belong to"),
        (Choices(splits=["use"], time="use"), "both a split of `cv_split_column_names` and the"),
    ],
)
def test_a_column_of_two_uses_is_refused(tmp_path: Path, choices: Choices, found: str) -> None:
    with pytest.raises(SystemExit, match=rf"error\[two-uses\]: `\w+` is {found}"):
        used(tmp_path, [0, 1] * 20, choices)


def test_an_imputer_takes_columns_of_numbers(tmp_path: Path) -> None:
    fills = {"use": {"strategy": "constant", "fill_value": "none"}}
    with pytest.raises(SystemExit, match=r"error\[bad-imputer\]: `use` of the imputer is no"):
        used(tmp_path, ["red", "blue"] * 20, Choices(fills=fills))


def test_a_class_has_more_than_blanks(tmp_path: Path) -> None:
    """A cell of blanks is an empty one."""
    text = "y,a\n" + 'yes,1\nno,2\n" ",3\n' * 20
    table = table_of(folder_of(tmp_path, {"rows.csv": text}))
    assert {*table.labels} == {"yes", "no"} and len(table) == 40


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
    with pytest.raises(SystemExit, match=r"error\[unreadable\]: \S+/rows2 has a .* as `a`"):
        tables.read(folder_of(tmp_path, {}, how), "y")


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
        tables.read(folder_of(tmp_path, {}, how), "y")


def test_a_file_of_parquet_that_breaks_off(tmp_path: Path) -> None:
    """Behind a schema that can be read."""
    folder = of_numbers(tmp_path, [at / 3 for at in range(400)], "read_parquet")
    file = folder / "rows.parquet"
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    file.write_bytes(content)
    with pytest.raises(SystemExit, match=r"error\[unreadable\]: \S+rows\.parquet"):
        tables.read(folder, "y")


def test_decimals_are_numbers(tmp_path: Path) -> None:
    numbers: list[object] = [Decimal(at) / 100 for at in range(59)]
    table = table_of(of_numbers(tmp_path, [*numbers, None], "read_parquet"))
    assert table.columns[0].feature == "number" and table.frame["a"].isna().sum() == 1
    assert table.frame["a"].iloc[25] == np.float32(0.25)


@pytest.mark.parametrize(
    ("values", "classes"),
    [([0.0, 1.0], {"0", "1"}), ([0.5, 1.0], {"0.5", "1.0"}), ([True, False], {"True", "False"})],
)
def test_classes_that_are_whole_numbers_have_no_point(
    tmp_path: Path, values: list[object], classes: set[str]
) -> None:
    """As a spec names them (`positive_label: 1`)."""
    rows = pd.DataFrame({"y": values * 20, "a": np.arange(40) % 5})
    rows.to_parquet(tmp_path / "rows.parquet")
    table = table_of(folder_of(tmp_path, {}, "read_parquet"))
    assert {*table.labels} == classes
