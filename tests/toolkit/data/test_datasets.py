"""ml.toolkit.data.datasets: a table read under its schema, split, and encoded for a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.measures.measurement import predict
from ml.toolkit.data.datasets import Dataset, read_dataset

ROWS = 600
COLUMNS = [
    {"name": "name", "type": "id", "unique": True},
    {"name": "size", "type": "float", "optional": True},
    {"name": "place", "type": "category", "optional": True},
    {"name": "age", "type": "integer"},
    {"name": "since", "type": "timestamp"},
    {"name": "remark", "type": "text"},
    {"name": "left", "type": "category"},
]
SCHEMA: dict[str, Any] = {
    **{"task": "binary", "primary_metric": "log_loss", "target": "left", "positive": "yes"},
    **{"id": "name", "slices": ["place", "age"], "header": True, "delimiter": ","},
    **{"rows": [100, 1000], "columns": COLUMNS},
}


def line(at: int) -> str:
    """One row; the place and the size are missing now and then."""
    place = ("north", "south", "")[at % 3]
    size = "NA" if at % 5 == 0 else f"{at / 7:.3f}"
    day = f"2026-01-{1 + at * 28 // ROWS:02}"
    return f"n{at},{size},{place},{at % 60},{day},word {at},{('no', 'yes')[at % 4 == 0]}"


LINES = [",".join(str(column["name"]) for column in COLUMNS), *map(line, range(ROWS))]


def read(folder: Path, lines: list[str] = LINES, **changed: object) -> Dataset:
    """The dataset of these lines under the schema with some fields changed; None removes one."""
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    fields = {name: of for name, of in {**SCHEMA, **changed}.items() if of is not None}
    (folder / "t.schema.yml").write_text(yaml.safe_dump(fields))
    return read_dataset(folder, folder / "t.schema.yml")


def ids(dataset: Dataset) -> Mapping[str, set[str]]:
    """The ids of every split."""
    return {name: set(part.ids) for name, part in dataset.splits.items()}


def test_features_are_numbers_and_categories(tmp_path: Path) -> None:
    """Typed as a request has them; the target, the id, times and texts are none."""
    dataset = read(tmp_path)
    assert [column.name for column in dataset.features] == ["size", "place", "age"]
    row = dict(zip(dataset.train.ids, dataset.train.rows, strict=True))
    assert all(row[f"n{at}"][0] is None for at in range(0, ROWS, 5) if f"n{at}" in row)
    first = next(name for name in row if int(name[1:]) % 15 == 1)
    at = int(first[1:])
    assert row[first] == [float(f"{at / 7:.3f}"), "south" if at % 3 else "north", at % 60]
    columns = dataset.columns(lambda row: row, "codes")
    assert columns.columns == {"size": "float", "place": "text", "age": "integer"}
    assert columns.categorical == [1]
    assert {*dataset.numbers("test", columns).table[:, 1]} >= {0, 1}
    assert dataset.inputs()["place"][0] == "categorical"
    assert len(dataset.inputs()["age"][1]) == ROWS


def test_a_text_is_the_only_feature(tmp_path: Path) -> None:
    """Its slices are thirds of its number of words, and requests send it."""
    cells = [line.split(",") for line in LINES]
    for at, row in enumerate(cells[1:]):
        row[5] = " ".join(["word"] * (1 + at % 30))
    dataset = read(tmp_path, [",".join(row) for row in cells], text="remark", slices=["remark"])
    assert [column.name for column in dataset.features] == ["remark"]
    assert dataset.inputs()["remark"][0] == "text"
    assert {*dataset.test.slices["remark"]} == {"below 11", "11 to 20", "above 20"}
    table: Any = dataset.test.requests[0]["input_data"]
    assert table["columns"] == ["remark"] and table["data"][0] == dataset.test.rows[0]
    columns = dataset.columns(lambda row: row, "tokens")
    assert dataset.numbers("test", columns).table.shape == (len(dataset.test), len(columns.names))


def test_a_text_without_a_word_is_missing(tmp_path: Path) -> None:
    """As in a request: a column that is not optional refuses it."""
    lines = [*LINES, "x,1,north,3,2026-01-01,NA,no"]
    assert len(read(tmp_path, lines).features) == 3
    with pytest.raises(SystemExit, match=r"table\.csv:602: remark is empty"):
        read(tmp_path, lines, text="remark")


def test_the_test_is_there_as_a_client_sends_it(tmp_path: Path) -> None:
    """Texts with the spaces and words for nothing that stand in the table, numbers as numbers."""
    cells = [line.split(",") for line in LINES]
    for at, row in enumerate(cells[1:]):
        row[2] = (" north ", "N/A", "")[at % 3]
    test = read(tmp_path, [",".join(row) for row in cells]).test
    sent = {}
    for name, request in zip(test.ids, test.requests, strict=True):
        table: Any = request["input_data"]
        assert table["columns"] == ["size", "place", "age"]
        (sent[name],) = table["data"]
    assert sent.keys() == {*test.ids}
    for name, row in sent.items():
        at = int(name[1:])
        size = None if at % 5 == 0 else float(f"{at / 7:.3f}")
        assert row == [size, (" north ", "N/A", "")[at % 3], at % 60]


def test_labels_and_slices(tmp_path: Path) -> None:
    """1 is the positive value; many numbers are cut into thirds, and a missing value is a slice."""
    dataset = read(tmp_path, slices=["place", "age", "size"])
    test = dataset.test
    expected = [int(int(name[1:]) % 4 == 0) for name in test.ids]
    assert test.labels.tolist() == expected
    assert {*test.slices["place"]} == {"north", "south", "missing"}
    thirds = {"below 28.714", "28.714 to 57", "above 57"}
    assert {*test.slices["size"]} == {*thirds, "missing"}
    assert {*test.slices["age"]} == {"below 20", "20 to 39", "above 39"}
    assert dataset.scored("test", [0.5] * len(test)).slices == test.slices


def test_a_row_stays_where_it_is(tmp_path: Path) -> None:
    """Three splits without a row in common, about three fifths in training, whatever is added."""
    before = ids(read(tmp_path))
    assert sum(map(len, before.values())) == ROWS == len(set.union(*before.values()))
    assert 0.5 * ROWS < len(before["train"]) < 0.7 * ROWS
    after = ids(
        read(tmp_path, [LINES[0], *(line(at) for at in range(ROWS, ROWS + 50)), *LINES[1:]])
    )
    assert all(before[name] <= after[name] for name in before)


def test_without_an_id_the_content_tells_rows_apart(tmp_path: Path) -> None:
    """A row that is there twice is in one split, under two names."""
    names = COLUMNS[1:]
    lines = [text.partition(",")[2] for text in LINES]
    found = ids(read(tmp_path, [*lines, *lines[1:]], id=None, columns=names, rows=[100, 2000]))
    assert sum(map(len, found.values())) == 2 * ROWS
    for of in found.values():
        assert {name.partition("-")[0] for name in of if "-" in name} <= of


def test_a_row_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    """Numbers with more zeros and texts with spaces around do not put it into another split."""
    names = COLUMNS[1:]
    lines = [text.partition(",")[2] for text in LINES]
    spaced = [lines[0], *(", ".join(text.split(",")) for text in lines[1:])]
    first, other = (
        ids(read(tmp_path, each, id=None, columns=names, rows=[100, 2000]))
        for each in (lines, spaced)
    )
    assert first == other


def test_groups_stay_together(tmp_path: Path) -> None:
    """All rows of an age are in one split; a group is not a feature."""
    dataset = read(tmp_path, group="age", slices=["place"])
    ages = [{*part.groups} for part in dataset.splits.values()]
    assert sum(map(len, ages)) == 60 == len(set.union(*ages))
    assert [column.name for column in dataset.features] == ["size", "place"]
    assert dataset.scored("test").groups == dataset.test.groups


def test_later_rows_are_the_test(tmp_path: Path) -> None:
    """Every row of training is before validation, and that before the test."""
    parts = read(tmp_path, time="since").splits
    ends = [(min(part.times), max(part.times)) for part in parts.values()]
    assert ends[0][1] < ends[1][0] <= ends[1][1] < ends[2][0]
    assert all(len(part) >= 0.1 * ROWS for part in parts.values())
    (check,) = read(tmp_path, time="since").leakage()
    assert (check.check, check.value) == ("time.not_later", 0)
    assert read(tmp_path).leakage() == []
    zoned = [text.replace("-01-15,", "-01-15T00:30+02:00,") for text in LINES]
    moved = read(tmp_path, zoned, time="since").splits
    assert max(moved["train"].times) < min(moved["test"].times)


def test_classes_and_numbers(tmp_path: Path) -> None:
    """Classes have codes in the order of their names; a regression has its numbers."""
    dataset = read(
        tmp_path,
        task="multiclass",
        target="place",
        positive=None,
        columns=[
            {**column, "optional": False} if column["name"] == "place" else column
            for column in COLUMNS
        ],
        lines=[text.replace(",,", ",east,") for text in LINES],
        slices=["age"],
    )
    assert dataset.classes == ("east", "north", "south")
    train = dataset.train
    numbers = dataset.numbers("train", dataset.columns(lambda row: row, "codes"))
    assert [dataset.classes[int(of)] for of in numbers.labels] == train.labels.tolist()
    dataset = read(tmp_path, task="regression", primary_metric="mae", target="age", positive=None)
    assert dataset.classes == () and dataset.train.labels.max() == 59


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"task": "ranking"},
            "`task` is 'ranking', expected one of binary, multiclass, regression",
        ),
        ({"primary_metric": "auk"}, "`primary_metric` is 'auk', expected one of accuracy"),
        ({"target": "gone"}, "`target` is 'gone', expected one of name"),
        ({"slices": []}, "`slices` is []"),
        ({"positive": None}, "`positive` is None"),
        ({"positive": True}, "`positive` is True, expected a text in quotes"),
        ({"positive": False}, "`positive` is False, expected a text in quotes"),
        ({"positive": "Yes"}, "`positive` is 'Yes', expected a value of `left`: no, yes"),
        ({"slice": "place"}, "`slice` is an unknown field"),
        ({"text": "gone"}, "`text` is 'gone', expected one of name"),
        ({"text": "place"}, "`text` is `place`, of type category, expected a column of type text"),
        (
            {"text": "remark", "task": "regression", "primary_metric": "mae", "target": "age"},
            "`text` is 'remark' of a regression model",
        ),
        ({"columns": [{"type": "id"}]}, "wrong-schema"),
        (
            {"columns": [COLUMNS[0], {"name": "age", "type": "int"}]},
            "`columns.1.type` is 'int', expected one of id, text",
        ),
        ({"group": "place"}, "`group` is `place`, which is optional"),
        ({"time": "place"}, "`time` is `place`, which is optional"),
        ({"id": "place"}, "`id` is `place`, which is optional"),
        ({"task": "regression", "primary_metric": "mae"}, "a column of type float or integer"),
    ],
)
def test_a_schema_that_is_none_ends_the_program(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    """With the field that is wrong, and without a traceback."""
    with pytest.raises(SystemExit) as ended:
        read(tmp_path, **changed)
    assert "error[wrong-schema]" in str(ended.value) and message in str(ended.value)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("x,big,north,3,2026-01-01,word,no", "table.csv:602: size is 'big'"),
        ("x,1,north,3.5,2026-01-01,word,no", "table.csv:602: age is '3.5'"),
        ("x,1,north,,2026-01-01,word,no", "table.csv:602: age is empty"),
        ("x,1,north,3,2026-01-01,word,", "table.csv:602: left is empty"),
        ("x,inf,north,3,2026-01-01,word,no", "table.csv:602: size is 'inf'"),
        ("n1,1,north,3,2026-01-01,word,no", "table.csv:602: name 'n1' is on line 3 too"),
    ],
)
def test_data_that_break_the_schema_end_the_program(
    tmp_path: Path, cells: str, message: str
) -> None:
    """With the file and the line."""
    with pytest.raises(SystemExit) as ended:
        read(tmp_path, [*LINES, cells])
    assert message in str(ended.value)


@pytest.mark.parametrize(
    ("changed", "threshold"),
    [
        ({}, 0.5),
        ({"threshold": 0.2}, 0.2),
        ({"costs": {"false_positive": 1, "false_negative": 4}}, 0.2),
    ],
)
def test_the_threshold_of_predicted_labels(
    tmp_path: Path, changed: dict[str, object], threshold: float
) -> None:
    """Stated, or that of the least expected cost; scores above it are predicted as 1."""
    dataset = read(tmp_path, **changed)
    rows = dataset.scored("test", [0.3] * len(dataset.test))
    assert dataset.about.threshold == threshold
    predicted = {row.predicted for row in predict("binary", "test", rows)}
    assert predicted == {"1" if threshold < 0.3 else "0"}


@pytest.mark.parametrize(
    "changed",
    [
        *({"threshold": value} for value in (0, 1, True, math.nan, "0.5")),
        *({"costs": value} for value in ({}, 4, {"false_positive": 1, "false_negative": 0})),
        {"threshold": 0.2, "costs": {"false_positive": 1, "false_negative": 4}},
    ],
)
def test_a_threshold_that_is_none(tmp_path: Path, changed: dict[str, object]) -> None:
    """The field is named."""
    with pytest.raises(SystemExit, match=r"`(threshold|costs)` is"):
        read(tmp_path, **changed)
