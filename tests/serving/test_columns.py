"""ml.serving.scoring.columns: a value means the same in training and in a request."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.serving.scoring.columns import (
    MISSING,
    Columns,
    Encoding,
    Kind,
    Row,
    Value,
    read_cell,
    read_json,
    tokens,
)
from ml.serving.scoring.messages import BadRequest
from ml.toolkit.data.datasets import read_dataset

KINDS: Mapping[str, Kind] = {"size": "float", "place": "text", "age": "integer"}
ROWS: list[list[Value]] = [[1.5, "north", 3], [None, "south", None], [2.5, None, 4]]


def same(row: Row) -> Row:
    return row


def columns(encoding: Encoding = "codes", derive: Any = same, times: int = 1) -> Columns:
    return Columns.fit(KINDS, ROWS * times, derive, encoding)


# What stands in a table → what a request may say, with the same value.
@pytest.mark.parametrize(
    ("kind", "cell", "stated", "value"),
    [
        ("text", " north ", "north", "north"),
        ("text", "north", "\u00a0north\t", "north"),
        ("text", "12", "12", "12"),
        ("text", "true", True, "true"),
        ("text", "false", False, "false"),
        ("text", "?", " ? ", None),
        ("text", "", None, None),
        ("float", " 3", 3, 3.0),
        ("float", "1e-3", 0.001, 0.001),
        ("float", "-0", -0, 0.0),  # JSON's -0 is a whole number to those who read it
        ("float", "-0.0", -0.0, 0.0),
        ("float", "NA", None, None),
        ("integer", "+7", 7.0, 7),
        ("integer", "007", 7, 7),
        ("integer", str(2**63 - 1), 2**63 - 1, 2**63 - 1),
    ],
)
def test_a_cell_and_a_request_have_one_value(
    kind: Kind, cell: str, stated: object, value: Value
) -> None:
    """Of one type too, since `derive` sees it."""
    for read in (read_cell(kind, cell), read_json(kind, stated)):
        assert repr(read) == repr(value)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_is_missing_is_missing_everywhere(kind: Kind) -> None:
    assert {read_cell(kind, f" {text} ") for text in MISSING} == {None}
    assert read_json(kind, None) is None
    assert {read_json(kind, f" {text} ") for text in MISSING} == {None}


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        *(("float", cell) for cell in ("1_000", "inf", "1e400", "٣")),
        *(("integer", cell) for cell in ("1.5", str(2**63), "1" * 20)),
    ],
)
def test_a_cell_of_another_kind_is_refused(kind: Kind, cell: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_cell(kind, cell)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("size", "1.5", "str, expected a number"),
        ("size", True, "bool, expected a number"),
        ("size", 10**400, "expected a number"),
        ("size", [1], "list, expected a number"),
        ("age", 1.5, "1.5, expected a whole number"),
        ("age", 2**63, "expected a whole number of 64 bits"),
        ("place", 7, "int, expected a text"),
        ("place", {"a": 1}, "dict, expected a text"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, wrong: object, message: str) -> None:
    """With the column's name; the same request with a right one is read."""
    row: dict[str, object] = {"size": 1.5, "place": "north", "age": 3}
    assert columns().read([*row], [[*row.values()]]) == [ROWS[0]]
    with pytest.raises(BadRequest, match=message) as raised:
        columns().read([*row], [[*{**row, name: wrong}.values()]])
    assert raised.value.field == name


def test_a_request_may_have_its_columns_in_any_order() -> None:
    """What is missing or unknown is named."""
    assert columns().read(["age", "place", "size"], [[3, "north", 1.5]]) == [ROWS[0]]
    with pytest.raises(BadRequest, match="missing: age; unknown: years"):
        columns().read(["size", "place", "years"], [])
    for names in (["size", "size", "age"], "size", [1, 2, 3], ["size", "place", ["age"]], [{}]):
        with pytest.raises(BadRequest):
            columns().read(names, [])
    for rows in ([[1, "north"]], [3], [None]):
        with pytest.raises(BadRequest, match="rows of 3 values"):
            columns().read([*KINDS], rows)


