"""Export a network to ONNX, and compare the outputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ml.serving.scoring.onnx import Graph

# Maximum absolute difference of an output; float32 has about seven digits.
TOLERANCE = 1e-5
Inputs = Mapping[str, NDArray[Any]]


def export(
    network: nn.Module,
    path: Path,
    examples: Sequence[Inputs],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> float:
    """Export a network to ONNX; return the largest difference of any output on the examples.

    The network must be on the CPU in evaluation mode.
    examples: inputs by name, in the order of `forward`. The first one is traced; the others should
      have other sizes in each dynamic dimension.
    axes: the dynamic dimensions of inputs and outputs.

    Exits if the difference exceeds TOLERANCE or ONNX Runtime rejects an example.
    """
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript, so use the deprecated one of the pinned torch.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            tuple(map(torch.from_numpy, examples[0].values())),
            str(path),
            input_names=[*examples[0]],
            output_names=[*outputs],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    largest = difference(network, Graph(path), examples, outputs)
    if not largest <= TOLERANCE:
        raise SystemExit(
            f"error[onnx-differs]: {path} differs from the model by {largest:.2g}\n"
            f"  expected: at most {TOLERANCE}\n"
            "  hint: compare the operators of model.py one by one"
        )
    return largest


def difference(
    network: nn.Module, served: Graph, examples: Sequence[Inputs], outputs: Sequence[str]
) -> float:
    """Return the largest difference of any output on the examples, or NaN if an output is NaN.

    Exits if ONNX Runtime rejects an example.
    """
    largest = 0.0
    for batch in examples:
        with torch.no_grad():
            expected = network(*map(torch.from_numpy, batch.values()))
        try:
            answered = served.run(batch)
        except RuntimeError as error:
            shapes = {name: values.shape for name, values in batch.items()}
            raise SystemExit(
                f"error[onnx-differs]: ONNX Runtime rejects inputs of shapes {shapes}: {error}\n"
                "  expected: a graph for all sizes of the dimensions that vary\n"
                "  hint: nn.MultiheadAttention and nn.TransformerEncoder are exported for one "
                "length: write attention as products of matrices, with sizes read from its inputs"
            ) from None
        tensors = expected if isinstance(expected, tuple) else (expected,)
        for name, tensor in zip(outputs, tensors, strict=True):
            distance: NDArray[np.float64] = np.abs(answered[name] - tensor.numpy())
            largest = float(np.maximum(largest, distance.max(initial=0.0)))
    return largest
