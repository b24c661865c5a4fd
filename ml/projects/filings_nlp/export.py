"""The model's folder: its weights (safetensors), and the graph that serves (ONNX).

Serving needs no PyTorch. The graph's outputs are compared with the model's when it is written, and
the model's folder states the largest difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import CLASSES, GRAPH, INT8, OUTPUTS
from ml.projects.filings_nlp.tokens import Batch, Vocabulary
from ml.toolkit.torch import graphs

WEIGHTS = "model.safetensors"


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
    """Write the files of a model; return the graph's largest difference from it on the examples.
    Ends the program as `graphs.export`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = _Graph(model.cpu()).eval()
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS
    )
    vocabulary.save(folder)
    (folder / CLASSES).write_text(json.dumps([*classes]) + "\n", encoding="utf-8")
    axes = {"sentences": {0: "sentence", 1: "word"}, "places": {0: "document", 2: "place"}}
    axes |= {OUTPUTS[0]: {0: "document"}, OUTPUTS[1]: {0: "document"}}
    axes |= {OUTPUTS[2]: {0: "document", 2: "place"}}
    batches = [batch._asdict() for batch in examples]
    largest = graphs.export(graph, folder / GRAPH, batches, OUTPUTS, axes)
    return {"tolerance": graphs.TOLERANCE, "largest_difference": largest}


def quantize(folder: Path) -> dict[str, int]:
    """Replace the graph in the folder by one with int8 weights, whose activations are quantized as
    they come (dynamic quantization of ONNX Runtime); the bytes of both.

    Predictions change: the evaluation, and so every gate, measures this graph.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    full, small = folder / GRAPH, folder / INT8
    quantize_dynamic(full, small, weight_type=QuantType.QInt8)
    sizes = {"float_bytes": full.stat().st_size, "int8_bytes": small.stat().st_size}
    full.unlink()
    return sizes