def test_a_column_that_the_model_does_not_know_is_passed_over() -> None:
    """So that clients can send a column before a version reads it, and a canary asks both with it;
    a name that is misspelt is missing as well.
    """
    names, row = ["night", "age", "place", "size"], [{"any": "value"}, 3, "north", 1.5]
    assert columns().read(names, [row]) == [ROWS[0]]
    for rows in ([row[1:]], [[*row, 1]]):
        with pytest.raises(BadRequest, match="rows of 4 values"):
            columns().read(names, rows)
    with pytest.raises(BadRequest, match="missing: age; unknown: aeg"):
        columns().read(["aeg", "place", "size"], [])


def test_tokens_are_words_in_their_order(tmp_path: Path) -> None:
    """Known ones, unknown ones, and nothing; as long as most texts, saved and loaded."""
    texts: list[list[Value]] = [["The door, the DOOR"], ["the bell rang"], [None], ["door"]]
    fitted = Columns.fit({"note": "text"}, texts, same, "tokens")
    fitted.save(tmp_path)
    found = Columns.load(tmp_path, same)
    assert found.vocabulary == 4 and found.names == tuple(f"note: {at}" for at in (1, 2, 3, 4))
    rows: list[list[Value]] = [*texts, ["door the a b the"]]
    expected = [[3, 2, 3, 2], [3, 1, 1, 0], [0, 0, 0, 0], [2, 0, 0, 0], [2, 3, 1, 1]]
    assert found.matrix(rows).tolist() == [
        [3, 2, 3, 2] if row == ["The door, the DOOR"] else of
        for row, of in zip(rows, expected, strict=True)
    ]
    # What leaks are looked for in is how long a text is.
    assert found.coded().matrix(rows).tolist() == [[4], [3], [0], [1], [4]]


def test_words_of_a_text_are_weighted() -> None:
    """For a linear model beside the network: the words of two texts or more, scaled to length 1."""
    texts: list[list[Value]] = [["the door"], ["the bell"], ["the door rang"], [None]]
    found = Columns.fit({"note": "text"}, texts, same, "words")
    assert found.names == ("note: the", "note: door", "note: the door")
    lengths = np.linalg.norm(found.matrix(texts), axis=1)
    assert np.allclose(lengths, [1, 1, 1, 0])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Don't_panic 3.5", ["don", "t", "panic", "3", "5"]),
        ("Gr\u00f6\u00dfe Gro\u0308\u00dfe", ["gr\u00f6\u00dfe"] * 2),
        ("\u5b8c\u5168 ok", ["\u5b8c", "\u5168", "ok"]),
        ("", []),
        (None, []),
        (3, []),
    ],
)
def test_the_tokens_of_a_text(text: Value, found: list[str]) -> None:
    """Composed letters are alike however they are written; Chinese has a token a character."""
    assert tokens(text) == found


def test_codes_are_places_and_what_is_missing_is_nan() -> None:
    """An unknown category too; the rows stay as they were."""
    encoded = columns()
    assert encoded.names == ("size", "place", "age") and encoded.categorical == [1]
    rows: list[list[Value]] = [[0.5, "south", 1], [None, "west", None]]
    expected = [[0.5, 1, 1], [math.nan, math.nan, math.nan]]
    assert np.array_equal(encoded.matrix(rows), expected, equal_nan=True)
    assert rows == [[0.5, "south", 1], [None, "west", None]]
    assert encoded.matrix([]).shape == (0, 3)


def test_one_hot_has_a_column_for_each_category() -> None:
    """Numbers in deviations from the mean of training; what is missing is said where 20 rows were.
    Of fewer it is the mean.
    """
    rare = columns("one-hot")
    assert rare.names == ("size", "place=north", "place=south", "age")
    assert rare.matrix([[None, "west", None]]).tolist() == [[0, 0.5, 0.5, 0]]
    encoded = columns("one-hot", times=20)
    assert encoded.names == (
        *("size", "size is missing", "place=north", "place=south", "age", "age is missing"),
    )
    assert encoded.categorical == []
    rows: list[list[Value]] = [[2.5, "south", None], [2.0, "west", 3]]
    assert encoded.matrix(rows).tolist() == [[1, 0, 0, 1, 0, 1], [0, 0, 0, 0, -1, 0]]


