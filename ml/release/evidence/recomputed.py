"""What the evidence states, recomputed from the hashed predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ml.release.evidence.predictions import Predictions
from ml.toolkit.evaluation import PREDICTIONS, wrong_primary
from ml.toolkit.fairness import FEWEST
from ml.toolkit.metrics import enough_groups
from ml.toolkit.tasks import METRICS, Answers, Metric, Task, estimate
from policies.promotion.evidence import Disparity, Estimate, Evidence

# Two sums of the same numbers in another order differ by less than this.
TOLERANCE = 1e-9


def disagreements(evidence: Evidence, predictions: Predictions) -> tuple[str, ...]:
    """What the evidence states and the predictions do not bear out; () when all of it follows."""
    wrong = list(predictions.faults)
    if predictions.sha256 != evidence.predictions.sha256:
        wrong.append(f"{PREDICTIONS} is not the file whose sha256 the evidence states")
    if not evidence.metrics:
        wrong.append("the evidence states no metric")
    if (evidence.resampled != evidence.unit) is not bool(predictions.groups()):
        wrong.append(f"{PREDICTIONS} does not group {evidence.unit}s as the evidence states")
    for split, metrics in evidence.metrics.items():
        wrong += _of(
            split, metrics, predictions.task, predictions.answers(split), predictions.drawn(split)
        )
    if odd := wrong_primary(predictions.task, evidence.primary_metric, evidence.goal):
        wrong.append(odd)
    return (*wrong, *_sliced(evidence, predictions))


def _sliced(evidence: Evidence, predictions: Predictions) -> Iterator[str]:
    split = evidence.slice_split or ""
    members = predictions.members().get(split, {})
    answers, drawn = predictions.answers(split), predictions.drawn(split)
    at = {unit: number for number, unit in enumerate(predictions.rows.get(split, {}))}
    for dimension, slices in evidence.slices.items():
        units = {
            name: of
            for name, of in members.get(dimension, {}).items()
            if name in slices or not drawn or enough_groups([drawn[at[unit]] for unit in of])
        }
        for name in sorted(units.keys() ^ slices.keys()):
            yield f"{split}: the slice {dimension} {name} is not in both"
        for name in units.keys() & slices.keys():
            rows = [at[unit] for unit in units[name]]
            labels = [drawn[row] for row in rows] if drawn else None
            place = f"{dimension} {name}"
            yield from _of(place, slices[name], predictions.task, answers[rows], labels)
    for dimension, metrics in evidence.fairness.items():
        for metric, stated in metrics.items():
            yield from _apart(f"{dimension}.{metric}", stated, split, evidence.slices, metric)


def _apart(
    name: str,
    stated: Disparity,
    split: str,
    slices: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    metric: str,
) -> Iterator[str]:
    """Without Fairlearn, which said it first: from the slices, which were recomputed."""
    dimension = name.rpartition(".")[0]
    values = {
        slice_name: of[metric].value
        for slice_name, of in slices.get(dimension, {}).items()
        if metric in of and (of[metric].count or 0) >= FEWEST
    }
    sound = {slice_name: value for slice_name, value in values.items() if value is not None}
    if stated.split != split or len(sound) < 2:
        yield f"the difference {name} does not follow from the slices of {split or 'no split'}"
        return
    again = max(sound.values()) - min(sound.values())
    ends = (sound.get(stated.lowest or ""), sound.get(stated.highest or ""))
    if not (
        _close(stated.difference, again)
        and stated.slices == len(sound)
        and _close(ends[0], min(sound.values()))
        and _close(ends[1], max(sound.values()))
    ):
        yield f"the difference {name} states {stated.difference}, recomputed {again:.6g}"


def _of(
    place: str,
    metrics: Mapping[str, Estimate],
    task: Task,
    answers: Answers,
    drawn: Sequence[str] | None,
) -> Iterator[str]:
    known = METRICS[task]
    for metric, stated in metrics.items():
        name = f"{place}.{metric}"
        if metric not in known:
            yield f"{name} is no metric of the task {task}: {', '.join(known)}"
        elif not len(answers):
            yield f"{name} has no predictions"
        else:
            yield from _differing(name, stated, known[metric], answers, drawn)


def _differing(
    name: str, stated: Estimate, metric: Metric, answers: Answers, drawn: Sequence[str] | None
) -> Iterator[str]:
    """The parts of one estimate, interval included, that do not follow from the answers."""
    try:
        # In the order of the file, so that the seeded bootstrap draws what it drew before.
        again = estimate(metric, answers, groups=drawn)
    except ValueError as error:
        yield f"{name} cannot be recomputed: {error}"
        return
    pairs = {
        "": (stated.value, again.value),
        ".low": (stated.low, again.low),
        ".high": (stated.high, again.high),
        ".count": (stated.count, again.count),
    }
    for part, (claimed, recomputed) in pairs.items():
        if not _close(claimed, recomputed):
            yield f"{name}{part} states {claimed}, recomputed {recomputed:.6g}"


def _close(claimed: float | None, recomputed: float | None) -> bool:
    if claimed is None or recomputed is None:
        return False
    return math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
