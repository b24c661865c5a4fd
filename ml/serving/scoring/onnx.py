"""An ONNX model served by ONNX Runtime, in single precision.

`load` of a project's model.py: `Onnx(folder / "model.onnx")`. A model has one input: of `predict`
(rows, names).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a classifier's second output is called by those who convert them (skl2onnx, onnxmltools).
_PROBABILITIES = ("probabilities", "output_probability")


class Onnx:
    """A model on the CPU, one thread a call.

    Raises RuntimeError with ONNX Runtime's own message for a file that is no such model, and
    ValueError for a model of several inputs.
    """

    def __init__(self, model: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # Else content that is ONNX as well may be read in ONNX Runtime's own format.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            # Bytes: a model in bytes cannot refer to files beside it.
            self._session: Any = onnxruntime.InferenceSession(
                model.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # classes of ONNX Runtime's own, one for each of its codes
            raise RuntimeError(f"{model}: {error}") from None
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            raise ValueError(f"{model} has {len(inputs)} inputs, expected one")
        names = [output.name for output in self._session.get_outputs()]
        self._input, self._outputs = inputs[0].name, names
        self._output = next((name for name in names if name in _PROBABILITIES), names[0])

    def outputs(self, value: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Every output of the model, in its order, for what its one input takes."""
        return [np.asarray(of) for of in self._session.run(self._outputs, {self._input: value})]

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """The model's probabilities, or its first output, for each row of (rows, names): a number,
        or one a class.
        """
        (answer,) = self._session.run([self._output], {self._input: table.astype(np.float32)})
        if isinstance(answer, list):  # a mapping of labels for each row (ZipMap)
            answer = [list(row.values()) for row in answer]
        predictions = np.asarray(answer, dtype=np.float64)
        is_column = predictions.ndim == 2 and predictions.shape[1] == 1
        return predictions[:, 0] if is_column else predictions
