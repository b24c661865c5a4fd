"""How much of a trial's result is its seed: the same hyperparameters fitted again with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import stdev

from ml.projects.faq_matching.fitting import entries_of, fit, texts_of, validation_metrics
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import TRAIN, VALIDATION, Split
from ml.toolkit.metrics import ranks


def refits(
    faq: Faq, split: Split, model: FaqModel, count: int, threads: int
) -> list[Mapping[str, float]]:
    """The validation metrics of `count` models made as `model` was, with the seeds after its own.

    They have as many trees as `model` kept.
    """
    settings = Hyperparameters.of(model.settings)
    settings = replace(settings, trees=max(1, model.booster.num_trees()))
    rows = split.rows(VALIDATION)
    texts, expected = texts_of(faq, rows), entries_of(faq, rows)
    found: list[Mapping[str, float]] = []
    for number in range(1, count + 1):
        seed = int(model.settings["seed"]) + number
        other = fit(faq, split, split.rows(TRAIN), settings, seed, threads)
        found.append(validation_metrics(ranks(other.scores(texts), expected)))
    return found


def spread(fits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """`<metric>_std`: each metric's standard deviation over fits; empty with fewer than two."""
    if len(fits) < 2:
        return {}
    return {f"{name}_std": stdev(fit[name] for fit in fits) for name in fits[0]}
