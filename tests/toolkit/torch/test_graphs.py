"""The ONNX graph of a network: the same answers, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ml.serving.scoring.onnx import Graph
from ml.toolkit.torch.graphs import difference, export

AXES = {"rows": {0: "row"}, "sums": {0: "row"}}
EXAMPLES = [{"rows": np.arange(6, dtype=np.float32).reshape(2, 3)}]
MORE = [*EXAMPLES, {"rows": np.full((5, 3), -7, np.float32)}]


class Sums(nn.Module):  # type: ignore[misc]
    """A sum a row; `drift` grows with each call, which a traced graph does not know."""

    def __init__(self, drift: float = 0.0) -> None:
        super().__init__()
        self.drift, self.calls = drift, 0

    def forward(self, rows: Tensor) -> Tensor:
        """(rows,)."""
        self.calls += 1
        return rows.sum(1) + self.drift * self.calls


def test_a_graph_answers_as_its_network(tmp_path: Path) -> None:
    """On more rows than were traced too; another network differs by what it adds."""
    path = tmp_path / "model.onnx"
    assert export(Sums(), path, MORE, ["sums"], AXES) <= 1e-5
    assert difference(Sums(0.5), Graph(path), EXAMPLES, ["sums"]) == pytest.approx(0.5)


@pytest.mark.parametrize("drift", [1e-3, float("nan")])
def test_a_graph_that_answers_otherwise_is_refused(tmp_path: Path, drift: float) -> None:
    """NaN included."""
    with pytest.raises(SystemExit, match=r"error\[onnx-differs\]"):
        export(Sums(drift), tmp_path / "model.onnx", EXAMPLES, ["sums"], AXES)


def test_a_graph_of_one_length_is_refused(tmp_path: Path) -> None:
    """The exporter writes the length of the traced example into torch's own attention."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    examples = [{"rows": torch.ones(2, length, 8).numpy()} for length in (12, 5)]
    axes = {"rows": {0: "row", 1: "length"}, "sums": {0: "row", 1: "length"}}
    with pytest.raises(SystemExit, match=r"error\[onnx-differs\].*\(2, 5, 8\)"):
        export(encoder, tmp_path / "model.onnx", examples, ["sums"], axes)
