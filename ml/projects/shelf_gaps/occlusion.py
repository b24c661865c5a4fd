"""Explain which regions of an image the detections depend on, by occlusion.

The image has three regions: inside the detected boxes, a frame around them, and the rest. The
model runs with each subset of them visible. A region's contribution to the expected number of
gaps is its Shapley value; they add up exactly to the difference from the fully hidden image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from ml.measures.contributions import Contributions
from ml.projects.shelf_gaps.detector import Detections, Detector
from ml.projects.shelf_gaps.images import Letterboxed, planes_of

REGIONS = ("inside the boxes", "around the boxes", "the rest")
# Width of the frame as a share of the image's side; minimum score of a box.
_FRAME, _LEAST_SCORE = 0.08, 0.3
# Hidden regions show the strongly blurred image, because a fill colour would add edges.
_BLUR = 0.12


@dataclass(frozen=True)
class Explained:
    """The contribution and the area of each region."""

    contributions: Contributions
    areas: NDArray[np.float64]  # (images, regions): share of the image


def shares(
    detector: Detector, images: Sequence[Letterboxed], detections: Sequence[Detections]
) -> Explained:
    """Return the regions' contributions to the expected number of gaps of each image.

    `detections` are those of the unoccluded images.
    """
    values, areas, error, largest = [], [], 0.0, 1e-9
    for image, detected in zip(images, detections, strict=True):
        regions = _regions(image, detected)
        hidden = _painted(image.pixels)
        answers = {
            visible: _expected(detector, image, hidden, regions, visible)
            for size in range(len(REGIONS))
            for visible in combinations(range(len(REGIONS)), size)
        }
        answers[tuple(range(len(REGIONS)))] = detected.expected
        row = [_shapley(answers, number) for number in range(len(REGIONS))]
        nothing, everything = answers[()], answers[tuple(range(len(REGIONS)))]
        error = max(error, abs(sum(row) + nothing - everything))
        largest = max(largest, abs(everything))
        values.append(row)
        areas.append([float((regions == number).mean()) for number in range(len(REGIONS))])
    method = "Shapley values of regions, by occlusion"
    contributions = Contributions(np.array(values), len(images), method, error / largest)
    return Explained(contributions, np.array(areas))


def _regions(image: Letterboxed, found: Detections) -> NDArray[np.int64]:
    """Return the region number (index into REGIONS) of each pixel, (size, size)."""
    side, boxes = len(image.pixels), found.boxes
    regions = np.full((side, side), 2)
    places = (boxes[boxes[:, 4] >= _LEAST_SCORE, :4] * image.scale).round().astype(int)
    for margin, number in ((int(_FRAME * side), 1), (0, 0)):
        for left, above, right, below in places.tolist():
            rows = slice(max(0, above - margin), below + margin)
            regions[rows, max(0, left - margin) : right + margin] = number
    return regions


def _painted(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    blurred = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(_BLUR * len(pixels)))
    return np.asarray(blurred)


def _expected(
    detector: Detector,
    image: Letterboxed,
    hidden: NDArray[np.uint8],
    regions: NDArray[np.int64],
    visible: tuple[int, ...],
) -> float:
    is_visible = np.isin(regions, visible)[..., None]
    planes = planes_of(np.where(is_visible, image.pixels, hidden))
    return detector.detected(planes, image.scale, image.width, image.height).expected


def _shapley(answers: dict[tuple[int, ...], float], number: int) -> float:
    """Return the Shapley value of a region; `answers` has the output of every visible subset."""
    count, total = len(REGIONS), 0.0
    for before, answer in answers.items():
        if number not in before:
            weight = factorial(len(before)) * factorial(count - 1 - len(before)) / factorial(count)
            total += weight * (answers[tuple(sorted((*before, number)))] - answer)
    return total
