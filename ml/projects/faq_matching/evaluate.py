"""Evaluate a model on held-out questions, with the reference recipe as the baseline.

python -m ml.projects.faq_matching.evaluate --faq DIR --model DIR --evaluation OUT_DIR
    [--baseline DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ml.measures.measurement import Rows, Training, evaluate
from ml.measures.schema import Metrics
from ml.projects.faq_matching import measure, recipe
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.prepare import (
    WRONG_CALL,
    add_data_arguments,
    prepare,
)
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import Split
from ml.serving.scoring.manifest import ManifestError, verify
from ml.toolkit.training.boosting import threads
from ml.toolkit.training.tracking import tracking

PRIMARY = "gain_at_1"


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify, load and score the model; compare it with the baseline; write and log the metrics."""
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
    baseline = _baseline(options.baseline, faq, split)
    with tracking() as tracker:
        settings = Hyperparameters.from_mapping(model.settings)
        gains, seconds = measure.stability(faq, split, settings, seed, options.folds, threads())
        evaluation = evaluate(
            options.evaluation,
            measure.answers(model, faq, split),
            Training(
                Rows(model.questions, ()),
                settings.as_dict(),
                gains,
                seconds,
                seed,
                over="folds",
                threads=threads(),
                feature_set_hash=str(model.settings["feature_set_hash"]),
            ),
            *measure.explained(model, faq, split),
            task="ranking",
            primary_metric=PRIMARY,
            model="faq-matching",
            digest=digest,
            unit="question",
            classes=[entry.id for entry in model.entries],
            identified_by="question",
            baseline=baseline,
            baseline_from="the reference recipe on the same split" if baseline else "",
        )
        measure.write_drift_reference(options.evaluation, digest, model, faq, split)
        recipes = evaluation.values("baseline")
        tracker.metrics(evaluation.values())
        tracker.metrics({f"recipe_{name}": value for name, value in recipes.items()})
    print(f"model {digest}")
    print(evaluation.text())


def _baseline(folder: Path | None, faq: Faq, split: Split) -> Metrics:
    """Return the recipe's metrics in `folder`, or {} if it is None.

    Exits with code 2 if the metrics are unreadable or belong to other data or another split.
    """
    if folder is None:
        return {}
    try:
        return recipe.read(folder, faq, split)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error if isinstance(error, recipe.BaselineMismatch) else f"{folder}: {error!r}"
        print(f"error[baseline-mismatch]: {reason}", file=sys.stderr)
        print(
            "  expected: the output of recipe.py for the same data and split seed", file=sys.stderr
        )
        raise SystemExit(WRONG_CALL) from None


if __name__ == "__main__":
    main()
