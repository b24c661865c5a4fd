"""ml.serving.scoring.tabular: LightGBM's own predictions, and invalid requests."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from ml.serving.scoring.manifest import write_manifest
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.tabular import FILE, MODEL, Columns, Table, Trees

COLUMNS = [
    {"name": "size", "fill": 1.5},
    {"name": "place", "categories": ["north", "south"]},
    {"name": "age"},
]


def train(folder: Path, objective: str = "binary") -> lightgbm.Booster:
    """A model over the three columns."""
    draw = np.random.default_rng(0)
    table = np.column_stack(
        [draw.normal(size=600), draw.integers(0, 2, 600), draw.normal(size=600)]
    )
    target = (table[:, 0] + table[:, 1] > 0.5).astype(int) + (table[:, 2] > 0)
    settings = {"objective": objective, "verbose": -1, "num_threads": 1}
    if objective == "multiclass":
        settings["num_class"] = 3
    else:
        target = target > 0
    data = lightgbm.Dataset(table, target, categorical_feature=[1])
    booster = lightgbm.train(settings, data, num_boost_round=20)
    booster.save_model(folder / MODEL)
    (folder / FILE).write_text(json.dumps({"columns": COLUMNS}))
    return booster


def body(*rows: list[object], columns: list[str] | None = None) -> bytes:
    names = columns or [str(column["name"]) for column in COLUMNS]
    return json.dumps({"input_data": {"columns": names, "data": rows}}).encode()


@pytest.mark.parametrize("objective", ["binary", "regression", "multiclass"])
def test_predictions_equal_those_of_lightgbm(tmp_path: Path, objective: str) -> None:
    """To the last bit, with texts, missing values and texts that training never saw."""
    booster = train(tmp_path, objective)
    table = Table(tmp_path)
    rows = [[0.3, "south", 1], [None, "north", -2.5], [2, "west", None], [0.1, None, 0.0]]
    numbers = [[0.3, 1, 1], [1.5, 0, -2.5], [2, math.nan, math.nan], [0.1, math.nan, 0.0]]
    assert table.predict(body(*rows)) == booster.predict(numbers).tolist()
    assert table.predict(body(*rows)) == table.predict(body(*rows).decode())
    assert table.predict(body()) == []


def test_a_server_does_not_import_what_it_does_not_use(tmp_path: Path) -> None:
    """Neither LightGBM's package nor scikit-learn; an error has the library's own words."""
    train(tmp_path)
    script = (
        "import pathlib, sys; from ml.serving.scoring.tabular import Table, Trees\n"
        f"folder = pathlib.Path({str(tmp_path)!r}); Table(folder)\n"
        "print(sorted({'lightgbm', 'sklearn', 'pandas'} & {*sys.modules}))\n"
        "(folder / 'model.txt').write_text('tree')\n"
        "try: Trees(folder / 'model.txt', 3)\n"
        "except RuntimeError as error: print(error)\n"
    )
    words = [sys.executable, "-c", script]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "[]\n" in printed and "LGBM_BoosterCreateFromModelfile: " in printed


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"no JSON", ""),
        (b"[]", ""),
        (b'{"data": [[1, "north", 2]]}', ""),
        (body([1, "north", 2], columns=["size", "place", "height"]), "columns"),
        (body([1, "north", 2], columns=["place", "size", "age"]), "columns"),
        (body([1, "north"]), "data"),
        (b'{"input_data": {"columns": ["size", "place", "age"], "data": 3}}', "data"),
        (b'{"input_data": {"columns": ["size", "place", "age"], "data": [3]}}', "data"),
        (body(["big", "north", 2]), "size"),
        (body([True, "north", None]), "size"),
        (body([1, "north", [2]]), "age"),
    ],
)
def test_an_invalid_table_is_refused(tmp_path: Path, content: bytes, field: str) -> None:
    """With the invalid field; the next request is answered as before."""
    train(tmp_path)
    table = Table(tmp_path)
    before = table.predict(body([1, "north", 2]))
    with pytest.raises(BadRequest) as raised:
        table.predict(content)
    assert raised.value.field == field
    assert table.predict(body([1, "north", 2])) == before


@pytest.mark.parametrize("wrong", [7, 1.5, ["x"], True])
def test_a_text_is_a_text(tmp_path: Path, wrong: object) -> None:
    """One that training never saw is missing to the model; anything but a text is refused."""
    train(tmp_path)
    table = Table(tmp_path)
    assert table.predict(body([1, "west", 2])) == table.predict(body([1, None, 2]))
    with pytest.raises(BadRequest, match="expected a text") as raised:
        table.predict(body([1, wrong, 2]))
    assert raised.value.field == "place"


def test_an_integer_has_no_fraction(tmp_path: Path) -> None:
    """A whole number may be written as 3.0, and may be missing."""
    train(tmp_path)
    columns = [*COLUMNS[:2], {"name": "age", "type": "integer"}]
    (tmp_path / FILE).write_text(json.dumps({"columns": columns}))
    table = Table(tmp_path)
    assert table.predict(body([1, "north", 3.0])) == table.predict(body([1, "north", 3]))
    assert len(table.predict(body([1, "north", None]))) == 1
    with pytest.raises(BadRequest, match=r"age: 3\.5, expected a whole number"):
        table.predict(body([1, "north", 3.5]))


def test_training_and_serving_encode_alike(tmp_path: Path) -> None:
    """The matrix of training holds what a request writes, and the rows stay as they were."""
    train(tmp_path)
    columns = Columns.load(tmp_path)
    rows = [[0.3, "south", 1], [None, "west", None]]
    expected = [[0.3, 1, 1], [1.5, math.nan, math.nan]]
    assert np.array_equal(columns.matrix(rows), expected, equal_nan=True)
    assert rows == [[0.3, "south", 1], [None, "west", None]]


def test_a_score_py_in_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with the verified model's digest; of several classes, with the label."""
    booster = train(tmp_path, "multiclass")
    document = {"columns": COLUMNS, "classes": ["low", "middle", "high"]}
    (tmp_path / FILE).write_text(json.dumps(document))
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    digest = write_manifest(tmp_path)
    table = Table.open()
    answer = table.answer(body([0.3, "south", 1]))
    (probabilities,) = booster.predict([[0.3, 1, 1]]).tolist()
    assert answer == {
        "predictions": [document["classes"][int(np.argmax(probabilities))]],
        "classes": document["classes"],
        "probabilities": [probabilities],
        "model_digest": digest,
    }
    refused: Any = table.answer(b"no table")
    assert refused.status_code == 400
    train(tmp_path)
    write_manifest(tmp_path)
    answer = Table.open().answer(body([0.3, "south", 1]))
    assert isinstance(answer, dict) and 0 < answer["predictions"][0] < 1


def test_a_model_of_other_columns_is_refused(tmp_path: Path) -> None:
    """When it is loaded; so is a missing file, and a file that is not a model."""
    train(tmp_path)
    with pytest.raises(RuntimeError, match="3 features"):
        Trees(tmp_path / MODEL, 2)
    with pytest.raises(RuntimeError, match="there is no"):
        Trees(tmp_path / "other.txt", 3)
    (tmp_path / MODEL).write_text("no model")
    with pytest.raises(RuntimeError, match="LGBM_BoosterCreateFromModelfile"):
        Trees(tmp_path / MODEL, 3)


def test_a_row_replaces_the_whole_buffer(tmp_path: Path) -> None:
    """No value of the row before remains."""
    train(tmp_path)
    columns, trees = Columns.load(_wrote(tmp_path)), Trees(tmp_path / MODEL, 3)
    columns.write([1, "south", 3], trees.row)
    columns.write([None, None, None], trees.row)
    assert trees.row[0] == 1.5 and math.isnan(trees.row[1]) and math.isnan(trees.row[2])


def _wrote(folder: Path) -> Path:
    assert (folder / FILE).is_file()
    return folder
