"""A detector without learning: it finds shelves by their boards, and gaps by the lack of edges.

The baseline that a first model has to beat. A board is a long bright edge across the image. Between
two of them, what has few edges and looks like the strip under the upper board is a gap: there the
back of the shelf always shows (the template).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Turns of the camera that are tried, as the fall of a board over the width of the image.
_FALLS = np.linspace(-0.08, 0.08, 17)
# How many boards a shelf may have; a gap takes this share of the width, at least.
_BOARDS, _NARROWEST = range(2, 7), 0.05
# Relative to the back's brightness: a product is farther from the template, or a higher edge.
_UNLIKE, _EDGE = 0.7, 0.8
_SOFT = np.hanning(5) / np.hanning(5).sum()


def gaps(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the gaps of an image (height, width, 3): boxes with scores, (n, 5)."""
    image = pixels.astype(np.float64)
    grey = image @ (0.299, 0.587, 0.114)
    height, width = grey.shape
    grey /= max(float(np.percentile(grey, 95)), 1.0)
    image /= max(float(np.percentile(image, 95)), 1.0)
    fall = max(_FALLS, key=lambda candidate: float(_profile(_sheared(grey, candidate)).var()))
    image, level = _sheared(image, fall), _sheared(grey, fall)
    spans = []
    for above, below in pairwise(_boards(_profile(level))):
        spans += _in_row(image, above, below)
    boxes = np.array(spans, dtype=np.float64).reshape(-1, 5)
    shift = (boxes[:, 0] + boxes[:, 2]) / 2 / width * fall * height
    boxes[:, 1] += shift
    boxes[:, 3] += shift
    boxes[:, :4] = np.clip(boxes[:, :4], 0, (width, height, width, height))
    return boxes[np.argsort(-boxes[:, 4], kind="stable")]


def _sheared(image: NDArray[np.float64], fall: float) -> NDArray[np.float64]:
    """Return the image with each column moved up as far as a board falls to there."""
    height, width = image.shape[:2]
    rows = np.arange(height)[:, None] + np.round(fall * height * np.arange(width) / width)
    rows = np.clip(rows, 0, height - 1).astype(int)
    return np.asarray(image[rows, np.arange(width)[None, :]])


def _profile(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smoothed median by which each row is brighter than the one above."""
    steps = np.diff(grey, axis=0, prepend=grey[:1])
    return np.convolve(np.median(np.clip(steps, 0, None), axis=1), _SOFT, mode="same")


def _boards(profile: NDArray[np.float64]) -> list[int]:
    """Return the upper end of the shelf, and the rows of boards at equal distances."""
    height = len(profile)
    best: tuple[float, list[int]] = (-1.0, [0, height])
    for count in _BOARDS:
        for top in range(0, height // 10):
            spacing = (height - top) / count
            for thick in range(2, 8):
                rows = [round(top + spacing * (number + 1)) - thick for number in range(count)]
                strength = float(profile[rows].mean()) * count**0.5
                if strength > best[0]:
                    best = strength, [top, *rows]
    return best[1]


def _in_row(image: NDArray[np.float64], above: int, below: int) -> list[list[float]]:
    """Return the gaps between two boards."""
    room, width = below - above, image.shape[1]
    first, third = above + int(0.2 * room), max(1, int(0.26 * room))
    # Means of pieces of a column, so that the noise of the sensor is no edge.
    parts = [image[first + i * third : first + (i + 1) * third].mean(axis=0) for i in range(3)]
    pieces = np.stack(parts)
    template = np.median(image[above + int(0.14 * room) : first + 1].reshape(-1, 3), axis=0)
    dark = template.mean() + 0.1  # the same step is a higher one where it is dark
    unlike = np.abs(pieces - template).mean(axis=2).max(axis=0) / dark
    across = np.abs(np.diff(pieces, axis=1, append=pieces[:, -1:])).mean(axis=2).max(axis=0) / dark
    strange = np.convolve(unlike / _UNLIKE + across / _EDGE, _SOFT, mode="same")
    empty = np.concatenate([[0], (strange < 1.0).astype(int), [0]])
    starts, ends = np.flatnonzero(np.diff(empty) == 1), np.flatnonzero(np.diff(empty) == -1)
    return [
        [left, above + 0.06 * room, right, below, float(1 - strange[left:right].mean())]
        for left, right in zip(starts.tolist(), ends.tolist(), strict=True)
        if right - left >= _NARROWEST * width
    ]
