"""The served model: detects the gaps in an image by ONNX Runtime."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.projects.shelf_gaps.images import Letterboxed
from ml.serving.scoring.onnx import Graph

FILE, SETTINGS = "model.onnx", "settings.json"
# A box with at least this score counts as a gap.
CERTAIN = 0.5


@dataclass(frozen=True)
class Detections:
    """The boxes detected in an image, highest score first."""

    boxes: NDArray[np.float64]  # (n, 5): x1, y1, x2, y2 in pixels of the image, and the score
    covered: NDArray[np.float64]  # (n): share of the box that its mask covers

    @property
    def expected(self) -> float:
        """The expected number of gaps: the sum of the scores."""
        return float(self.boxes[:, 4].sum())

    def of_size(self, width: int, height: int) -> dict[str, Any]:
        """Return the endpoint's response for an image of `width` × `height` pixels.

        `empty` is the share of the image covered by the masks of boxes with a score of at least
        CERTAIN. Overlaps count twice; the maximum is 1.
        """
        certain = self.boxes[:, 4] >= CERTAIN
        sides = self.boxes[:, 2:4] - self.boxes[:, :2]
        area = (sides.prod(axis=1) * self.covered)[certain].sum()
        return {
            "gaps": int(certain.sum()),
            "expected_gaps": round(self.expected, 6),
            "empty": round(min(1.0, float(area) / (width * height)), 6),
            "boxes": [
                [*(round(x, 2) for x in box[:4]), round(box[4], 6)] for box in self.boxes.tolist()
            ],
        }


class Detector:
    """The model in a folder; `size` is the side of its square input in pixels."""

    def __init__(self, folder: Path) -> None:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.size = int(settings["hyperparameters"]["size"])
        self._network = Graph(folder / FILE)

    def detect(self, image: Letterboxed) -> Detections:
        """Return the detections in an image that is letterboxed to `size`."""
        return self.detected(image.planes(), image.scale, image.width, image.height)

    def detected(
        self, planes: NDArray[np.float32], scale: float, width: int, height: int
    ) -> Detections:
        """Return the detections for a network input `planes` (3, size, size).

        `scale`, `width` and `height` are those of `Letterboxed`; boxes are in original pixels.
        """
        answers = self._network.run({"image": planes})
        boxes, scores, masks = (answers[name] for name in ("boxes", "scores", "masks"))
        places = np.clip(boxes.astype(np.float64) / scale, 0, (width, height, width, height))
        covered = (masks > 0.5).mean(axis=(1, 2)) if len(masks) else np.zeros(0)
        return Detections(np.column_stack([places, scores.astype(np.float64)]), covered)
