"""ml.serving.scoring.onnx: the answers of the model that was converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ml.serving.scoring.onnx import Onnx

ROWS = np.random.default_rng(0).normal(size=(300, 4))
FLOATS = ROWS.astype(np.float32)


def converted(folder: Path, model: Any, **options: Any) -> Onnx:
    content = to_onnx(model, FLOATS[:1], options={id(model): options} if options else None)
    (folder / "model.onnx").write_bytes(content.SerializeToString())
    return Onnx(folder / "model.onnx")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_classifier_gives_its_probabilities(tmp_path: Path, classes: int, mapped: bool) -> None:
    """Whether its conversion maps them to labels or not."""
    labels = np.digitize(ROWS[:, 0], [-0.5, 0.5][: classes - 1])
    model = LogisticRegression().fit(ROWS, labels)
    answers = converted(tmp_path, model, zipmap=mapped).predict(ROWS)
    assert np.allclose(answers, model.predict_proba(ROWS), atol=1e-4)


def test_a_regression_gives_numbers(tmp_path: Path) -> None:
    """A pipeline's steps are in the model."""
    model = make_pipeline(StandardScaler(), Ridge()).fit(ROWS, ROWS @ [1, 2, 3, 4])
    answers = converted(tmp_path, model).predict(ROWS)
    assert answers.shape == (300,) and np.allclose(answers, model.predict(ROWS), atol=1e-4)


def test_what_is_no_such_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other content, another operator, weights in another file, two inputs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.onnx"

    def write(*nodes: Any, inputs: str = "x", **tensors: Any) -> None:
        (output,) = (helper.make_tensor_value_info("y", 1, [None]),)
        starts = [helper.make_tensor_value_info(name, 1, [None]) for name in inputs]
        made = helper.make_model(helper.make_graph(nodes, "g", starts, [output], **tensors))
        path.write_bytes(made.SerializeToString())

    path.write_bytes(b"no model")
    with pytest.raises(RuntimeError, match=r"model\.onnx"):
        Onnx(path)
    write(helper.make_node("Run", ["x"], ["y"], domain="others"))
    with pytest.raises(RuntimeError, match=r"model\.onnx"):
        Onnx(path)
    beside = helper.make_tensor("w", 1, [1], [1.0])
    beside.ClearField("float_data")
    beside.data_location = 1
    beside.external_data.add(key="location", value="weights.bin")
    (tmp_path / "weights.bin").write_bytes(np.float32(1).tobytes())
    write(helper.make_node("Add", ["x", "w"], ["y"]), initializer=[beside])
    with pytest.raises(RuntimeError, match=r"model\.onnx"):
        Onnx(path)
    write(helper.make_node("Add", ["a", "b"], ["y"]), inputs="ab")
    with pytest.raises(ValueError, match="2 inputs"):
        Onnx(path)