@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_true_of_json_is_the_true_of_a_file(encoding: Encoding) -> None:
    """However files write it; where a file has both, each is its own."""
    for texts in (["True", "False", "x"], ["TRUE", "FALSE"], ["True", "true", "false"]):
        encoded = Columns.fit({"paid": "text"}, [[of] for of in texts], same, encoding)
        stated = encoded.read(["paid"], [[True], [False]])
        written: list[list[Value]] = [["true" if "true" in texts else texts[0]]]
        written += [[of] for of in texts if of.lower() == "false"]
        assert np.array_equal(encoded.matrix(stated), encoded.matrix(written))


def test_a_constant_column_and_an_empty_one() -> None:
    """Neither divides by nothing."""
    rows: list[list[Value]] = [[1.0, None], [1.0, None]]
    for encoding in get_args(Encoding):
        encoded = Columns.fit({"one": "float", "none": "text"}, rows, same, encoding)
        assert not np.isinf(encoded.matrix([[2.0, "new"]])).any()


def test_derived_columns_are_the_models_alone(tmp_path: Path) -> None:
    """A request has those of the table; the model also has what is computed, and lacks what is
    left out.
    """

    def derive(row: Row) -> Row:
        size, age = row["size"], row.pop("age")
        row["ratio"] = size / age if isinstance(size, float) and isinstance(age, int) else None
        return row

    fitted = columns(derive=derive)
    assert fitted.names == ("size", "place", "ratio")
    fitted.save(tmp_path)
    loaded = Columns.load(tmp_path, derive)
    assert loaded.matrix([[1.5, "north", 3]]).tolist() == [[1.5, 0, 0.5]]
    assert loaded.read([*KINDS], [[1.5, "north", 3]]) == [ROWS[0]]


@pytest.mark.parametrize(
    ("derive", "message"),
    [
        (lambda row: {**row, **({"x": 1} if row["age"] else {})}, "different columns"),
        (lambda row: {"x": "a" if row["age"] else 3}, "texts and numbers"),
        (lambda row: {"x": math.inf}, "not finite"),
    ],
)
def test_a_derived_column_that_does_not_fit_is_refused(derive: Any, message: str) -> None:
    """When the columns are fitted."""
    with pytest.raises(ValueError, match=message):
        columns(derive=derive)


def test_a_derived_column_that_fails_in_a_request_is_named() -> None:
    fitted = Columns(json.loads(json.dumps(columns()._document)), lambda row: {"size": math.inf})
    with pytest.raises(ValueError, match="derive"):
        fitted.matrix([[1.0, "north", 3]])
    one = Columns.fit(
        {"size": "float"}, [[1.0]], lambda row: {"x": 1e308 * (row["size"] or 1)}, "codes"
    )  # type: ignore[operator]
    with pytest.raises(ValueError, match="`x` is not finite"):
        one.matrix([[10.0]])


@pytest.mark.parametrize("encoding", get_args(Encoding))
@pytest.mark.parametrize("times", [1, 20])
def test_nan_of_derive_is_a_missing_value(encoding: Encoding, times: int) -> None:
    """In training, and of what training makes."""

    def derive(row: Row) -> Row:
        return {**row, "size": math.nan if row["size"] is None else row["size"]}

    made, expected = columns(encoding, derive, times), columns(encoding, times=times)
    assert made._document == expected._document
    rows: list[list[Value]] = [[None, "north", 3], [1.0, "north", 3]]
    assert np.array_equal(made.matrix(rows), expected.matrix(rows), equal_nan=True)


def summed(table: Any) -> Any:
    """A model that takes a missing value for 0, as LightGBM does one that it has not learnt."""
    return np.nansum(table, axis=1)


def test_what_is_not_learnt_is_answered_by_the_values_of_training() -> None:
    """The mean of the answers to them; in rows that are fitted it is one of them."""
    fitted = columns()
    row = np.array([[math.nan, math.nan, 5.0]])
    assert fitted.predict_imputed(summed, row).tolist() == [2.0 + 0.5 + 5.0]
    assert fitted.fill(np.tile(row, (16, 1))).mean(axis=0).tolist() == [2.0, 0.5, 5.0]
    learnt = columns(times=20)
    assert learnt.predict_imputed(summed, row).tolist() == [5.0]
    assert np.array_equal(learnt.fill(row.copy()), row, equal_nan=True)


