"""Trainings in segments: an interrupted one ends with the very model of one that was not."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from ml.toolkit.training import segments
from ml.toolkit.training.boosting import Watch, boost_lightgbm, boost_xgboost
from ml.toolkit.training.segments import Segments, checkpointed

# Kills at random moments in `make torture`, and in `make test`.
KILLS, FEW = 100, 3
LIGHTGBM = {
    **{"objective": "binary", "num_leaves": 7, "learning_rate": 0.1, "seed": 3},
    **{"feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1},
    **{"deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1},
    # Fewer than the rows: the bins are of a sample, which follows from the seed.
    "bin_construct_sample_cnt": 200,
}
XGBOOST = {
    **{"objective": "binary:logistic", "max_depth": 3, "learning_rate": 0.1, "seed": 3},
    **{"colsample_bytree": 0.5, "subsample": 0.7, "nthread": 1, "tree_method": "hist"},
}
GOSS = {"data_sample_strategy": "goss", "bagging_freq": 0}
ROUNDS, SIZE = 60, 10


class Interrupted(BaseException):
    """Ends a training where a kill would."""


def table(seed: int) -> tuple[Any, Any]:
    """A category among the columns, and missing values."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(800, 8))
    labels = (rows[:, 0] + np.sin(3 * rows[:, 1]) + draw.normal(size=800) > 0).astype(float)
    rows[:, 5] = draw.integers(0, 7, 800)
    rows[draw.random(rows.shape) < 0.1] = np.nan
    return rows, labels


TRAIN, VALIDATION = table(0), table(1)


def by_lightgbm(
    parameters: dict[str, Any] = LIGHTGBM,
    watched: bool = True,
    watch: Watch | None = None,
    rounds: int = ROUNDS,
) -> bytes:
    """The text of a model of LightGBM."""
    data = lightgbm.Dataset(*TRAIN, categorical_feature=[5])
    validation = data.create_valid(*VALIDATION) if watched else None
    booster = boost_lightgbm(
        parameters, data, rounds, validation, patience=20, segment=SIZE, watch=watch
    )
    text: str = booster.model_to_string()
    return text.encode()


def by_xgboost(parameters: dict[str, Any] = XGBOOST, watched: bool = True) -> bytes:
    """The JSON of a model of XGBoost."""
    import xgboost as xgb

    data, validation = xgb.DMatrix(*TRAIN), xgb.DMatrix(*VALIDATION) if watched else None
    booster = boost_xgboost(parameters, data, ROUNDS, validation, patience=20, segment=SIZE)
    return bytes(booster.save_raw("json"))


def interrupt(
    monkeypatch: pytest.MonkeyPatch, folder: Path, fit: Callable[[], object], after: int
) -> None:
    """Fit until so many segments have grown, those before an earlier interruption included."""
    grown = Segments.grown

    def stop(self: Segments, *of: Any) -> None:
        grown(self, *of)
        if len(self.growth.ends) == after:
            raise Interrupted

    with monkeypatch.context() as patch, checkpointed(folder), pytest.raises(Interrupted):
        patch.setattr(Segments, "grown", stop)
        fit()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"boosting": "dart"},
        GOSS,
        {"objective": "multiclass", "num_class": 2},
        {"objective": "regression_l1"},
        {"metric": "auc"},
        {"extra_trees": True, "bagging_seed": 5},
        {"linear_tree": True},
        # Rounds that find no split.
        {"min_child_samples": 190},
    ],
    ids=str,
)
def test_lightgbm_is_the_same_however_often_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], watched: bool
) -> None:
    """Whatever draws at random, with and without early stopping."""

    def fit() -> bytes:
        return by_lightgbm(LIGHTGBM | parameters, watched)

    expected = fit()
    for after in (1, 2):
        interrupt(monkeypatch, tmp_path, fit, after)
    with checkpointed(tmp_path):
        assert fit() == expected


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    "parameters",
    [{}, {"booster": "dart", "rate_drop": 0.2}, {"eval_metric": "auc"}, {"colsample_bynode": 0.5}],
    ids=str,
)
def test_xgboost_is_the_same_however_often_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], watched: bool
) -> None:
    """Whatever draws at random, with and without early stopping."""

    def fit() -> bytes:
        return by_xgboost(XGBOOST | parameters, watched)

    expected = fit()
    for after in (1, 2):
        interrupt(monkeypatch, tmp_path, fit, after)
    with checkpointed(tmp_path):
        assert fit() == expected


