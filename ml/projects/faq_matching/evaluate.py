"""Measure a model on questions that training never saw, beside the reference recipe.

python -m ml.projects.faq_matching.evaluate --faq DIR --model DIR --evaluation OUT_DIR
    [--baseline DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ml.projects.faq_matching import measure, recipe
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.prepare import (
    WRONG_CALL,
    add_data_arguments,
    asset_of,
    prepare,
    threads,
)
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import TEST_KNOWN, Split
from ml.serving.scoring.manifest import ManifestError, verify
from ml.toolkit.evaluation import Evaluation, write_evaluation
from ml.toolkit.metrics import Estimate
from ml.toolkit.tracking import tracking

PRIMARY = "gain_at_1"


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify, load, score, compare, write, log."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_data_arguments(parser)
    parser.add_argument("--model", type=Path, required=True, help="the folder that train wrote")
    parser.add_argument("--evaluation", type=Path, required=True, help="the folder to write")
    parser.add_argument("--baseline", type=Path, help="the folder that recipe wrote, if it ran")
    parser.add_argument("--folds", type=int, default=3, help="refits for the stability, 2 or more")
    options = parser.parse_args(arguments)
    if options.folds < 2:
        parser.error(f"--folds is {options.folds}, expected 2 or more")
    try:
        digest = verify(options.model)
    except (ManifestError, OSError) as error:
        print(f"error[model-changed]: {error}", file=sys.stderr)
        raise SystemExit(WRONG_CALL) from None
    model = FaqModel.load(options.model)
    seed = int(model.settings["seed"])
    faq, split = prepare(options.faq, options.schema, int(model.settings["split_seed"]))
    leaked = measure.leaks(model, faq, split)
    baseline = _baseline(options.baseline, faq, split)
    with tracking() as tracker:
        predictions = measure.predict(model, faq, split)
        settings = Hyperparameters.of(model.settings)
        steady, seconds = measure.stability(faq, split, settings, seed, options.folds, threads())
        explained = measure.explained(model, faq, split.rows(TEST_KNOWN))
        rows = {"entries": len(faq.entries), "questions": len(faq.questions)}
        evaluation = Evaluation(
            project="faq_matching",
            model="faq-matching",
            primary_metric=PRIMARY,
            goal="maximize",
            unit="question",
            resampled="question",
            data={"faq": {"asset": asset_of(options.faq), "sha256": faq.sha256, "rows": rows}},
            feature_set_hash=str(model.settings["feature_set_hash"]),
            seed=seed,
            hyperparameters=settings.as_dict(),
            metrics=measure.metrics_of(predictions),
            baseline=baseline,
            slice_split=measure.SLICED,
            slices={measure.TOPIC: measure.slices_of(predictions)},
            fairness={measure.TOPIC: measure.fairness_of(predictions)},
            contributions=explained.contributions(),
            explanation=explained.explanation(),
            stability={PRIMARY: steady},
            training={"seconds": seconds, "threads": threads()},
            leakage=[leaked],
        )
        write_evaluation(options.evaluation, evaluation, predictions)
        measure.write_seen(options.evaluation, digest, model, faq, split)
        for prefix, table in (("", evaluation.metrics), ("recipe_", evaluation.baseline)):
            for name, metrics in table.items():
                values = {f"{prefix}{name}_{key}": of.value for key, of in metrics.items()}
                tracker.metrics(values)
    print(f"model {digest}")
    print(table_of(evaluation))


def _baseline(folder: Path | None, faq: Faq, split: Split) -> measure.Metrics:
    """The recipe's metrics, empty without a folder; ends the program with code 2 if refused."""
    if folder is None:
        return {}
    try:
        return recipe.read(folder, faq, split)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error if isinstance(error, recipe.OtherQuestions) else f"{folder}: {error!r}"
        print(f"error[not-its-baseline]: {reason}", file=sys.stderr)
        print("  expected: what recipe.py wrote of the same data and split seed", file=sys.stderr)
        raise SystemExit(WRONG_CALL) from None


def table_of(evaluation: Evaluation) -> str:
    """Ours beside the recipe, with intervals, for a person to read."""
    lines = [f"{'':13}{'metric':11}{'this model':>24}{'reference recipe':>24}"]
    for name, metrics in evaluation.metrics.items():
        for metric, ours in metrics.items():
            theirs = evaluation.baseline.get(name, {}).get(metric)
            reference = _shown(theirs) if theirs else ""
            first = name if metric == PRIMARY else ""
            lines.append(f"{first:13}{metric:11}{_shown(ours):>24}{reference:>24}")
    return "\n".join(lines)


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f}–{estimate.high:.3f})"


if __name__ == "__main__":
    main()
