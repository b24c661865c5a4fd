"""Evaluate a model on held-out stores, with the detector of edges.py as the baseline.

python -m ml.projects.shelf_gaps.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.measures.detection import padded
from ml.measures.evaluation import EvaluationRefused
from ml.measures.measurement import Features, Rows, Training, evaluate, metrics_of, predict
from ml.measures.reference import Kind, write_reference
from ml.measures.schema import Metrics
from ml.measures.tasks import TASKS
from ml.projects.shelf_gaps import edges, occlusion
from ml.projects.shelf_gaps.dataset import (
    TEST,
    TRAIN,
    VALIDATION,
    Picture,
    check_images,
    lighting,
    opened,
)
from ml.projects.shelf_gaps.detector import Detections, Detector
from ml.projects.shelf_gaps.images import Letterboxed, decoded, letterboxed
from ml.serving.scoring.manifest import ManifestError
from ml.toolkit.data.tables import DataRefused
from ml.toolkit.training.boosting import threads
from ml.toolkit.training.model_folder import unseal
from ml.toolkit.training.tracking import tracking

TASK, ENDPOINT = "detection", "shelf-gaps"
# The subfolder of the evaluation with the images that charts.py draws.
REPORT_IMAGES = "looked_at"


@dataclass(frozen=True)
class DetectedPicture:
    """A picture, its letterboxed image, and the model's detections."""

    picture: Picture
    image: Letterboxed
    detections: Detections

    @property
    def answer(self) -> Mapping[str, object]:
        """The endpoint's response for the image."""
        return self.detections.of_size(self.image.width, self.image.height)


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify the model, detect gaps, compare, explain, and write and log the metrics."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder that train wrote")
    parser.add_argument("--evaluation", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    try:
        facts, digest = unseal(options.model)
        refits = facts.pop("measured")
        if len(refits) < 2:
            raise SystemExit(
                "error[few-epochs]: the training measured validation once\n"
                "  expected: two or more validations, to measure the stability\n"
                "  hint: train more epochs, or set measure_every=1"
            )
        detector = Detector(options.model)
        with opened(options.data) as splits, tracking() as tracker:
            check_images([*splits[VALIDATION], *splits[TEST]])
            seen = {name: detect_all(detector, splits[name]) for name in (VALIDATION, TEST)}
            explained = occlusion.shares(
                detector,
                [example.image for example in seen[TEST]],
                [example.detections for example in seen[TEST]],
            )
            evaluation = evaluate(
                options.evaluation,
                {name: rows(value) for name, value in seen.items()},
                Training(
                    Rows(
                        [picture.name for picture in splits[TRAIN]],
                        (),
                        identifiers=[identifier(picture) for picture in splits[TRAIN]],
                    ),
                    refits=refits,
                    over="epochs",
                    threads=threads(),
                    **facts,
                ),
                Features(occlusion.REGIONS, explained.areas),
                explained.contributions,
                task=TASK,
                primary_metric=TASKS[TASK].primary,
                model=ENDPOINT,
                digest=digest,
                identified_by="image",
                baseline=without_learning(seen),
                baseline_from="edges and a template of the empty shelf, nothing learnt",
            )
            write_watched(options.evaluation, digest, seen[TEST])
            keep_images(options.evaluation / REPORT_IMAGES, seen[TEST])
            tracker.metrics(evaluation.values())
    except DataRefused as error:
        raise SystemExit(str(error)) from None
    except (ManifestError, EvaluationRefused, OSError, ValueError, KeyError) as error:
        raise SystemExit(f"error[no-evaluation]: {type(error).__name__}: {error}") from error
    print(f"model {digest}")
    print(evaluation.text())


def detect_all(detector: Detector, pictures: Sequence[Picture]) -> list[DetectedPicture]:
    """Return the detections of every picture, with the endpoint's preprocessing."""
    seen = []
    for picture in pictures:
        image = letterboxed(decoded(picture.file.read_bytes(), detector.size), detector.size)
        seen.append(DetectedPicture(picture, image, detector.detect(image)))
    return seen


def rows(seen: Sequence[DetectedPicture], scores: NDArray[np.float64] | None = None) -> Rows:
    """Return a split as `Rows` for `evaluate`.

    `scores` (images, boxes, 5) replaces the model's boxes, for the baseline.
    """
    return Rows(
        [example.picture.name for example in seen],
        [example.picture.boxes for example in seen],
        padded([example.detections.boxes for example in seen]) if scores is None else scores,
        slices={
            "store": [example.picture.store for example in seen],
            "lighting": [lighting(example.image.brightness) for example in seen],
        },
        identifiers=[identifier(example.picture) for example in seen],
        requests=[
            {"image": base64.b64encode(example.picture.file.read_bytes()).decode()}
            for example in seen
        ],
    )


def without_learning(splits: Mapping[str, Sequence[DetectedPicture]]) -> Metrics:
    """Return the metrics of the baseline, the detector of edges.py."""
    same = []
    for name, seen in splits.items():
        boxes = [
            edges.gaps(example.image.pixels) / (*[example.image.scale] * 4, 1) for example in seen
        ]
        same += predict(TASK, name, rows(seen, padded(boxes)))
    return metrics_of(TASKS[TASK].metrics, same)


def identifier(picture: Picture) -> str:
    """Return the SHA-256 of the image file, by which the evaluation finds training duplicates."""
    return sha256(picture.file.read_bytes()).hexdigest()


def write_watched(folder: Path, digest: str, seen: Sequence[DetectedPicture]) -> None:
    """Write reference.json, the baseline of drift monitoring: response fields and losses.

    The loss of an image is the absolute error of the number of gaps.
    """
    answers = [example.answer for example in seen]
    columns: dict[str, tuple[Kind, list[object]]] = {
        name: ("numeric", [answer[name] for answer in answers])
        for name in ("gaps", "expected_gaps", "empty")
    }
    columns["image/brightness"] = ("numeric", [example.image.brightness for example in seen])
    losses = [
        abs(int(str(example.answer["gaps"])) - len(example.picture.boxes)) for example in seen
    ]
    write_reference(folder, digest, {}, columns, {"gaps": losses})


def keep_images(folder: Path, seen: Sequence[DetectedPicture]) -> None:
    """Copy images for the report to `folder`: two per store, the three best, the three worst.

    chosen.json lists the names of the best and the worst.
    """
    folder.mkdir(parents=True, exist_ok=True)
    distances = [abs(example.detections.expected - len(example.picture.boxes)) for example in seen]
    order = np.argsort(distances, kind="stable").tolist()
    chosen = dict.fromkeys([*order[:3], *order[-3:]])
    for store in sorted({example.picture.store for example in seen}):
        chosen |= dict.fromkeys(
            [number for number, example in enumerate(seen) if example.picture.store == store][:2]
        )
    for number in chosen:
        example = seen[number]
        (folder / f"{example.picture.name}.img").write_bytes(example.picture.file.read_bytes())
    about = {"worst": [seen[index].picture.name for index in order[-3:]][::-1]}
    about |= {"best": [seen[index].picture.name for index in order[:3]]}
    (folder / "chosen.json").write_text(json.dumps(about), encoding="utf-8")


if __name__ == "__main__":
    main()
