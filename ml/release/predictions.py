"""The hashed predictions, from which the metrics are recomputed: no logged number is trusted."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from policies.promotion.evidence import Evidence

FILE = "predictions.csv"
COLUMNS = ("question_id", "split", "slice", "expected", "predicted", "rank", "score")
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
        return {
            split: {unit: of_rank(metric, rank) for unit, rank in ranks.items()}
            for split, ranks in self.ranks.items()
            if known(metric)
        }


def known(metric: str) -> bool:
    """Whether the metric is one that follows from ranks: mean_rank or gain_at_K."""
    name, _, k = metric.rpartition("_")
    return metric == "mean_rank" or (name == "gain_at" and k.isdecimal() and int(k) > 0)


def of_rank(metric: str, rank: int) -> float:
    """One unit's share in the metric: the rank itself, or 1 when it is at most K."""
    if metric == "mean_rank":
        return float(rank)
    return float(rank <= int(metric.rpartition("_")[2]))


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
            return Predictions({}, sha256(path), (f"{FILE} has not the columns {COLUMNS}",))
        for line, row in enumerate(rows, start=2):
            split, unit, text = row["split"], row["question_id"], row["rank"] or ""
            if not (text.isdecimal() and int(text) >= 1):
                faults.append(f"{FILE}:{line}: rank {text!r}")
            elif (int(text) == 1) != (row["expected"] == row["predicted"]):
                faults.append(f"{FILE}:{line}: rank {text} does not fit what was predicted")
            elif unit in ranks.setdefault(split, {}):
                faults.append(f"{FILE}:{line}: {unit} twice in {split}")
            else:
                ranks[split][unit] = int(text)
    return Predictions(ranks, sha256(path), tuple(faults))


def disagreements(evidence: Evidence, stated_sha256: object, found: Predictions) -> tuple[str, ...]:
    """What the evidence states and the predictions do not bear out; () when all of it follows."""
    wrong = list(found.faults)
    if found.sha256 != stated_sha256:
        wrong.append(f"{FILE} is not the file whose sha256 the evidence states")
    if not evidence.metrics:
        wrong.append("the evidence states no metric")
    for split, metrics in evidence.metrics.items():
        ranks = found.ranks.get(split, {})
        for metric, stated in metrics.items():
            name = f"{split}.{metric}"
            if not known(metric):
                wrong.append(f"{name} cannot be recomputed from ranks")
                continue
            if not ranks:
                wrong.append(f"{name} has no predictions")
                continue
            mean = math.fsum(of_rank(metric, rank) for rank in ranks.values()) / len(ranks)
            value = math.nan if stated.value is None else stated.value
            if not math.isclose(value, mean, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                wrong.append(f"{name} states {stated.value}, recomputed {mean:.6g}")
            if stated.count != len(ranks):
                wrong.append(f"{name} counts {stated.count} units, there are {len(ranks)}")
    return tuple(wrong)
