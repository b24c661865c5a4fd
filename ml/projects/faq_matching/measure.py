"""Evaluate a model: scores, feature contributions and stability."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np

from ml.measures.contributions import Contributions
from ml.measures.measurement import Features, Rows
from ml.measures.ranking import gain_at, ranks
from ml.measures.reference import write_reference
from ml.projects.faq_matching.features import NAMES
from ml.projects.faq_matching.fitting import entries_of, fit, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel, softmax
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
from ml.toolkit.training.boosting import contributions

EVALUATED = (VALIDATION, TEST_KNOWN, TEST_UNSEEN)
# Rows explained by TreeSHAP, which is slow; more rows hardly change the result.
EXPLAINED = 500
# The dimension by which metrics are sliced.
TOPIC = "topic"


def answers(model: FaqModel, faq: Faq, split: Split) -> dict[str, Rows]:
    """Map each evaluated split to its questions with the model's scores of all entries.

    Entries are matched by id; an entry unknown to the model ranks last. Questions are identified
    by their text.
    """
    rows_of = {}
    for number in EVALUATED:
        questions = [faq.questions[row] for row in split.rows(number)]
        texts = [question.text for question in questions]
        entries = [faq.entries[question.entry] for question in questions]
        rows_of[SPLITS[number]] = Rows(
            [question.id for question in questions],
            [entry.id for entry in entries],
            model.scores(texts),
            {TOPIC: [entry.topic for entry in entries]},
            identifiers=texts,
            requests=[{"question": text} for text in texts],
        )
    return rows_of


def write_drift_reference(
    folder: Path, digest: str, model: FaqModel, faq: Faq, split: Split
) -> None:
    """Write reference.json, the baseline of drift monitoring, in the endpoint's field names.

    It has the questions of train, validation and test_known, and the predictions and losses of
    validation and test_known.
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
            "answers/0/score": ("numeric", softmax(scores).max(axis=1).tolist()),
        },
        losses={"answers/0/entry_id": [float(a != b) for a, b in zip(first, right, strict=True)]},
    )


def explained(model: FaqModel, faq: Faq, split: Split) -> tuple[Features, Contributions]:
    """Return the features of (test_known question, right entry) pairs, and their contributions.

    The contributions are of the first EXPLAINED pairs.
    """
    rows = split.rows(TEST_KNOWN)
    chosen = model.features(texts_of(faq, rows))[np.arange(len(rows)), entries_of(faq, rows)]
    return Features(NAMES, chosen), contributions(model.booster, chosen[:EXPLAINED])


def stability(
    faq: Faq, split: Split, settings: Hyperparameters, seed: int, count: int, threads: int
) -> tuple[list[float], float]:
    """Cross-validate on training and validation questions, without test questions.

    Return the gain@1 of each of `count` folds and the median seconds of a refit.
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
    return gains, round(median(seconds), 3)
