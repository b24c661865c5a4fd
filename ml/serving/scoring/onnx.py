"""Score an ONNX model with ONNX Runtime, in single precision.

A project's model.py loads a tabular model with `Onnx(folder / "model.onnx")`; it has one input,
(rows, names). `Graph` runs models with any inputs, such as texts or images.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Names of a converted classifier's output with probabilities (skl2onnx, onnxmltools).
_PROBABILITIES = ("probabilities", "output_probability")


class Graph:
    """An ONNX model on the CPU, with one thread per call.

    Raises RuntimeError with ONNX Runtime's message if the file is not an ONNX model.
    """

    def __init__(self, model: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # Otherwise ONNX Runtime may parse the file as its own ORT format.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            # Load from bytes, so that the model cannot reference other files.
            self._session: Any = onnxruntime.InferenceSession(
                model.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime has a class per error code
            raise RuntimeError(f"{model}: {error}") from None

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return every output by name; raise RuntimeError for wrong names, types or shapes."""
        try:
            answers = self._session.run(None, dict(inputs))
        except Exception as error:
            raise RuntimeError(str(error)) from None
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, map(np.asarray, answers), strict=True))


class Onnx(Graph):
    """An ONNX model of a table; raises like `Graph`, and ValueError unless it has one input."""

    def __init__(self, model: Path) -> None:
        super().__init__(model)
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            raise ValueError(f"{model} has {len(inputs)} inputs, expected one")
        names = [output.name for output in self._session.get_outputs()]
        self._input = inputs[0].name
        self._output = next((name for name in names if name in _PROBABILITIES), names[0])

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict a table (rows, names); return (rows,) or (rows, classes).

        The result is the output with probabilities; without one, the first output.
        """
        (answer,) = self._session.run([self._output], {self._input: table.astype(np.float32)})
        if isinstance(answer, list):  # one dict of label → probability per row (ZipMap)
            answer = [list(row.values()) for row in answer]
        predictions = np.asarray(answer, dtype=np.float64)
        is_column = predictions.ndim == 2 and predictions.shape[1] == 1
        return predictions[:, 0] if is_column else predictions
