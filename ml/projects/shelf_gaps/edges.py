"""The baseline: a detector without machine learning, by edges and a template.

A board of the shelf is a long bright edge across the image. The strip under a board always shows
the back of the shelf; it is the template. A gap is an area between two boards that resembles the
template and has few edges.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Candidate tilts of the camera: slope of a board, in image heights per image width.
_FALLS = np.linspace(-0.08, 0.08, 17)
# Possible numbers of boards; minimum width of a gap as a share of the image width.
_BOARDS, _NARROWEST = range(2, 7), 0.05
# Thresholds of a product, relative to the back's brightness: distance to the template, edge height.
_UNLIKE, _EDGE = 0.7, 0.8
_SOFT = np.hanning(5) / np.hanning(5).sum()


def gaps(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return boxes with scores (n, 5) of the gaps in an image (height, width, 3)."""
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
    """Return the image with its columns shifted vertically, so that sloping boards are level."""
    height, width = image.shape[:2]
    rows = np.arange(height)[:, None] + np.round(fall * height * np.arange(width) / width)
    rows = np.clip(rows, 0, height - 1).astype(int)
    return np.asarray(image[rows, np.arange(width)[None, :]])


def _profile(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows,): the smoothed median brightness increase from the row above."""
    steps = np.diff(grey, axis=0, prepend=grey[:1])
    return np.convolve(np.median(np.clip(steps, 0, None), axis=1), _SOFT, mode="same")


def _boards(profile: NDArray[np.float64]) -> list[int]:
    """Return the row of the shelf's upper end and the rows of its equidistant boards."""
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
    """Return the gaps [x1, y1, x2, y2, score] between the board rows `above` and `below`."""
    room, width = below - above, image.shape[1]
    first, third = above + int(0.2 * room), max(1, int(0.26 * room))
    # Average thirds of the columns, so that sensor noise does not count as an edge.
    parts = [image[first + i * third : first + (i + 1) * third].mean(axis=0) for i in range(3)]
    pieces = np.stack(parts)
    template = np.median(image[above + int(0.14 * room) : first + 1].reshape(-1, 3), axis=0)
    dark = template.mean() + 0.1  # relative to the brightness: edges are weaker in the dark
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
