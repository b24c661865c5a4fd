"""Measurements of a model: ranks, slices, feature contributions, stability."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.projects.faq_matching.features import NAMES
from ml.projects.faq_matching.fitting import entries_of, fit, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel, beliefs
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import (
    NAMES as SPLITS,
)
from ml.projects.faq_matching.splits import (
    TEST_KNOWN,
    TEST_UNSEEN,
    TRAIN,
    VALIDATION,
    Split,
    folds,
)
from ml.projects.faq_matching.vectors import Index
from ml.toolkit.evaluation import Prediction
from ml.toolkit.explain import Explained, contributions
from ml.toolkit.fairness import disparities
from ml.toolkit.leakage import Check, shared
from ml.toolkit.metrics import Estimate, estimates, gain_at, ranks
from ml.toolkit.reference import write_reference

TESTS = (TEST_KNOWN, TEST_UNSEEN)
EVALUATED = (VALIDATION, *TESTS)
# What slices the questions, and the split whose slices are compared.
TOPIC, SLICED = "topic", SPLITS[TEST_KNOWN]
Metrics = dict[str, dict[str, Estimate]]


def predict(model: FaqModel, faq: Faq, split: Split) -> list[Prediction]:
    """One prediction for each question of the evaluated splits.

    Entries are matched by id: an entry unknown to the model ranks last.
    """
    position_of = {entry.id: at for at, entry in enumerate(model.entries)}
    predictions: list[Prediction] = []
    for number in EVALUATED:
        rows = split.rows(number)
        scores = model.scores(texts_of(faq, rows))
        best = scores.argmax(axis=1)
        for row, of_row, first in zip(rows, scores, best, strict=True):
            question = faq.questions[row]
            entry = faq.entries[question.entry]
            at = position_of.get(entry.id)
            predictions.append(
                Prediction(
                    unit=question.id,
                    split=SPLITS[number],
                    slices={TOPIC: entry.topic},
                    expected=entry.id,
                    # A tie is no answer: with the right entry only as good as another, rank is 2.
                    predicted=model.entries[first].id,
                    rank=len(position_of) + 1 if at is None else int((of_row >= of_row[at]).sum()),
                    score=float(of_row[first]),
                )
            )
    return predictions


def write_seen(folder: Path, digest: str, model: FaqModel, faq: Faq, split: Split) -> None:
    """reference.json: the questions that the model was made for, and its answers to those that it
    was not trained on, in the form of the endpoint's requests and answers.
    """
    rows = np.concatenate([split.rows(VALIDATION), split.rows(TEST_KNOWN)])
    questions = [faq.questions[row].text for row in np.concatenate([split.rows(TRAIN), rows])]
    scores = model.scores(texts_of(faq, rows))
    first = [model.entries[best].id for best in scores.argmax(axis=1)]
    right = [faq.entries[faq.questions[row].entry].id for row in rows]
    write_reference(
        folder,
        digest,
        inputs={"question": ("text", questions)},
        predictions={
            "answers/0/entry_id": ("categorical", first),
            "answers/0/score": ("numeric", beliefs(scores).max(axis=1).tolist()),
        },
        losses={"answers/0/entry_id": [float(a != b) for a, b in zip(first, right, strict=True)]},
    )


def metrics_of(predictions: Sequence[Prediction]) -> Metrics:
    """Every metric with its interval, by split."""
    return {
        name: estimates(np.array([row.rank for row in predictions if row.split == name]))
        for name in dict.fromkeys(row.split for row in predictions)
    }


def slices_of(predictions: Sequence[Prediction]) -> Metrics:
    """The same for the held-out questions about known entries, by topic."""
    positions, topics = _sliced(predictions)
    return {name: estimates(positions[topics == name]) for name in np.unique(topics).tolist()}


def fairness_of(predictions: Sequence[Prediction]) -> dict[str, dict[str, Any]]:
    """How far those topics lie apart."""
    positions, topics = _sliced(predictions)
    return disparities(positions, topics.tolist(), SLICED)


def _sliced(predictions: Sequence[Prediction]) -> tuple[Index, NDArray[np.str_]]:
    rows = [row for row in predictions if row.split == SLICED and row.slices[TOPIC]]
    return np.array([row.rank for row in rows]), np.array([row.slices[TOPIC] for row in rows])


def explained(model: FaqModel, faq: Faq, rows: Index) -> Explained:
    """Each feature's share in the scores of the right entries."""
    chosen = model.features(texts_of(faq, rows))[np.arange(len(rows)), entries_of(faq, rows)]
    return contributions(model.booster, chosen, NAMES)


def stability(
    faq: Faq, split: Split, settings: Hyperparameters, seed: int, count: int, threads: int
) -> tuple[dict[str, str | list[float] | float], float]:
    """gain@1 of `count` refits, each on all but one fold of the training and validation questions.

    No test question is looked at. Also the median of the seconds that a refit took.
    """
    rows = np.concatenate([split.rows(TRAIN), split.rows(VALIDATION)])
    fold = folds(split.group[rows], count, seed)
    gains: list[float] = []
    seconds: list[float] = []
    for number in range(count):
        model = fit(faq, split, rows[fold != number], settings, seed + number, threads)
        fold_rows = rows[fold == number]
        expected = entries_of(faq, fold_rows)
        gains.append(gain_at(ranks(model.scores(texts_of(faq, fold_rows)), expected), 1))
        seconds.append(sum(model.seconds.values()))
    spread = float(np.std(gains, ddof=1))
    return {"over": "folds", "values": gains, "std": spread}, round(median(seconds), 3)


def leaks(model: FaqModel, faq: Faq, split: Split) -> Check:
    """How many test questions this model was trained on: none unless its data was other data.

    No feature is looked at alone: how alike two texts are may well tell the right entry by itself.
    """
    tested = [faq.questions[row].text for row in np.flatnonzero(np.isin(split.of, TESTS))]
    check = shared(model.questions, tested, "question")
    if check.leaks:
        print(f"warning[trained-on-test]: {check.found}: its metrics are too good", file=sys.stderr)
    return check
