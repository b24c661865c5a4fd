"""Folds of a small table: each row of training is tested once, by what did not see it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ml.measures.evaluation import read_evaluation
from ml.measures.leakage import SHARED
from ml.measures.measurement import VALIDATION, Features, Training, evaluate
from ml.measures.schema import Evaluation
from ml.release.evidence.recomputation import (
    mismatches,
    overlap_mismatches,
    read_predictions,
)
from ml.toolkit.data.datasets import TEST, TRAIN, Dataset
from tests.toolkit.data.test_datasets import LINES, read


@pytest.mark.parametrize("count", [150, 151, 300])
@pytest.mark.parametrize("group", [None, "age"])
def test_each_row_is_answered_once_by_what_did_not_see_it(
    tmp_path: Path, count: int, group: str | None
) -> None:
    """A quarter is validation; of a group all rows are in one fold."""
    dataset = read(tmp_path, LINES[: count + 1], folds=5, group=group, slices=["place"])
    assert dataset.test is dataset.train and len(dataset.splits[VALIDATION]) >= 0.2 * count
    assert len(dataset.splits[VALIDATION]) + len(dataset.test) == count
    assert not {*dataset.splits[VALIDATION].ids} & {*dataset.test.ids}
    answered: list[int] = []
    for rows, fold in dataset.by_fold():
        assert [dataset.train.ids[row] for row in rows] == [*fold.test.ids]
        assert not {*fold.test.ids} & {*fold.train.ids}
        assert not {*fold.test.groups} & {*fold.train.groups}
        assert fold.splits[VALIDATION] is dataset.splits[VALIDATION]
        assert len(fold.train) + len(fold.test) == len(dataset.train)
        answered += rows.tolist()
    assert sorted(answered) == [*range(len(dataset.test))]
    if group is None and count == 150:
        assert len(dataset.splits[VALIDATION]) == 38 and len(dataset.test) == 112


def test_a_row_stays_in_its_fold(tmp_path: Path) -> None:
    """When rows are added."""
    before = read(tmp_path, LINES[:300], folds=5).train
    after = read(tmp_path, LINES[:400], folds=5).train
    folds = dict(zip(after.ids, after.folds, strict=True))
    assert {
        folds.get(name, of) - of for name, of in zip(before.ids, before.folds, strict=True)
    } == {0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"folds": 1}, "`folds` is 1, expected a whole number from 2 to 20"),
        ({"folds": 21}, "`folds` is 21"),
        ({"folds": True}, "`folds` is True"),
        ({"folds": "5"}, "`folds` is '5'"),
        ({"folds": 5, "time": "since"}, "no `folds` with `time`"),
    ],
)
def test_folds_that_are_none(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    """Are refused with the schema's other faults."""
    with pytest.raises(SystemExit, match="wrong-schema") as ended:
        read(tmp_path, **changed)
    assert message in str(ended.value)


def test_a_label_that_one_fold_has_alone(tmp_path: Path) -> None:
    """No model of the others could give it."""
    number = int(read(tmp_path, LINES[:160], folds=5).train.ids[0][1:]) + 1
    lines = [line.replace(",yes", ",no") for line in LINES[:160]]
    lines[number] = lines[number].replace(",no", ",yes")
    dataset = read(tmp_path, lines, folds=5)
    with pytest.raises(SystemExit, match=r"invalid-fold.*every row with the target 1"):
        list(dataset.by_fold())


def measured(folder: Path) -> tuple[Evaluation, Dataset]:
    """The evaluation of answers out of fold."""
    dataset = read(folder, LINES[:301], folds=5)
    draw = np.random.default_rng(0)
    splits = {
        name: dataset.scored(name, draw.random(len(dataset.splits[name])))
        for name in (VALIDATION, TEST)
    }
    training = Training(dataset.scored(TRAIN), {"a": 1}, [0.5, 0.6], 0.1)
    table = draw.random((len(dataset.test), 1))
    told = {"task": "binary", "primary_metric": "auc", "model": "m", "digest": "sha256:ab"}
    evaluate(folder / "out", splits, training, Features(("a",), table), "none", **told)
    return read_evaluation(folder / "out"), dataset


def test_the_evidence_of_folds(tmp_path: Path) -> None:
    """Each fold is compared with what its model was trained on, and all can be computed again."""
    evaluation, dataset = measured(tmp_path)
    assert evaluation.out_of_fold == {"test": 5}
    shared = [check for check in evaluation.leakage if check.check == SHARED]
    assert [check.of for check in shared] == [f"id, fold {number}" for number in range(1, 6)]
    assert all(check.value == 0 for check in shared)
    assert sum(check.units or 0 for check in shared) == len(dataset.test)
    rows = read_predictions(tmp_path / "out/predictions.csv", evaluation)
    assert mismatches(evaluation, rows) == ()
    assert overlap_mismatches(evaluation, tmp_path / "out") == ()


@pytest.mark.attack("An evaluation out of fold counts one fold's rows for another's")
def test_a_fold_that_is_counted_twice(tmp_path: Path) -> None:
    """The identifiers of the folds are of different rows."""
    evaluation, _ = measured(tmp_path)
    path = tmp_path / "out/identifiers.csv"
    lines = path.read_text().splitlines()
    first = [line for line in lines if line.startswith('"id, fold 1",test')]
    others = [line for line in lines if not line.startswith('"id, fold 2",test')]
    path.write_text("\n".join([*others, *(of.replace("fold 1", "fold 2") for of in first)]) + "\n")
    changed = replace(evaluation, identifiers=hashlib.sha256(path.read_bytes()).hexdigest())
    assert any("two folds" in of for of in overlap_mismatches(changed, tmp_path / "out"))
