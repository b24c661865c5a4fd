"""A network as an ONNX graph, compared with the network when it is written."""

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

# How far an output may lie apart: both compute with seven digits.
TOLERANCE = 1e-5
Inputs = Mapping[str, NDArray[Any]]


def export(
    network: nn.Module,
    path: Path,
    examples: Sequence[Inputs],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> float:
    """Write the graph of a network on the CPU in evaluation mode, and return the largest difference
    of any output on the examples.

    examples: the inputs by their names, in the order of `forward`; the first one is traced.
    axes: of inputs and outputs, the dimensions that vary.

    Ends the program where the difference is more than TOLERANCE, or where ONNX Runtime rejects an
    example: give one of another size for each dimension that varies.
    """
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript; this one is there as long as torch's pin is.
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
    """Return the largest difference of any output on the examples; NaN where one is NaN.

    Ends the program where ONNX Runtime rejects an example.
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
