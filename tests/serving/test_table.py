"""ml.serving.scoring.table: requests, answers, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.serving.scoring.columns import Columns, Row
from ml.serving.scoring.manifest import write_manifest
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.table import MOST_ROWS, Table, endpoint

NAMES = ["size", "place"]


def same(row: Row) -> Row:
    return row


def summed(model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """A model that adds up its columns; of several classes each is a power of the sum."""
    total = np.nansum(table, axis=1)
    return np.column_stack([total**power for power in (0, 1, 2)]) if model == "classes" else total


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table of a verified folder: `opened(classes)`."""

    def open_table(*classes: str) -> Table:
        rows = [[1.0, "north"], [2.0, "south"]]
        kinds: Any = {"size": "float", "place": "text"}
        Columns.fit(kinds, rows, same, "codes", classes).save(tmp_path)
        write_manifest(tmp_path)
        monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
        monkeypatch.delenv("MODEL_DIGEST", raising=False)
        return Table.open(same, lambda folder: "classes" if classes else "", summed)

    return open_table


def body(*rows: object, columns: object = NAMES) -> bytes:
    return json.dumps({"input_data": {"columns": columns, "data": rows}}).encode()


def test_an_answer_has_a_number_a_row(opened: Any, tmp_path: Path) -> None:
    """And the digest of the verified model; no rows, no predictions."""
    table = opened()
    answer = table.answer(body([1.5, "south"], [None, "west"]))
    digest = write_manifest(tmp_path)
    assert answer == {"predictions": [2.5, 2.0], "model_digest": digest}
    assert table.predict(body([1.5, "south"]).decode()) == [2.5]
    assert table.predict(body()) == []


def test_an_endpoint_opens_then_answers(opened: Any) -> None:
    """The two functions of a score.py; a second `init` opens the model anew."""
    opened()
    init, run = endpoint(same, lambda folder: "", summed)
    for _ in range(2):
        init()
        answer = run(body([1.5, "south"]).decode())
        assert isinstance(answer, dict) and answer["predictions"] == [2.5]


def test_of_several_classes_the_answer_is_the_label(opened: Any) -> None:
    answer = opened("low", "middle", "high").answer(body([3, "south"]))
    assert answer["predictions"] == ["high"] and answer["probabilities"] == [[1.0, 4.0, 16.0]]
    assert list(answer["classes"]) == ["low", "middle", "high"]


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"no JSON", ""),
        (b"[]", ""),
        (b'{"data": [[1, "north"]]}', ""),
        (b'{"input_data": {"columns": ["size", "place"], "data": 3}}', "data"),
        (b'{"input_data": {"columns": ["size", "place"], "data": [3]}}', "data"),
        (b'{"input_data": {"columns": ["size", "place"], "data": [[NaN, "north"]]}}', ""),
        (body([1, "north"]).replace(b'"data":', b'"data": [], "data":'), "data"),
        (b'{"input_data": [], ' + body([1, "north"])[1:], "input_data"),
        (body([1, "north"], columns=["size", "height"]), "columns"),
        (body([1, "north"], columns=3), "columns"),
        (body([1]), "data"),
        (body(*[[1, "north"]] * (MOST_ROWS + 1)), "data"),
        (body(["big", "north"]), "size"),
    ],
)
def test_an_invalid_table_is_refused(opened: Any, content: bytes, field: str) -> None:
    """With the invalid field and status 400; the next request is answered as before."""
    table = opened()
    with pytest.raises(BadRequest) as raised:
        table.predict(content)
    assert raised.value.field == field
    assert table.answer(content).status_code == 400
    assert table.predict(body([1, "north"])) == [1.0]


def test_a_derived_column_that_fails_is_the_callers_to_know(opened: Any) -> None:
    """A division by a value that training never saw: status 400 with the reason."""
    table = opened()
    table._columns._derive = lambda row: {"size": 1 / row["size"], "place": row["place"]}
    assert table.predict(body([2, "north"])) == [0.5]
    assert table.answer(body([0, "north"])).status_code == 400


@pytest.mark.parametrize(
    "derive",
    [
        lambda row: {**row, "size": row["size"] / 2},
        lambda row: {**row, "size": {1.0: 2.0}[row["size"]]},
        lambda row: {**row, "size": row["size"].real},
    ],
)
def test_a_missing_value_that_derive_does_not_expect_is_told(opened: Any, derive: Any) -> None:
    """Any value of a request may be null: status 400, not an error of the server."""
    table = opened()
    table._columns._derive = derive
    assert table.predict(body([1, "north"]))
    assert table.answer(body([None, "north"])).status_code == 400
    with pytest.raises(BadRequest, match="derive"):
        table.predict(body([None, "north"]))


def single(model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum in single precision; as XGBoost does, a model called `strict` takes no infinity."""
    with np.errstate(over="ignore"):
        numbers = table.astype(np.float32)
    if model == "strict" and np.isinf(numbers).any():
        raise RuntimeError("Input data contains `inf`")
    return np.nansum(numbers, axis=1) if model != "broken" else np.full(len(table), np.nan)


@pytest.mark.parametrize("size", [1e39, -1e300], ids=str)
@pytest.mark.parametrize("model", ["", "strict"], ids=["infinite", "an error of the library"])
def test_a_number_too_large_for_the_model_is_a_bad_request(
    model: str, size: float, opened: Any
) -> None:
    """Its column is named, of whichever row; a model that computes in double precision answers."""
    assert opened().answer(body([size, "north"]))["predictions"] == [size]
    table = opened()
    table._predict = partial(single, model)
    refused = table.answer(body([1, "south"], [size, "north"]))
    assert refused.status_code == 400 and "size: a number too large" in str(refused.response)
    assert table.answer(body([2, "south"]))["predictions"] == [3.0]


def test_a_model_without_an_answer_is_no_bad_request(opened: Any) -> None:
    """Its fault is not the caller's: the server says 500."""
    for size in (1, 1e39):
        table = opened()
        table._predict = partial(single, "broken")
        with pytest.raises(ValueError, match="JSON"):
            table.answer(body([size, "north"]))


def test_a_text_with_a_colon_is_no_key(opened: Any) -> None:
    """A category that training did not see is missing, whatever its text."""
    table = opened()
    unseen = table.predict(body([1, "elsewhere"]))
    assert table.predict(body([1, '"data": [], "data": []'])) == unseen
