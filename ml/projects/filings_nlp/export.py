"""The model's folder: its weights (safetensors), and the graph that serves (ONNX).

Serving needs no PyTorch. What the graph answers is compared with the model when it is written, and
the model's folder says by how much they differ.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import CLASSES, GRAPH, INPUTS, OUTPUTS
from ml.projects.filings_nlp.tokens import Batch, Vocabulary
from ml.serving.scoring.onnx import Graph

WEIGHTS = "model.safetensors"
# How far a probability or a weight of attention may lie apart: both compute with seven digits.
TOLERANCE = 1e-5


class _Graph(nn.Module):  # type: ignore[misc]
    """The model as it is served: probabilities in place of logits."""

    def __init__(self, model: HierarchicalAttention) -> None:
        super().__init__()
        self.model = model

    def forward(self, sentences: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        answer = self.model(sentences, places)
        return answer.logits.softmax(-1), answer.sections, answer.sentences


def write(
    folder: Path,
    model: HierarchicalAttention,
    vocabulary: Vocabulary,
    classes: Sequence[str],
    examples: Sequence[Batch],
) -> dict[str, Any]:
    """Write the files of a model; the largest difference of the graph from it on the examples. Ends
    the program where that is more than TOLERANCE.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = _Graph(model.cpu()).eval()
    save_file({name: of.contiguous() for name, of in model.state_dict().items()}, folder / WEIGHTS)
    vocabulary.save(folder)
    (folder / CLASSES).write_text(json.dumps([*classes]) + "\n", encoding="utf-8")
    axes = {"sentences": {0: "sentence", 1: "word"}, "places": {0: "document", 2: "place"}}
    axes |= {OUTPUTS[0]: {0: "document"}, OUTPUTS[1]: {0: "document"}}
    axes |= {OUTPUTS[2]: {0: "document", 2: "place"}}
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript; this one is there as long as torch's pin is.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            graph,
            tuple(map(torch.from_numpy, examples[0])),
            str(folder / GRAPH),
            input_names=[*INPUTS],
            output_names=[*OUTPUTS],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    largest = difference(graph, Graph(folder / GRAPH), examples)
    if not largest <= TOLERANCE:
        raise SystemExit(
            f"error[onnx-differs]: {folder / GRAPH} differs from the model by {largest:.2g}\n"
            f"  expected: at most {TOLERANCE}\n"
            "  hint: compare the operators of model.py one by one"
        )
    return {"tolerance": TOLERANCE, "largest_difference": largest}


def difference(graph: nn.Module, served: Graph, examples: Sequence[Batch]) -> float:
    """The largest difference of any output on the examples; NaN where one is NaN."""
    largest = 0.0
    for batch in examples:
        with torch.no_grad():
            expected = graph(*map(torch.from_numpy, batch))
        answered = served.run(batch._asdict())
        for name, of in zip(OUTPUTS, expected, strict=True):
            apart: NDArray[np.float64] = np.abs(answered[name] - of.numpy())
            largest = float(np.maximum(largest, apart.max(initial=0.0)))
    return largest
