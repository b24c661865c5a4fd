"""ml.release.evidence.recomputation: metrics follow from the predictions or are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.measures.evaluation import COLUMNS, PREDICTIONS
from ml.measures.ranking import estimates
from ml.measures.schema import Estimate, Evaluation, KeptPredictions
from ml.release.evidence.recomputation import mismatches, read_predictions, sha256

HEADER = ",".join([*COLUMNS, "slice:topic"])
ROWS = [
    "q1,test,,a,a,1,0.9,x",
    "q2,test,,a,b,3,0.5,x",
    "q3,test,,a,b,4,0.1,y",
    "q1,other,,a,a,1,1,x",
]


def stated(*ranks: int) -> dict[str, Estimate]:
    """What the evaluation says of these ranks."""
    return estimates(np.array(ranks))


RANKED = Evaluation(primary_metric="gain_at_1", goal="maximize")
STATED = replace(
    RANKED,
    unit="question",
    resampled="question",
    metrics={"test": stated(1, 3, 4), "other": stated(1)},
)
GAIN = stated(1, 3, 4)["gain_at_1"]


def kept(evaluation: Evaluation, sha256: str) -> Evaluation:
    """The evaluation as it names the file with that hash."""
    return replace(evaluation, predictions=KeptPredictions(PREDICTIONS, sha256, len(ROWS)))


def write(folder: Path, rows: list[str], header: str = HEADER) -> Path:
    """A predictions.csv."""
    path = folder / PREDICTIONS
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_metrics_that_follow_agree(tmp_path: Path) -> None:
    """gain@k and mean rank are recomputed from the ranks, split by split, with their intervals."""
    found = read_predictions(write(tmp_path, ROWS), RANKED)
    assert mismatches(kept(STATED, found.sha256), found) == ()
    assert found.outcomes("gain_at_3")["test"] == {"q1": 1.0, "q2": 1.0, "q3": 0.0}
    assert found.outcomes("mean_rank")["test"] == {"q1": 1.0, "q2": 3.0, "q3": 4.0}


@pytest.mark.parametrize("value", [0.34, 0.0, math.nan, math.inf, 1.797e308])
def test_a_metric_that_differs_is_found(value: float, tmp_path: Path) -> None:
    """Another number, NaN, infinity or none at all is not what the predictions say."""
    found = read_predictions(write(tmp_path, ROWS), RANKED)
    metrics = {"test": {"gain_at_1": replace(GAIN, value=value)}}
    wrong = mismatches(kept(replace(STATED, metrics=metrics), found.sha256), found)
    assert len(wrong) == 1 and "test.gain_at_1" in wrong[0]


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"test": {"gain_at_1": replace(GAIN, count=4)}},
        {"test": {"gain_at_1": replace(GAIN, count=math.nan)}},
        {"test": {"gain_at_1": replace(GAIN, low=0.1)}},
        {"test": {"gain_at_1": replace(GAIN, high=math.nan)}},
        {"test": {"accuracy": GAIN}},
        {"elsewhere": {"gain_at_1": GAIN}},
    ],
)
def test_what_cannot_be_recomputed_is_found(
    metrics: dict[str, dict[str, Estimate]], tmp_path: Path
) -> None:
    """No metric, another count or interval, an unknown metric, a split without predictions."""
    found = read_predictions(write(tmp_path, ROWS), RANKED)
    assert mismatches(kept(replace(STATED, metrics=metrics), found.sha256), found)


def test_a_tampered_file_is_found_by_its_hash(tmp_path: Path) -> None:
    """Predictions that were made better after the fact are not the hashed ones."""
    path = write(tmp_path, ROWS)
    before = sha256(path)
    path.write_text(path.read_text().replace("q3,test,,a,b,4", "q3,test,,a,a,1"))
    wrong = mismatches(kept(STATED, before), read_predictions(path, RANKED))
    assert "sha256" in wrong[0] and len(wrong) > 1


@pytest.mark.parametrize(
    "row",
    [
        "q9,test,,a,a,0,1,x",
        "q9,test,,a,a,-1,1,x",
        "q9,test,,a,a,1.5,1,x",
        "q9,test,,a,a,inf,1,x",
        "q9,test,,a,a,,1,x",
        "q9,test",
        "q9,test,,a,a,1,1",
        "q9,test,,a,a,1,1,x,y",
        "q9,test,,a,b,1,1,x",
        "q1,test,,a,a,1,1,x",
    ],
)
def test_rows_that_cannot_be_are_faults(row: str, tmp_path: Path) -> None:
    """Impossible ranks, one that does not fit the prediction, a unit twice: each with its line."""
    found = read_predictions(write(tmp_path, [*ROWS, row]), RANKED)
    assert len(found.faults) == 1 and ":6:" in found.faults[0]
    assert mismatches(kept(STATED, found.sha256), found)


class Replaced(type(Path())):  # type: ignore[misc]
    """A path whose file is replaced by its original as soon as it is open."""

    def open(self, *arguments: Any, **named: Any) -> Any:
        stream = super().open(*arguments, **named)
        original = self.with_name("original")
        if original.exists():
            original.rename(self)
        return stream


def test_the_hash_is_that_of_the_rows_that_were_read(tmp_path: Path) -> None:
    """A file that is put back while it is read does not lend its hash to other rows."""
    original = write(tmp_path, ROWS)
    known = sha256(original)
    original.rename(tmp_path / "original")
    better = write(tmp_path, ["q1,test,,a,a,1,1,x", *ROWS[1:]])
    edited = sha256(better)
    assert read_predictions(Replaced(better), RANKED).sha256 == edited != known


def test_other_columns_are_refused(tmp_path: Path) -> None:
    """A file of another layout is not guessed at."""
    assert read_predictions(write(tmp_path, ROWS, "a,b"), RANKED).faults
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"\xff\xfe")
    assert read_predictions(empty, RANKED).faults


def test_groups_are_drawn_again_as_they_were(tmp_path: Path) -> None:
    """Intervals over entities follow from the groups in the file, and from no others."""
    rows = [
        f"q{n},test,e{n % 12:02},a,{'ab'[n % 12 > 6]},{1 + (n % 12 > 6)},1,x" for n in range(60)
    ]
    found = read_predictions(write(tmp_path, rows), RANKED)
    ranks, labels = found.answers("test").rank, found.group_labels("test")
    assert labels is not None and found.groups()["test"]["q13"] == "e01"
    by = {"entity": estimates(ranks, groups=labels), "question": estimates(ranks)}
    assert by["entity"]["gain_at_1"].low != by["question"]["gain_at_1"].low
    for resampled, wrong in (("entity", 0), ("question", 1)):
        whole = replace(
            RANKED, unit="question", resampled=resampled, metrics={"test": by["entity"]}
        )
        assert len(mismatches(kept(whole, found.sha256), found)) == wrong
    narrow = replace(RANKED, unit="question", resampled="entity", metrics={"test": by["question"]})
    assert any("low" in one for one in mismatches(kept(narrow, found.sha256), found))
    fewer = read_predictions(write(tmp_path, rows[:9]), RANKED)
    faults = mismatches(kept(replace(narrow, metrics={"test": by["entity"]}), ""), fewer)
    assert any("9 groups" in fault for fault in faults)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("q1,test,,a,a,0,0.70004,x,0.7,0.3", ""),
        ("q1,test,,c,a,0,0.0,x,0.7,0.3", ""),
        ("q1,test,,a,a,0,0.7,x,0.8,0.2", "score 0.7, where the probability of 'a' is another"),
        ("q1,test,,a,a,0,0.7,x,0.7,0.9", "sum to 1.6"),
        ("q1,test,,b,a,0,0.4,x,1.4,-0.4", "not between 0 and 1"),
        ("q1,test,,a,a,0,0.7,x,0.7,nan", "not between 0 and 1"),
        ("q1,test,,a,a,0,0.7,x,0.7,much", "probability:b 'much'"),
        ("q1,test,,a,a,0,0.3,x,0.3,0.7", "'a' was predicted, and another class is more probable"),
    ],
)
def test_the_probabilities_of_the_classes_fit_the_answer(
    tmp_path: Path, row: str, fault: str
) -> None:
    """Rounded to four digits; a label that the model does not know has none."""
    header = f"{HEADER},probability:a,probability:b"
    found = read_predictions(write(tmp_path, [row], header), Evaluation(task="multiclass"))
    if fault:
        assert len(found.faults) == 1 and fault in found.faults[0]
    else:
        assert found.faults == () and found.probabilities("test")["b"].tolist() == [0.3]


def test_only_a_multiclass_model_has_probabilities_of_classes(tmp_path: Path) -> None:
    """Behind the slices; in another task or place they are a fault."""
    row, columns = "q1,test,,0,0,0,0.3,x,0.7,0.3", "probability:0,probability:1"
    binary = read_predictions(
        write(tmp_path, [row], f"{HEADER},{columns}"), Evaluation(task="binary")
    )
    assert "where the task is binary" in binary.faults[0]
    before = f"{','.join(COLUMNS)},{columns},slice:topic"
    assert (
        "does not have the columns"
        in read_predictions(write(tmp_path, [row], before), RANKED).faults[0]
    )


def test_the_units_of_every_slice_are_known(tmp_path: Path) -> None:
    """By split and dimension; a unit without a slice is in none."""
    found = read_predictions(write(tmp_path, [*ROWS, "q4,test,,a,a,1,1,"]), RANKED)
    assert found.members()["test"] == {"topic": {"x": ("q1", "q2"), "y": ("q3",)}}
    assert found.members()["other"] == {"topic": {"x": ("q1",)}}