def test_a_training_of_one_segment_is_that_of_the_library() -> None:
    """The same trees, and the same decision of early stopping."""
    import xgboost as xgb

    data = lightgbm.Dataset(*TRAIN)
    stop = lightgbm.early_stopping(9, verbose=False)
    plain = lightgbm.train(
        LIGHTGBM, data, 100, valid_sets=[data.create_valid(*VALIDATION)], callbacks=[stop]
    )
    data = lightgbm.Dataset(*TRAIN)
    ours = boost_lightgbm(LIGHTGBM, data, 100, data.create_valid(*VALIDATION), patience=9)
    assert 19 < plain.best_iteration < 91
    assert ours.model_to_string() == plain.model_to_string(num_iteration=plain.best_iteration)
    sets = [xgb.DMatrix(*TRAIN), xgb.DMatrix(*VALIDATION)]
    other = xgb.train(
        XGBOOST,
        sets[0],
        100,
        evals=[(sets[1], "validation")],
        early_stopping_rounds=9,
        verbose_eval=False,
    )
    mine = boost_xgboost(XGBOOST, *(sets[0], 100, sets[1]), patience=9)
    assert mine.num_boosted_rounds() == other.best_iteration + 1 < 91
    assert mine.get_dump(with_stats=True) == other[: other.best_iteration + 1].get_dump(
        with_stats=True
    )


def test_a_watch_sees_the_same_scores_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, each number of trees once, and what was reported before is said to be."""

    def watching(seen: list[tuple[int, bytes, bool]]) -> Watch:
        return Watch(VALIDATION[0], 7, lambda *of: seen.append((of[0], of[1].tobytes(), of[2])))

    expected: list[tuple[int, bytes, bool]] = []
    by_lightgbm(watched=False, watch=watching(expected))
    assert [trees for trees, *_ in expected] == [*range(7, ROUNDS, 7), ROUNDS]
    interrupt(monkeypatch, tmp_path, lambda: by_lightgbm(watched=False, watch=watching([])), 3)
    seen: list[tuple[int, bytes, bool]] = []
    with checkpointed(tmp_path):
        by_lightgbm(watched=False, watch=watching(seen))
    assert [of[:2] for of in seen] == [of[:2] for of in expected]
    assert [trees for trees, _, again in seen if again] == [7, 14, 21, 28]
    with pytest.raises(ValueError, match="dart"):
        by_lightgbm({**LIGHTGBM, "boosting": "dart"}, watch=watching([]))


def test_what_begins_with_a_score_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init_score` of a Dataset counts in each segment."""
    first = np.full(len(TRAIN[1]), 1.5)

    def fit() -> str:
        data = lightgbm.Dataset(*TRAIN, init_score=first)
        booster = boost_lightgbm(LIGHTGBM, data, 30, segment=SIZE)
        text: str = booster.model_to_string()
        return text

    expected = fit()
    interrupt(monkeypatch, tmp_path, fit, 2)
    with checkpointed(tmp_path):
        assert fit() == expected
    booster = lightgbm.Booster(model_str=expected)
    logit = booster.predict(TRAIN[0], raw_score=True) + first
    assert abs((1 / (1 + np.exp(-logit))).mean() - TRAIN[1].mean()) < 0.02


