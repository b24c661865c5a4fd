"""How the reference recipe ranks the same questions: what every model is shown beside.

python -m ml.projects.faq_matching.recipe --faq DIR --baseline OUT_DIR

It knows nothing of the models, so it is a step of its own, which a pipeline reuses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ml.projects.faq_matching.baseline import MATCHES, fit_recipe
from ml.projects.faq_matching.fitting import entries_of, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.measure import EVALUATED, Metrics
from ml.projects.faq_matching.pairs import sample_pairs
from ml.projects.faq_matching.prepare import add_data_arguments, prepare, threads
from ml.projects.faq_matching.splits import NAMES as SPLITS
from ml.projects.faq_matching.splits import TRAIN, Split
from ml.toolkit.metrics import Estimate, estimates, ranks

FILE = "baseline.json"


class OtherQuestions(ValueError):
    """A baseline that was measured on other questions is none; the message says which."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, split, train, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_data_arguments(parser)
    parser.add_argument("--baseline", type=Path, required=True, help="the folder to write")
    given = parser.parse_args(arguments)
    faq, split = prepare(given.faq, given.schema, given.split_seed)
    write(given.baseline, faq, split, metrics(faq, split, threads()))


def metrics(faq: Faq, split: Split, threads: int) -> Metrics:
    """Every metric with its interval, by split: trained on the questions that our models are."""
    rows = split.rows(TRAIN)
    entry = entries_of(faq, rows)
    rng = np.random.default_rng([split.seed, 17])
    pairs = sample_pairs(entry, np.flatnonzero(~split.unseen), MATCHES, rng)
    printed = [entry.text for entry in faq.entries]
    # A thousand small trees: two threads that sleep while they wait (OMP_WAIT_POLICY) take half as
    # long again, and make the same trees.
    recipe = fit_recipe(texts_of(faq, rows), entry, printed, pairs, threads=1)
    return {
        SPLITS[number]: estimates(
            ranks(
                recipe.scores(texts_of(faq, split.rows(number)), threads),
                entries_of(faq, split.rows(number)),
            )
        )
        for number in EVALUATED
    }


def write(folder: Path, faq: Faq, split: Split, found: Metrics) -> None:
    """baseline.json: the metrics, and of which questions they are."""
    table = {name: {key: asdict(of) for key, of in row.items()} for name, row in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**_questions(faq, split), "metrics": table}, indent=1, allow_nan=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read(folder: Path, faq: Faq, split: Split) -> Metrics:
    """The metrics that `write` wrote; OtherQuestions when they are of others than these."""
    document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    for name, value in _questions(faq, split).items():
        if document[name] != value:
            raise OtherQuestions(f"{folder / FILE} has the {name} {document[name]}, not {value}")
    return {
        name: {key: Estimate(**of) for key, of in row.items()}
        for name, row in document["metrics"].items()
    }


def _questions(faq: Faq, split: Split) -> dict[str, str | int]:
    return {"data_sha256": faq.sha256, "split_seed": split.seed}


if __name__ == "__main__":
    main()
