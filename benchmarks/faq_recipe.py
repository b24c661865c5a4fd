"""Compare FAQ matching with a reference recipe on the same questions, splits, pairs and threads.

The data sets are our own FAQ and, if ../shared/data/banking77 exists, banking77
(PolyAI-LDN/task-specific-datasets, CC BY 4.0) with its test questions as the holdout. No setting
was chosen on a test split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ml.measures.bootstrap import bounds, resampled_means
from ml.measures.ranking import estimates, ranks
from ml.measures.schema import Estimate
from ml.projects.faq_matching.fitting import entries_of, fit, texts_of
from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, SCHEMAS, Faq, read
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.pairs import sample_pairs
from ml.projects.faq_matching.recipe import MATCHES, Recipe, fit_recipe
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import NAMES, TEST_KNOWN, TEST_UNSEEN, TRAIN, split
from ml.toolkit.training.boosting import threads

ROOT = Path(__file__).parents[1]
OURS = ROOT / "ml/projects/faq_matching/data/faq"
BANKING = ROOT / "../shared/data/banking77"
REPEATS = 3
QUICK_SHARE = 4


@dataclass(frozen=True)
class Side:
    """One contestant: name, seconds for features and for fitting, ranks of the answers by split."""

    name: str
    feature_seconds: float
    fit_seconds: float
    ranks: dict[int, NDArray[np.int64]]

    @property
    def seconds(self) -> float:
        """Return the seconds for features and fitting."""
        return self.feature_seconds + self.fit_seconds


def main(quick: bool) -> float:
    """Print the comparison; return the worst ratio of our errors at rank 1 to the reference's."""
    found = [compare("our FAQ", read(OURS, DEFAULT_SCHEMA))]
    if BANKING.is_dir():
        banking = read(BANKING, SCHEMAS / "banking77.schema.yml")
        if quick:
            banking = replace(banking, questions=banking.questions[::QUICK_SHARE])
        found.append(compare("banking77" + (" (a quarter)" if quick else ""), banking))
    else:
        print("banking77 is not on this machine: only our FAQ was compared")
    return max(found)


def compare(name: str, faq: Faq) -> float:
    """Train both on a data set and print a table; return the ratio of the errors at rank 1."""
    parts = split(faq)
    rows = parts.rows(TRAIN)
    entry = entries_of(faq, rows)
    rng = np.random.default_rng([parts.seed, 17])
    pairs = sample_pairs(entry, np.flatnonzero(~parts.unseen), MATCHES, rng)
    budget = threads()
    models = [
        fit(faq, parts, rows, Hyperparameters(), threads=budget, pairs=pairs)
        for _ in range(REPEATS)
    ]
    texts, printed = texts_of(faq, rows), [entry.text for entry in faq.entries]
    recipe = fit_recipe(texts, entry, printed, pairs, budget)

    def ranked(model: FaqModel | Recipe) -> dict[int, NDArray[np.int64]]:
        return {
            number: ranks(
                model.scores(texts_of(faq, parts.rows(number))),
                entries_of(faq, parts.rows(number)),
            )
            for number in (TEST_KNOWN, TEST_UNSEEN)
        }

    ours = Side(
        "ours",
        median(model.seconds["feature_seconds"] for model in models),
        median(model.seconds["fit_seconds"] for model in models),
        ranked(models[0]),
    )
    theirs = Side("recipe", recipe.feature_seconds, recipe.fit_seconds, ranked(recipe))
    print(
        f"\n{name}: {len(faq.entries)} entries ({parts.unseen.sum()} unseen), "
        f"{len(rows)} training questions, {len(pairs[0])} pairs, {budget} threads"
    )
    return _table(ours, theirs)


def _table(ours: Side, theirs: Side) -> float:
    print(f"{'':13}{'':7}{'error@1':>9}{'gain@1':>24}{'gain@3':>24}{'mean rank':>24}")
    ratios: dict[int, float] = {}
    for number in (TEST_KNOWN, TEST_UNSEEN):
        for side in (ours, theirs):
            found = estimates(side.ranks[number])
            shown = "".join(f"{_interval(estimate):>24}" for estimate in found.values())
            error = 1 - found["gain_at_1"].value
            print(f"{NAMES[number]:13}{side.name:7}{error:9.3f}{shown}")
        both = [side.ranks[number] > 1 for side in (ours, theirs)]
        wrong = np.stack(both, axis=1).astype(np.float64)
        (mine, peer), drawn = wrong.mean(axis=0), resampled_means(wrong)
        ratios[number] = float(mine / peer)
        low, high = bounds(drawn[:, 0] / drawn[:, 1])
        print(
            f"{'':13}ratio of the errors {ratios[number]:.3f}, paired bootstrap "
            f"{low:.3f}–{high:.3f} over {len(wrong)} questions"
        )
    for side in (ours, theirs):
        print(
            f"seconds: {side.name:7} features {side.feature_seconds:.2f} + "
            f"fitting {side.fit_seconds:.2f} = {side.seconds:.2f}"
        )
    print(f"time: {ours.seconds / theirs.seconds:.3f} of the recipe's")
    return ratios[TEST_KNOWN]


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f}–{estimate.high:.3f})"