@pytest.mark.parametrize(
    "broken",
    ["truncated", "flipped", "without-manifest", "without-model", "foreign-file"],
)
def test_a_checkpoint_that_is_not_whole_is_skipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    """The one before is taken, the skipped one named, and the model is the same."""
    expected = by_lightgbm()
    interrupt(monkeypatch, tmp_path, by_lightgbm, 3)
    newest = max(tmp_path.glob("*/round-*"))
    model = newest / "model"
    if broken == "truncated":
        os.truncate(model, model.stat().st_size // 2)
    elif broken == "flipped":
        content = bytearray(model.read_bytes())
        content[len(content) // 3] ^= 1
        model.write_bytes(content)
    elif broken == "foreign-file":
        (newest / "more.txt").touch()
    else:
        (newest / broken.removeprefix("without-").replace("manifest", "manifest.json")).unlink()
    capsys.readouterr()
    with checkpointed(tmp_path):
        assert by_lightgbm() == expected
    out, err = capsys.readouterr()
    assert f"resumed after {2 * SIZE} rounds" in out
    assert err.startswith("warning[skipped-checkpoint]: ") and newest.name in err


def test_a_training_that_ended_grows_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was killed after its last tree answers from the checkpoint; the two newest are kept."""
    with checkpointed(tmp_path):
        expected = by_lightgbm()
        names = sorted(path.name for path in tmp_path.glob("*/*"))
        assert len(names) == 2
        monkeypatch.setattr(lightgbm, "train", None)
        assert by_lightgbm() == expected


@pytest.mark.parametrize("other", ["parameters", "rows", "rounds", "version"])
def test_the_checkpoint_of_another_training_is_not_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    other: str,
) -> None:
    """Other parameters, rows, rounds, or another version of the library: it begins anew."""
    interrupt(monkeypatch, tmp_path, by_lightgbm, 2)
    capsys.readouterr()
    parameters, rounds = LIGHTGBM, ROUNDS
    if other == "parameters":
        parameters = {**LIGHTGBM, "num_leaves": 8}
    elif other == "rounds":
        rounds = ROUNDS - 1
    elif other == "version":
        monkeypatch.setattr(lightgbm, "__version__", "0")
    else:
        monkeypatch.setitem(globals(), "TRAIN", (TRAIN[0], 1 - TRAIN[1]))
    expected = by_lightgbm(parameters, rounds=rounds)
    with checkpointed(tmp_path):
        assert by_lightgbm(parameters, rounds=rounds) == expected
    assert "resumed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(4), np.zeros(4, np.float32)),
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
        (None, np.zeros(0)),
        ([1, 2], [1, 3]),
        ("auto", [0]),
        (np.array(["a", None], object), np.array(["b", None], object)),
    ],
    ids=range(7),
)
def test_what_differs_is_another_training(one: Any, other: Any) -> None:
    """Arrays by shape, type and each value; lists, texts, and what is missing."""
    pairs = [[*map(bytes, segments.identity_of({}, of))] for of in (one, one, other)]
    assert pairs[0] == pairs[1] != pairs[2]


def test_another_number_of_threads_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node that comes after an eviction may have other cores."""
    interrupt(monkeypatch, tmp_path, by_lightgbm, 2)
    with checkpointed(tmp_path):
        by_lightgbm({**LIGHTGBM, "num_threads": 2})
    assert f"resumed after {2 * SIZE} rounds" in capsys.readouterr().out


def test_without_room_for_a_checkpoint_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is told, nothing half-written stays, and the model is the same."""
    expected = by_lightgbm()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with checkpointed(tmp_path), monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert by_lightgbm() == expected
    assert "warning[no-checkpoint]" in (err := capsys.readouterr().err)
    assert "No space left on device" in err and not [*tmp_path.glob("*/*")]


def test_neighbouring_seeds_share_no_segment() -> None:
    """The seed of no segment is that of another training's; the bins have one for all."""
    seen = set()
    for seed in range(20):
        parts = Segments(1000, 100, [])
        while not parts.are_over:
            parameters = parts.seeded({"seed": seed, "data_random_seed": 1})
            assert parameters["data_random_seed"] == 1
            seen.add(parameters["seed"])
            parts.grown(b"", 0)
    assert len(seen) == 200 and max(seen) < 2**31


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds_are_refused(rounds: int) -> None:
    """There would be no model."""
    with pytest.raises(ValueError, match="expected at least 1"):
        by_lightgbm(rounds=rounds)


def test_a_forest_is_refused() -> None:
    """Its trees are averaged: segments of them cannot be added."""
    with pytest.raises(ValueError, match="the boosting type rf"):
        by_lightgbm({**LIGHTGBM, "boosting": "rf"})


def test_a_metric_that_is_no_number_ends_the_training() -> None:
    """After `patience` rounds, and a number after it counts as better."""
    growth = segments.Growth()
    assert not growth.measured(1, float("nan"), True, 3)
    assert not growth.measured(2, 0.5, True, 3) and growth.best_trees == 2
    assert [growth.measured(trees, float("nan"), True, 3) for trees in (3, 4, 5)] == [0, 0, 1]
    assert growth.best_trees == 2


KILLED = """
import sys
from pathlib import Path
from tests.toolkit.training import test_segments as of
from ml.toolkit.training.segments import checkpointed
print("begun", flush=True)
with checkpointed(Path(sys.argv[2])):
    model = getattr(of, sys.argv[1])()
Path(sys.argv[3]).write_bytes(model)
"""


@pytest.mark.torture
@pytest.mark.parametrize("library", ["by_lightgbm", "by_xgboost"])
@pytest.mark.attack("A training of boosted trees is killed at random moments")
def test_kills_at_random_moments(tmp_path: Path, library: str, torture: bool) -> None:
    """SIGKILL within a tree or a write: the model is the same, bit for bit, each time."""
    expected: bytes = globals()[library]()
    draw, kills = random.Random(library), 0
    folder, to = tmp_path / "checkpoints", tmp_path / "model"
    while kills < (KILLS if torture else FEW) // 2 + 1:
        command = [sys.executable, "-c", KILLED, library, str(folder), str(to)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process:
            assert process.stdout.readline() == "begun\n"
            time.sleep(draw.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
        kills += process.returncode == -signal.SIGKILL
        if to.exists():
            assert to.read_bytes() == expected
            shutil.rmtree(folder)
            to.unlink()
    subprocess.run([sys.executable, "-c", KILLED, library, str(folder), str(to)], check=True)
    assert to.read_bytes() == expected
