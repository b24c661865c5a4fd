"""Measure object detection with pycocotools: box matching and average precision.

A unit is an image. Its label is its boxes, `[[x1, y1, x2, y2], …]` in pixels; the prediction is
boxes with scores, `[[x1, y1, x2, y2, score], …]`. predictions.csv has both as JSON. The matching
is COCO's (https://cocodataset.org/#detection-eval): up to 100 boxes per image, by falling score,
each match the unmatched object with the highest IoU. The average precision is the mean precision at
101 recalls.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.bootstrap import Values, weighted_sums

# The overlap (intersection over union) thresholds of COCO.
OVERLAPS = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())
RECALLS = np.linspace(0.0, 1.0, 101)
# A box with this score counts as an object.
CERTAIN = 0.5
_MOST = 100
# Decimals in predictions.csv: a hundredth of a pixel, a millionth of a score.
_DIGITS = (2, 2, 2, 2, 6)


@dataclass(frozen=True)
class Matches:
    """The predicted boxes of some images, highest score first."""

    image: NDArray[np.int64]  # (boxes): index of the image
    right: NDArray[np.bool_]  # (OVERLAPS, boxes): whether the box matches an object at that IoU
    objects: Values  # (images): number of objects


def written(boxes: Any) -> str:
    """Encode boxes (n, 4), or (n, 5) with scores, for predictions.csv; rows of NaN are skipped."""
    rows = np.asarray(boxes, dtype=np.float64)
    if not rows.size:
        return "[]"
    return json.dumps(
        [
            [round(value, digits) for value, digits in zip(row, _DIGITS, strict=False)]
            for row in rows.tolist()
            if not any(map(math.isnan, row))
        ]
    )


def read(text: str, numbers: int) -> NDArray[np.float64]:
    """Parse boxes (n, numbers); raise ValueError if the text is not a list of boxes."""
    try:
        rows = np.array(json.loads(text), dtype=np.float64).reshape(-1, numbers)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            f"{text[:40]!r} is not a list of boxes with {numbers} numbers each"
        ) from None
    if not np.isfinite(rows).all() or (rows[:, 2:4] < rows[:, :2]).any():
        raise ValueError(f"{text[:40]!r} has a box with a negative side or a non-finite number")
    if numbers == 5 and not ((rows[:, 4] >= 0) & (rows[:, 4] <= 1)).all():
        raise ValueError(f"{text[:40]!r} has a score that is not between 0 and 1")
    return rows


def padded(boxes: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return scored boxes per image as one array (images, boxes, 5), padded with NaN.

    That is the format of `scores` in `Rows`.
    """
    rows = np.full((len(boxes), max([1, *map(len, boxes)]), 5), np.nan)
    for number, image_boxes in enumerate(boxes):
        rows[number, : len(image_boxes)] = image_boxes
    return rows


def certain(text: str) -> int:
    """Return the number of boxes with a score of at least CERTAIN."""
    return int((read(text, 5)[:, 4] >= CERTAIN).sum())


def matches(expected: Sequence[str], predicted: Sequence[str]) -> Matches:
    """Match predicted boxes with each image's objects (COCO); texts are those of `written`."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, answers = [read(text, 4) for text in expected], [read(text, 5) for text in predicted]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        data = [COCO(), COCO()]
        for coco, rows in zip(data, (truth, answers), strict=True):
            coco.dataset = {
                "images": [{"id": number} for number in range(len(rows))],
                "categories": [{"id": 1}],
                "annotations": [
                    {
                        "image_id": number,
                        "category_id": 1,
                        "bbox": [x, y, right - x, below - y],
                        "area": (right - x) * (below - y),
                        "iscrowd": 0,
                        "score": score[0] if score else 1.0,
                    }
                    for number, boxes in enumerate(rows)
                    for x, y, right, below, *score in boxes.tolist()
                ],
            }
            for number, annotation in enumerate(coco.dataset["annotations"], start=1):
                annotation["id"] = number
            coco.createIndex()
        evaluation = COCOeval(*data, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [_MOST]
        evaluation.params.iouThrs = np.array(OVERLAPS)
        evaluation.evaluate()
    # One item for each image with boxes or objects, in order.
    images = [item for item in evaluation.evalImgs if item is not None]
    scores = np.array([score for item in images for score in item["dtScores"]])
    order = np.argsort(-scores, kind="stable")
    right = np.concatenate(
        [np.zeros((len(OVERLAPS), 0)), *(item["dtMatches"] for item in images)], axis=1
    )
    image = np.array(
        [item["image_id"] for item in images for _ in item["dtScores"]], dtype=np.int64
    )
    objects = np.array([len(labels) for labels in truth], dtype=np.float64)
    return Matches(image[order], right[:, order] > 0, objects)


def average_precisions(matched: Matches, times: Values) -> Values:
    """Return the average precision (draws, overlaps) of bootstrap draws; NaN without an object.

    `times` says how often each draw contains each image.
    """
    objects = weighted_sums(times, matched.objects)
    result = np.zeros((len(times), len(OVERLAPS)))
    weights = times.take(matched.image, axis=1)
    every = np.maximum(weights.cumsum(axis=1), 1.0)
    for index, right in enumerate(matched.right):
        # Recall rises only at matched boxes.
        columns = np.flatnonzero(right)
        if not len(columns):
            continue
        hits = weights[:, columns].cumsum(axis=1)
        # Interpolated precision: the maximum at this or a higher recall.
        precision = hits / every[:, columns]
        precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        for draw, (hit, count) in enumerate(zip(hits, objects.tolist(), strict=True)):
            if count:
                first = np.searchsorted(hit / count, RECALLS, side="left")
                reached = first[first < len(columns)]
                result[draw, index] = precision[draw, reached].sum() / len(RECALLS)
    result[objects == 0] = np.nan
    return result