def test_a_folder_of_before_is_read_as_it_was() -> None:
    """It says of no column that it is required, and has no imputation values."""
    document = {
        "columns": [{"name": "size", "type": "float"}],
        "inputs": [{"name": "size"}],
        **{"encoding": "codes", "classes": []},
    }
    before = Columns(document, same)
    assert before.read(["size"], [[None]]) == [[None]]
    assert before.predict_imputed(summed, before.matrix([[None]])).tolist() == [0.0]


@pytest.mark.parametrize("value", [None, "", " NA\t"])
def test_a_required_column_has_a_value(value: object) -> None:
    """What a table with `empty-value` lacks, a request may not lack either."""
    fitted = Columns.fit(KINDS, [[1.5, "north", 3]], same, "codes", required=["place", "age"])
    assert fitted.read([*KINDS], [[None, "north", 3]]) == [[None, "north", 3]]
    with pytest.raises(BadRequest, match=r"place: no value \(empty-value\), expected a text"):
        fitted.read([*KINDS], [[1.5, "north", 3], [1.5, value, 3]])


# A table as people have it: blanks, other alphabets, numbers as texts, missing values.
BLANKS = st.sampled_from(["", " ", "\u00a0", "\u2003"])
TEXTS = st.one_of(
    st.sampled_from(["12", "yes", "Straße", "東京", "a,b", 'q"q', "None", "?", "é", "e\u0301"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
)
NUMBERS = st.one_of(st.just("NA"), st.floats(allow_nan=False, allow_infinity=False).map(repr))
WHOLE = st.one_of(st.just(""), st.integers(-(10**17), 10**17).map(str))
CELLS = st.tuples(NUMBERS, TEXTS, WHOLE, BLANKS, BLANKS)
SCHEMA = """
task: regression
primary_metric: mae
target: y
slices: [y]
delimiter: ","
header: true
rows: [1, 100]
columns:
  - {name: size, type: float, optional: true}
  - {name: place, type: category, optional: true}
  - {name: age, type: integer, optional: true}
  - {name: y, type: float}
"""


@given(
    rows=st.lists(CELLS, min_size=20, max_size=25),
    order=st.permutations(["size", "place", "age"]),
    encoding=st.sampled_from(get_args(Encoding)),
)
def test_what_reaches_the_model_is_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, ...]],
    order: list[str],
    encoding: Encoding,
) -> None:
    """From the file to training, and from a request in any order of the columns, with other blanks
    and unknown categories: the matrices are equal to the last bit.
    """
    folder = tmp_path_factory.mktemp("table")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["size", "place", "age", "y"])
    for at, (size, place, age, before, after) in enumerate(rows):
        writer.writerow([size, f"{before}{place}{after}", age, at])
    (folder / "table.csv").write_text(text.getvalue(), encoding="utf-8")
    (folder / "schema.yml").write_text(SCHEMA)
    dataset = read_dataset(folder, folder / "schema.yml")
    if not dataset.train.rows:
        return
    fitted = dataset.columns(same, encoding)
    fitted.save(folder)
    served = Columns.load(folder, same)
    for part in dataset.splits.values():
        numbers = [int(label) for label in part.labels]
        stated = [
            {
                "size": None if size == "NA" else float(size),
                "place": f"{after}{place}{before}",
                "age": int(age) if age else None,
            }
            for size, place, age, before, after in (rows[at] for at in numbers)
        ]
        body = json.loads(json.dumps([[row[name] for name in order] for row in stated]))
        asked = served.read(order, body)
        assert repr(asked) == repr(part.rows)
        try:
            trained = fitted.matrix(part.rows)
        except ValueError:  # too far from the numbers of training
            with pytest.raises(ValueError, match="not finite"):
                served.matrix(asked)
        else:
            assert trained.tobytes() == served.matrix(asked).tobytes()
