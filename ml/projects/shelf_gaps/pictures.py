"""Batches of pictures for the network, and their random augmentation in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.projects.shelf_gaps.dataset import Picture, Sample

Rows = dict[str, NDArray[Any]]
# Maximum number of gaps of a picture in training.
MOST_GAPS = 40
# Value of padding in `boxes`.
_NOTHING = -1.0


class Pictures:
    """The data source of `Batches`, decoded on access."""

    def __init__(self, pictures: Sequence[Picture], size: int) -> None:
        self._pictures, self._size = pictures, size

    def __len__(self) -> int:
        return len(self._pictures)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return the pictures with the indices `rows`: pixels, boxes and gaps.

        Boxes are padded to (n, MOST_GAPS, 4). The gaps (n, size, size) are the gap number of each
        pixel, from 1; 0 means no gap.
        """
        samples = [self._pictures[row].sample(self._size) for row in rows.tolist()]
        return {
            "pixels": np.stack([sample.pixels for sample in samples]),
            "boxes": np.stack([_padded(sample.boxes[:MOST_GAPS]) for sample in samples]),
            "gaps": np.stack([_numbered(sample) for sample in samples]),
        }


def augmented(rows: Rows, random: np.random.Generator) -> Rows:
    """Return randomly augmented pictures: mirrored, cropped and enlarged, with changed colours."""
    pixels, boxes, gaps = rows["pixels"].copy(), rows["boxes"].copy(), rows["gaps"].copy()
    for number in range(len(pixels)):
        if random.random() < 0.5:
            pixels[number], gaps[number] = pixels[number, :, ::-1], gaps[number, :, ::-1]
            boxes[number] = _mirrored(boxes[number], pixels.shape[2])
        if random.random() < 0.5:
            _enlarge(pixels[number], boxes[number], gaps[number], random)
        colours = random.uniform(0.8, 1.25, 3) * random.uniform(0.5, 1.6)
        lit = (pixels[number] - 128.0) * random.uniform(0.7, 1.3) + 128.0
        pixels[number] = np.clip(lit * colours, 0, 255).astype(np.uint8)
    return {"pixels": pixels, "boxes": boxes, "gaps": gaps}


def network_batch(batch: dict[str, Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return images (3, size, size) from 0 to 1, and targets in torchvision's format."""
    images = list(batch["pixels"].permute(0, 3, 1, 2).float() / 255)
    targets = []
    for boxes, gaps in zip(batch["boxes"], batch["gaps"], strict=True):
        numbers = (boxes[:, 0] != _NOTHING).nonzero()[:, 0]
        targets.append(
            {
                "boxes": boxes[numbers].float(),
                "labels": torch.ones(len(numbers), dtype=torch.int64, device=boxes.device),
                "masks": (gaps == numbers[:, None, None] + 1).to(torch.uint8),
            }
        )
    return images, targets


def _numbered(sample: Sample) -> NDArray[np.uint8]:
    gaps = np.zeros(sample.pixels.shape[:2], dtype=np.uint8)
    for number, mask in enumerate(sample.masks[:MOST_GAPS], start=1):
        gaps[mask > 0] = number
    return gaps


def _padded(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([boxes, np.full((MOST_GAPS - len(boxes), 4), _NOTHING)])


def _mirrored(boxes: NDArray[Any], width: int) -> NDArray[Any]:
    mirrored = np.stack(
        [width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1
    )
    return np.where(boxes[:, :1] == _NOTHING, _NOTHING, mirrored)


def _enlarge(
    pixels: NDArray[Any],
    boxes: NDArray[Any],
    gaps: NDArray[Any],
    random: np.random.Generator,
) -> None:
    """Crop a random part (0.65 to 1 of the side) and enlarge it to the full size, in place.

    Drop gaps with less than a third of their area left, or with a side below 4 pixels.
    """
    side = len(pixels)
    part = int(side * random.uniform(0.65, 1.0))
    left, above = random.integers(0, side - part + 1, 2).tolist()
    grid = np.arange(side) * part // side
    pixels[:], gaps[:] = pixels[above + grid][:, left + grid], gaps[above + grid][:, left + grid]
    there = boxes[:, 0] != _NOTHING
    cut = np.clip((boxes - (left, above, left, above)) * (side / part), 0, side)
    areas = (
        (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (cut, boxes * (side / part))
    )
    share = next(areas) / np.maximum(next(areas), 1e-9)
    small = ((cut[:, 2:] - cut[:, :2]) < 4).any(axis=1)
    stays = there & (share >= 1 / 3) & ~small
    boxes[:] = np.where(stays[:, None], cut, _NOTHING)
    gaps[~np.isin(gaps, np.flatnonzero(stays) + 1)] = 0
