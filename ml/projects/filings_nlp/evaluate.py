"""Evaluate a model on filings of other companies and later years, with an n-gram baseline.

python -m ml.projects.filings_nlp.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions
from ml.measures.evaluation import EvaluationRefused
from ml.measures.leakage import not_later
from ml.measures.measurement import Features, Training, evaluate, measure, predict
from ml.measures.schema import Metrics
from ml.measures.tasks import metrics_of
from ml.projects.filings_nlp import train
from ml.projects.filings_nlp.corpus import TEST, TRAIN, VALIDATION, WRONG_CALL, Corpus, read, rows
from ml.projects.filings_nlp.metrics import METRICS
from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import SECTIONS, Encoded, sentences
from ml.projects.filings_nlp.transformer import Pretrained
from ml.serving.scoring.manifest import ManifestError
from ml.toolkit.training.model_folder import unseal
from ml.toolkit.training.tracking import tracking

TASK, PRIMARY = "multiclass", "log_loss"
# Seed offsets of the refits that measure the metric's variation with the seed.
REFITS = (1, 2)
# Of the baseline: the minimum document frequency and the inverse regularisation strength.
SEEN_IN, FREEDOM = 10, 0.01
# Number of documents explained by Shapley values; more documents hardly change the result.
EXPLAINED = 120


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify, load and score the model; compare it with the baseline; write and log the metrics."""
    parser = argparse.ArgumentParser(description="Measure a model.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder that train wrote")
    parser.add_argument("--evaluation", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    try:
        facts, digest = unseal(options.model)
    except (ManifestError, OSError) as error:
        print(f"error[model-changed]: {error}", file=sys.stderr)
        raise SystemExit(WRONG_CALL) from None
    corpus, classifier = read(options.data), Classifier(options.model)
    encoded = {
        name: classifier.encode(corpus.splits[name].documents) for name in (VALIDATION, TEST)
    }
    splits = {
        name: rows(corpus.splits[name], classifier.probabilities(documents))
        for name, documents in encoded.items()
    }
    settings, seed = facts["hyperparameters"], facts["seed"]
    as_trained = corpus.shuffled(seed) if facts["shuffled"] else corpus
    base = Pretrained.load(options.model / train.BASE) if facts["adapter"] else None
    with tracking() as tracker:
        try:
            evaluation = evaluate(
                options.evaluation,
                splits,
                Training(
                    rows(corpus.splits[TRAIN]),
                    settings,
                    [refit(as_trained, settings, seed + more, base) for more in REFITS],
                    facts["seconds"],
                    seed,
                ),
                Features(SECTIONS, _lengths(corpus)),
                shapley(classifier, encoded[TEST]),
                task=TASK,
                primary_metric=PRIMARY,
                model="filings-nlp",
                digest=digest,
                unit="filing",
                classes=classifier.classes,
                identified_by="company",
                baseline=ngram_baseline(corpus),
                baseline_from="logistic regression of the words, pairs and triples of each section",
                leakage=[not_later(corpus.splits[TRAIN].days, corpus.splits[TEST].days, "filed")],
                inputs={
                    name: ("text", [document[name] for document in corpus.splits[TEST].documents])
                    for name in SECTIONS
                },
                custom_metrics=METRICS,
            )
        except (EvaluationRefused, ValueError) as error:
            raise SystemExit(f"error[no-evaluation]: {error}") from error
        tracker.metrics(evaluation.values())
    print(f"model {digest}")
    print(evaluation.text())


def refit(
    corpus: Corpus, settings: Mapping[str, Any], seed: int, base: Pretrained | None = None
) -> float:
    """Return the validation loss of a model trained with `settings` and `seed`."""
    settings = {**train.SETTINGS, **settings, "search_epochs": 0}
    with tempfile.TemporaryDirectory() as folder:
        fitted = train.fit(corpus, settings, seed, Path(folder), base=base)
    assert fitted is not None  # evaluations have one process
    return fitted.loss


def ngram_baseline(corpus: Corpus) -> Metrics:
    """Return the baseline's metrics: a logistic regression of each section's 1- to 3-grams."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = CountVectorizer(ngram_range=(1, 3)).build_analyzer()
    counter = CountVectorizer(
        analyzer=lambda document: [
            f"{section} {word}" for section in SECTIONS for word in words(document[section])
        ],
        binary=True,
        min_df=SEEN_IN,
    )
    model = make_pipeline(counter, LogisticRegression(C=FREEDOM, max_iter=1000))
    model.fit(corpus.splits[TRAIN].documents, corpus.splits[TRAIN].labels)
    classes, answered = model.classes_.tolist(), []
    for name in (VALIDATION, TEST):
        scores = model.predict_proba(corpus.splits[name].documents)
        answered += predict(TASK, name, rows(corpus.splits[name], scores), classes, METRICS)
    return measure(metrics_of(TASK, METRICS), answered, sliced=TEST).metrics


def shapley(classifier: Classifier, documents: Sequence[Encoded]) -> Contributions:
    """Return the exact Shapley values of the sections for the log probability of each class.

    The model predicts every subset of the five sections. A document's values add up to the
    difference from the empty document.
    """
    chosen, count = documents[:EXPLAINED], len(SECTIONS)
    masked: list[Encoded] = [
        [section if subset >> index & 1 else [] for index, section in enumerate(document)]
        for subset in range(1 << count)
        for document in chosen
    ]
    scores = np.log(classifier.probabilities(masked)).reshape(1 << count, -1)
    values = np.zeros((scores.shape[1], count))
    for index in range(count):
        for subset in range(1 << count):
            if not subset >> index & 1:
                size = subset.bit_count()
                weight = factorial(size) * factorial(count - size - 1) / factorial(count)
                values[:, index] += weight * (scores[subset | 1 << index] - scores[subset])
    difference = np.abs(values.sum(axis=1) - (scores[-1] - scores[0])).max()
    error = float(difference / np.abs(scores[-1]).max())
    return Contributions(values, len(chosen), "Shapley values of the sections, exact", error)


def _lengths(corpus: Corpus) -> NDArray[np.float64]:
    """Return the number of words per section, (test documents, sections), for the leakage check."""
    return np.array(
        [
            [sum(map(len, sentences(document[name]))) for name in SECTIONS]
            for document in corpus.splits[TEST].documents
        ],
        dtype=np.float64,
    )


if __name__ == "__main__":
    main()
