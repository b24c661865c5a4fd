"""Compare the detections of the exported network with the original's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision.ops import box_iou

from ml.projects.shelf_gaps.detector import Detector
from ml.projects.shelf_gaps.images import Letterboxed
from ml.projects.shelf_gaps.network import OneImage

# Two boxes match with at least this IoU and at most this score difference.
OVERLAP, SCORE = 0.99, 1e-3


def agreement(network: nn.Module, detector: Detector, images: Sequence[Letterboxed]) -> float:
    """Return the share of boxes that original and export have in common, from 0 to 1.

    Matches and boxes are summed over all images; per image, the larger number of boxes counts. The
    share is 1 if there are no boxes.
    """
    single = OneImage(network)
    matched = total = 0
    for image in images:
        planes = image.planes()
        with torch.inference_mode():
            boxes, scores, _ = single(torch.from_numpy(planes))
        original = torch.cat([boxes, scores[:, None]], dim=1).double().numpy()
        exported = detector.detected(planes, 1.0, detector.size, detector.size).boxes
        matched += matches(original, exported)
        # An extra box of the export counts like a missing one.
        total += max(len(original), len(exported))
    return matched / total if total else 1.0


def matches(original: NDArray[np.float64], exported: NDArray[np.float64]) -> int:
    """Return the number of one-to-one matches between two sets of boxes (n, 5)."""
    if not len(original) or not len(exported):
        return 0
    overlaps = box_iou(torch.from_numpy(original[:, :4]), torch.from_numpy(exported[:, :4])).numpy()
    near = np.abs(original[:, None, 4] - exported[None, :, 4]) <= SCORE
    good, taken, count = (overlaps >= OVERLAP) & near, np.zeros(len(exported), dtype=bool), 0
    for row in good:
        free = np.flatnonzero(row & ~taken)
        if len(free):
            taken[free[0]] = True
            count += 1
    return count
