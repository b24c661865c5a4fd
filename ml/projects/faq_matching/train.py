"""Train one FAQ matcher and log its metrics on the validation questions.

python -m ml.projects.faq_matching.train --faq DIR --model OUT_DIR [--leaves 31 …]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev

from ml.measures.ranking import gain_at, ranks
from ml.projects.faq_matching.fitting import entries_of, fit, texts_of, validation_metrics
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.prepare import add_data_arguments, prepare
from ml.projects.faq_matching.settings import Hyperparameters, add_arguments, boolean
from ml.projects.faq_matching.splits import TRAIN, VALIDATION, Split, shuffled
from ml.toolkit.training.boosting import threads
from ml.toolkit.training.segments import checkpointed
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# Number of validation questions for the latency measurement, with one thread as in serving.
TIMED = 40


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, check and split the data; train, log and save the model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_data_arguments(parser)
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="the folder that a restart goes on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report-every", type=int, default=10, help="trees between two reports")
    parser.add_argument("--refits", type=int, default=0, help="other seeds, for the stability")
    parser.add_argument(
        "--shuffled",
        type=boolean,
        default=False,
        help="true: train on shuffled labels; a score above chance then shows a leak",
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        settings = Hyperparameters.from_mapping(vars(options))
    except ValueError as error:
        parser.error(str(error))
    faq, split = prepare(options.faq, options.schema, options.split_seed)
    validation = split.rows(VALIDATION)
    if options.shuffled:
        faq = shuffled(faq, split, options.seed)
    with tracking() as tracker:
        tracker.parameters(
            {**settings.as_dict(), "seed": options.seed, "shuffled_labels": options.shuffled}
        )
        with checkpointed(options.checkpoints):
            model = fit(
                faq,
                split,
                split.rows(TRAIN),
                settings,
                seed=options.seed,
                threads=threads(),
                report=lambda step, metrics: tracker.metrics(metrics, step),
                watched=validation,
                every=options.report_every,
            )
        if options.shuffled:
            model = replace(model, settings={**model.settings, "shuffled_labels": True})
        texts, expected = texts_of(faq, validation), entries_of(faq, validation)
        final_metrics = validation_metrics(ranks(model.scores(texts), expected))
        # Cold start: rank the same questions as if their entries were new, without memory.
        new = ranks(model.scores(texts, forget=expected), expected)
        other_seeds = refits(faq, split, model, options.refits, threads())
        tracker.metrics(
            {
                **final_metrics,
                "validation_new_gain_at_1": gain_at(new, 1),
                "validation_new_gain_at_3": gain_at(new, 3),
                "trees": model.booster.num_trees(),
                **model.seconds,
                "training_seconds": sum(model.seconds.values()),
                **latency(lambda text: model.scores([text], threads=1), texts[:TIMED]).as_metrics(),
                **spread([final_metrics, *other_seeds]),
            },
            settings.trees + 1,
        )
        digest = model.save(options.model)
    print(" ".join(f"{name}={value:.4f}" for name, value in final_metrics.items()))
    print(f"model {options.model} {digest}")


def refits(
    faq: Faq, split: Split, model: FaqModel, count: int, threads: int
) -> list[Mapping[str, float]]:
    """Return the validation metrics of `count` refits of `model` with the next seeds.

    Each refit has the number of trees that `model` has.
    """
    if not count:
        return []
    settings = Hyperparameters.from_mapping(model.settings)
    settings = replace(settings, trees=max(1, model.booster.num_trees()))
    rows, expected = split.rows(TRAIN), entries_of(faq, split.rows(VALIDATION))
    features = model.features(texts_of(faq, split.rows(VALIDATION)))
    results: list[Mapping[str, float]] = []
    for number in range(1, count + 1):
        seed = int(model.settings["seed"]) + number
        refit = fit(faq, split, rows, settings, seed, threads, like=model)
        results.append(validation_metrics(ranks(refit.scores_from_features(features), expected)))
    return results


def spread(fits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the standard deviation of each metric as `<metric>_std`, or {} for one fit."""
    if len(fits) < 2:
        return {}
    return {f"{name}_std": stdev(fit[name] for fit in fits) for name in fits[0]}


if __name__ == "__main__":
    main()
