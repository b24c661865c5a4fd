"""The hashed predictions, from which the metrics are recomputed: no logged number is trusted."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.toolkit.evaluation import COLUMNS, PREDICTIONS
from ml.toolkit.metrics import METRICS, mean_estimate
from policies.promotion.evidence import Estimate, Evidence

# Two sums of the same numbers in another order differ by less than this.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Predictions:
    """The rank of the right answer, by split and unit; `faults` says what makes the file unfit."""

    ranks: Mapping[str, Mapping[str, int]]
    sha256: str
    faults: tuple[str, ...]

    def outcomes(self, metric: str) -> Mapping[str, Mapping[str, float]]:
        """The metric of every unit, by split; empty when it does not follow from ranks."""
        if metric not in METRICS:
            return {}
        return {
            split: dict(zip(ranks, METRICS[metric](_array(ranks)).tolist(), strict=True))
            for split, ranks in self.ranks.items()
        }


def sha256(path: Path) -> str:
    """The file's sha256, in hex; raises OSError when there is none."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read(path: Path) -> Predictions:
    """The predictions of an evaluation; raises OSError when the file cannot be opened."""
    ranks: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = csv.DictReader(stream)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            return Predictions({}, sha256(path), (f"{PREDICTIONS} has not the columns {COLUMNS}",))
        for line, row in enumerate(rows, start=2):
            split, unit, text = row["split"], row["question_id"], row["rank"] or ""
            if not (text.isdecimal() and int(text) >= 1):
                faults.append(f"{PREDICTIONS}:{line}: rank {text!r}")
            elif int(text) == 1 and row["expected"] != row["predicted"]:
                faults.append(f"{PREDICTIONS}:{line}: rank 1, but another entry was predicted")
            elif unit in ranks.setdefault(split, {}):
                faults.append(f"{PREDICTIONS}:{line}: {unit} twice in {split}")
            else:
                ranks[split][unit] = int(text)
    return Predictions(ranks, sha256(path), tuple(faults))


def disagreements(evidence: Evidence, stated_sha256: object, found: Predictions) -> tuple[str, ...]:
    """What the evidence states and the predictions do not bear out; () when all of it follows."""
    wrong = list(found.faults)
    if found.sha256 != stated_sha256:
        wrong.append(f"{PREDICTIONS} is not the file whose sha256 the evidence states")
    if not evidence.metrics:
        wrong.append("the evidence states no metric")
    for split, metrics in evidence.metrics.items():
        ranks = found.ranks.get(split, {})
        for metric, stated in metrics.items():
            name = f"{split}.{metric}"
            if metric not in METRICS:
                wrong.append(f"{name} cannot be recomputed from ranks")
            elif not ranks:
                wrong.append(f"{name} has no predictions")
            else:
                wrong += _differing(name, stated, metric, ranks)
    return tuple(wrong)


def _differing(name: str, stated: Estimate, metric: str, ranks: Mapping[str, int]) -> list[str]:
    """The parts of one estimate, interval included, that do not follow from the ranks."""
    # In the order of the file, so that the seeded bootstrap draws what it drew before.
    again = mean_estimate(METRICS[metric](_array(ranks)))
    pairs = {
        "": (stated.value, again.value),
        ".low": (stated.low, again.low),
        ".high": (stated.high, again.high),
        ".count": (stated.count, again.count),
    }
    return [
        f"{name}{part} states {said}, recomputed {found:.6g}"
        for part, (said, found) in pairs.items()
        if said is None or not math.isclose(said, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    ]


def _array(ranks: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array(list(ranks.values()), dtype=np.int64)
