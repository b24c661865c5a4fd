"""ml.measures.detection beside pycocotools, whose precision it computes again for every draw."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from ml.measures.detection import average_precisions, matches, padded, read, written
from ml.measures.measurement import Rows, metric_values, predict
from ml.measures.metrics import ScoredRows, estimates
from ml.measures.tasks import TASKS, fault

SIZE = 100.0


def boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    corner = rng.uniform(0, 70, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(5, 30, (count, 2))], axis=1)


def images(seed: int, count: int, digits: int = 1) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Objects, and boxes near some of them beside others that are of nothing; scores tie."""
    rng = np.random.default_rng(seed)
    truth, answers = [], []
    for _ in range(count):
        objects = boxes(rng, int(rng.integers(0, 5)))
        near = objects[rng.random(len(objects)) < 0.8] + rng.normal(0, 2, 4)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        every = np.concatenate([near, boxes(rng, int(rng.integers(0, 4)))])
        scores = np.round(rng.random(len(every)), digits)
        truth.append(objects)
        answers.append(np.column_stack([every, scores]))
    return truth, answers


def by_coco(truth: list[np.ndarray], answers: list[np.ndarray]) -> np.ndarray:
    """The average precision at each overlap, by pycocotools alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        pair = []
        for rows in (truth, answers):
            coco = COCO()
            coco.dataset = {
                "images": [{"id": at} for at in range(len(rows))],
                "categories": [{"id": 1}],
                "annotations": [
                    {
                        **{"image_id": at, "category_id": 1, "iscrowd": 0, "id": 0},
                        "bbox": [x, y, right - x, below - y],
                        "area": (right - x) * (below - y),
                        **({"score": rest[0]} if rest else {}),
                    }
                    for at, of in enumerate(rows)
                    for x, y, right, below, *rest in of.tolist()
                ],
            }
            for number, each in enumerate(coco.dataset["annotations"], start=1):
                each["id"] = number
            coco.createIndex()
            pair.append(coco)
        evaluation = COCOeval(*pair, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][:, :, 0, 0, 2].mean(axis=1)


@pytest.mark.parametrize("seed", range(5))
def test_the_precision_is_that_of_coco(seed: int) -> None:
    """At each overlap, for boxes as they are written."""
    truth, answers = images(seed, 40)
    texts = [written(of) for of in truth], [written(of) for of in answers]
    ours = average_precisions(matches(*texts), np.ones((1, 40)))[0]
    theirs = by_coco([read(of, 4) for of in texts[0]], [read(of, 5) for of in texts[1]])
    assert 0.05 < theirs[0] < 0.95
    assert np.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_draw_is_the_images_that_it_has() -> None:
    """An image that is drawn twice counts as two, one that is not drawn as none. Scores do not tie:
    in which order COCO takes two boxes of a score depends on the order of the images.
    """
    truth, answers = images(7, 30, digits=6)
    times = np.random.default_rng(1).multinomial(30, np.ones(30) / 30, size=4).astype(float)
    texts = [written(of) for of in truth], [written(of) for of in answers]
    truth, answers = [read(of, 4) for of in texts[0]], [read(of, 5) for of in texts[1]]
    ours = average_precisions(matches(*texts), times)
    for row, drawn in zip(ours, times.astype(int), strict=True):
        rows = [at for at, count in enumerate(drawn) for _ in range(count)]
        theirs = by_coco([truth[at] for at in rows], [answers[at] for at in rows])
        assert np.allclose(row, theirs, rtol=0, atol=1e-12)


def test_perfect_boxes_and_none() -> None:
    """1 and 0; not defined where nothing is to be found."""
    one = np.array([[1.0, 2.0, 30.0, 40.0]])
    right, nothing = np.column_stack([one, [0.9]]), np.zeros((0, 5))
    cases = {
        1.0: ([one, one], [right, right]),
        0.0: ([one, one], [nothing, nothing]),
    }
    for value, (truth, answers) in cases.items():
        of = metric_values("detection", Rows(["a", "b"], truth, padded(answers)))
        assert of["map_50"] == of["map_50_95"] == pytest.approx(value)
        assert of["count_error"] == 1 - value
    empty = metric_values("detection", Rows(["a"], [np.zeros((0, 4))], padded([right])))
    assert "map_50" not in empty and empty["count_error"] == 1


def test_an_interval_holds_the_value() -> None:
    """The bootstrap draws images."""
    truth, answers = images(3, 60)
    rows = predict("detection", "test", Rows([str(at) for at in range(60)], truth, padded(answers)))
    found = estimates(TASKS["detection"].metrics, ScoredRows.from_rows(rows))["map_50"]
    assert found.low < found.value < found.high and found.count == 60
    assert found.high - found.low < 0.4


@pytest.mark.parametrize(
    ("expected", "predicted", "score", "told"),
    [
        ("[[1, 2, 3, 4]]", "[[1, 2, 3, 4, 0.5]]", 0.5, ""),
        ("[]", "[]", 0.0, ""),
        ("[[1, 2, 3]]", "[]", 0.0, "not a list of boxes"),
        ("[[3, 2, 1, 4]]", "[]", 0.0, "a box with a negative side"),
        ("[]", "[[1, 2, 3, 4, 1.5]]", 1.5, "not between 0 and 1"),
        ("[]", "[[1, 2, 3, 4, NaN]]", 0.0, "a box with a negative side"),
        ("[]", "yes", 0.0, "not a list of boxes"),
        ("[]", "[[1, 2, 3, 4, 0.5]]", 0.7, "score 0.7, not 0.5"),
        ("[" * 100_000, "[]", 0.0, "not a list of boxes"),
    ],
)
def test_what_can_be_an_answer(expected: str, predicted: str, score: float, told: str) -> None:
    """Boxes with scores that add up to the image's."""
    wrong = fault("detection", expected, predicted, 0, score)
    assert told in wrong and bool(told) is bool(wrong)
