"""Write the model's folder: the weights (safetensors) and the serving graph (ONNX).

Serving needs no PyTorch. The export compares the outputs of graph and model; the model's facts
record the largest difference.
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
    """The served model, which returns probabilities instead of logits."""

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
    """Write the model's files; return the tolerance and the graph's largest difference.

    The difference is over the batches `examples`. Exits if it exceeds the tolerance (see
    `graphs.export`).
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
    """Replace the graph by an int8 graph (dynamic quantization of ONNX Runtime).

    Return the sizes of both files in bytes. The predictions change; the evaluation measures the
    int8 graph.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    full, small = folder / GRAPH, folder / INT8
    quantize_dynamic(full, small, weight_type=QuantType.QInt8)
    sizes = {"float_bytes": full.stat().st_size, "int8_bytes": small.stat().st_size}
    full.unlink()
    return sizes
