"""Columns of a table: what they are taken for, and what is refused with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ml.automl import tables, validation
from ml.automl.tables import Choices
from ml.toolkit.automl import reading
from tests.automl.conftest import DELIMITED, folder_of, of_numbers

HOW = [DELIMITED, "read_json_lines", "read_parquet"]


def table_of(folder: Path, choices: Choices | None = None) -> tables.Table:
    choices = choices or Choices()
    (rows,) = reading.read_all([folder], "y", choices.texts)
    return tables.as_table(rows, choices, target="y", regression=False)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("purpose", ["Categorical", "Text"])
def test_large_numbers_are_told_apart_as_categories(tmp_path: Path, purpose: str, how: str) -> None:
    """Also where one is missing, for which a column has no whole numbers any more."""
    numbers = pd.array([*(2**60 + at % 20 for at in range(59)), None], dtype="Int64")
    folder = of_numbers(tmp_path, numbers, how)
    table = table_of(folder, Choices(purposes={"a": purpose}))
    assert [*table.frame["a"].cat.categories] == [str(2**60 + at) for at in range(20)]
    assert table.frame["a"].isna().sum() == 1


@pytest.mark.parametrize("purpose", ["Categorical", "CategoricalHash", "Text"])
@pytest.mark.parametrize(
    "written", [("007", "7"), ("1", "1.0"), ("1e5", "2e5"), ("+1", "-1"), ("0.1", "0.10"), ("2.0",)]
)
def test_categories_of_numbers_are_as_the_file_writes_them(
    tmp_path: Path, written: Sequence[str], purpose: str
) -> None:
    folder = of_numbers(tmp_path, [[*written, "3"][at % (1 + len(written))] for at in range(60)])
    table = table_of(folder, Choices(purposes={"a": purpose}))
    assert [*table.frame["a"].cat.categories] == sorted([*written, "3"])


@pytest.mark.parametrize("how", HOW)
def test_a_text_that_says_that_none_is_there_is_missing(tmp_path: Path, how: str) -> None:
    """As in a request, with blanks around it too."""
    cells: list[object] = ["red", "NA", " null", "None ", "?"]
    table = table_of(of_numbers(tmp_path, cells * 12, how))
    assert [*table.frame["a"].cat.categories] == ["red"] and table.columns[0].missing == 0.8


@pytest.mark.parametrize(
    ("how", "cells"),
    [
        *((DELIMITED, [of, "false", ""]) for of in ("true", "True")),
        *((how, [True, False, None]) for how in HOW[1:]),
        *((how, [True, False]) for how in HOW[1:]),
    ],
)
def test_true_and_false_are_texts_as_files_write_them(
    tmp_path: Path, how: str, cells: list[object]
) -> None:
    """In JSON and Parquet those that a request states as JSON."""
    table = table_of(of_numbers(tmp_path, cells * 20, how))
    assert [*table.frame["a"].cat.categories] == sorted(
        str(of) if isinstance(of, str) else str(of).lower() for of in cells[:2]
    )


def test_categories_with_an_order_have_none(tmp_path: Path) -> None:
    sizes = pd.Categorical(["small", "large"] * 30, ["small", "large"], ordered=True)
    table = table_of(of_numbers(tmp_path, sizes, "read_parquet"))
    assert [*table.frame["a"].cat.categories] == ["large", "small"]
    assert not table.frame["a"].cat.ordered


def test_large_numbers_of_groups_and_times_are_told_apart(tmp_path: Path) -> None:
    """Of a group one may be missing; a time may have parts of a second."""
    numbers = pd.array([*(2**60 + at % 20 for at in range(59)), None], dtype="Int64")
    choices = Choices(group="a")
    table = table_of(of_numbers(tmp_path / "group", numbers), choices)
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
    assert table.columns[0].choice == "a number, 20 infinite treated as missing"
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
    expected = rf"error\[bad-splits\]: the fold column `use` is {found} in a row"
    with pytest.raises(SystemExit, match=expected):
        used(tmp_path, values * 20, Choices(splits=["use"]))


@pytest.mark.parametrize("values", [[1, 0], [1.0, 0.0], [True, False], ["TRUE", "false"]])
def test_splits_of_1_and_0(tmp_path: Path, values: list[object]) -> None:
    table = used(tmp_path, values * 20, Choices(splits=["use"]))
    assert table.splits[0].tolist() == [True, False] * 20


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        (Choices(group="y"), "both the target and the group"),
        (Choices(time="y"), "both the target and the time"),
        (Choices(weight="y"), "both the target and the row weight"),
        (Choices(weight="use", group="use"), "both the row weight and the group"),
        (Choices(splits=["use"], time="use"), "both a split of `cv_split_column_names` and the"),
    ],
)
def test_a_column_of_two_uses_is_refused(tmp_path: Path, choices: Choices, found: str) -> None:
    with pytest.raises(SystemExit, match=rf"error\[duplicate-use\]: `\w+` is {found}"):
        used(tmp_path, [0, 1] * 20, choices)


def test_an_imputer_takes_columns_of_numbers(tmp_path: Path) -> None:
    fills = {"use": {"strategy": "constant", "fill_value": "none"}}
    with pytest.raises(SystemExit, match=r"error\[bad-imputer\]: the imputer.s column `use` is"):
        used(tmp_path, ["red", "blue"] * 20, Choices(fills=fills))


def test_a_class_has_more_than_blanks(tmp_path: Path) -> None:
    """A cell of blanks is an empty one."""
    text = "y,a\n" + 'yes,1\nno,2\n" ",3\n' * 20
    table = table_of(folder_of(tmp_path, {"rows.csv": text}))
    assert {*table.labels} == {"yes", "no"} and len(table) == 40


def test_decimals_are_numbers(tmp_path: Path) -> None:
    numbers: list[object] = [Decimal(at) / 100 for at in range(59)]
    table = table_of(of_numbers(tmp_path, [*numbers, None], "read_parquet"))
    assert table.columns[0].feature == "number" and table.frame["a"].isna().sum() == 1
    assert table.frame["a"].iloc[25] == np.float32(0.25)


@pytest.mark.parametrize(
    ("values", "classes"),
    [([0.0, 1.0], {"0", "1"}), ([0.5, 1.0], {"0.5", "1.0"}), ([True, False], {"true", "false"})],
)
def test_classes_that_are_whole_numbers_have_no_point(
    tmp_path: Path, values: list[object], classes: set[str]
) -> None:
    """As a spec names them (`positive_label: 1`)."""
    rows = pd.DataFrame({"y": values * 20, "a": np.arange(40) % 5})
    rows.to_parquet(tmp_path / "rows.parquet")
    table = table_of(folder_of(tmp_path, {}, "read_parquet"))
    assert {*table.labels} == classes


@pytest.mark.parametrize(
    ("cell", "choice"),
    [
        ("#N/A", r"59 of 60 values are numbers, '#N/A' is not: excluded"),
        ("-", r"59 of 60 values are numbers, '-' is not: excluded"),
        ("7,5", r"59 of 60 values are numbers, '7,5' is not: excluded"),
    ],
)
def test_what_keeps_a_column_from_being_a_number_is_said(
    tmp_path: Path, cell: str, choice: str
) -> None:
    table = table_of(of_numbers(tmp_path, [*(at / 7 for at in range(59)), cell]))
    assert not table.columns[0].used and table.columns[0].choice.startswith(choice)


def test_decimals_with_a_comma_are_told(tmp_path: Path) -> None:
    table = table_of(of_numbers(tmp_path, [f"{at},5" for at in range(60)]))
    assert table.columns[0].choice == "numbers with a decimal comma: excluded"


def test_what_is_no_time_is_named(tmp_path: Path) -> None:
    days = [*(f"2026-01-{1 + at % 28:02}" for at in range(59)), "unknown"]
    with pytest.raises(SystemExit, match=r"error\[not-a-time\]: `a: DateTime` has 'unknown'"):
        table_of(of_numbers(tmp_path, days), Choices(purposes={"a": "DateTime"}))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("cells", [[True, False], ["44 years", "7 years"]])
def test_what_is_to_be_numeric_has_a_number(tmp_path: Path, how: str, cells: list[object]) -> None:
    """In some row; a request states true and false as no number either."""
    folder, choices = of_numbers(tmp_path, cells * 30, how), Choices(purposes={"a": "Numeric"})
    with pytest.raises(SystemExit, match=r"error\[not-numbers\]: `a: Numeric` has "):
        table_of(folder, choices)
    folder = of_numbers(tmp_path, ["9", *map(str, cells)] * 20, how)
    assert table_of(folder, choices).columns[0].missing == pytest.approx(2 / 3)
