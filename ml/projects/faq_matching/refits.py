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
    if not count:
        return []
    settings = Hyperparameters.of(model.settings)
    settings = replace(settings, trees=max(1, model.booster.num_trees()))
    rows, expected = split.rows(TRAIN), entries_of(faq, split.rows(VALIDATION))
    features = model.features(texts_of(faq, split.rows(VALIDATION)))
    found: list[Mapping[str, float]] = []
    for number in range(1, count + 1):
        seed = int(model.settings["seed"]) + number
        other = fit(faq, split, rows, settings, seed, threads, like=model)
        found.append(validation_metrics(ranks(other.raw(features), expected)))
    return found


def spread(fits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """`<metric>_std`: each metric's standard deviation over fits; empty with fewer than two."""
    if len(fits) < 2:
        return {}
    return {f"{name}_std": stdev(fit[name] for fit in fits) for name in fits[0]}
