"""evaluate.py: what it writes follows from predictions.csv, and test questions stay unseen."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from ml.measures.evaluation import Prediction, read_evaluation
from ml.measures.fairness import FEWEST
from ml.measures.leakage import leaks, shared
from ml.measures.measurement import predict
from ml.measures.ranking import estimates
from ml.measures.schema import stated
from ml.projects.faq_matching import measure, recipe
from ml.projects.faq_matching.evaluate import main
from ml.projects.faq_matching.features import NAMES
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.recipe import CLASSIFIER, TREES
from ml.projects.faq_matching.splits import Split
from ml.release.evidence.recomputation import (
    mismatches,
    overlap_mismatches,
    read_predictions,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(model: FaqModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    folder = tmp_path_factory.mktemp("model")
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def evaluated(
    folder: Path, schema: Path, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder that one evaluation wrote, the tracking store beside its files."""
    out = tmp_path_factory.mktemp("evaluation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
        patch.setenv("OMP_NUM_THREADS", "1")
        data = ["--faq", str(folder), "--schema", str(schema)]
        recipe.main([*data, "--baseline", str(out)])
        where = ["--baseline", str(out), "--evaluation", str(out)]
        main([*data, "--model", str(saved), *where, "--folds", "2"])
    return out


def test_every_metric_follows_from_the_predictions(evaluated: Path):
    """Recomputed from split and rank: values, intervals and counts are equal."""
    document = stated(read_evaluation(evaluated))
    with (evaluated / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for name, metrics in document["metrics"].items():
        found = np.array([int(row["rank"]) for row in rows if row["split"] == name])
        for metric, estimate in estimates(found).items():
            assert metrics[metric] == estimate.__dict__
    assert list(document["metrics"]) == ["validation", "test_known", "test_unseen"]


def test_the_release_reads_it(evaluated: Path):
    """Recomputed by the gates' own reader, all follows: slices, and what Fairlearn says of them."""
    evaluation = read_evaluation(evaluated)
    document = stated(evaluation)
    found = read_predictions(evaluated / "predictions.csv", evaluation)
    assert found.faults == () and mismatches(evaluation, found) == ()
    assert evaluation.identifiers and overlap_mismatches(evaluation, evaluated) == ()
    tests = [
        document["metrics"][name]["gain_at_1"]["count"] for name in ("test_known", "test_unseen")
    ]
    assert [check["units"] for check in document["leakage"]] == [sum(tests)]
    disparity = document["fairness"]["topic"]["gain_at_1"]
    counted = [of["gain_at_1"]["count"] for of in document["slices"]["topic"].values()]
    assert disparity["slices"] == sum(count >= FEWEST for count in counted) >= 2
    assert disparity["split"] == "test_known"


def test_what_else_it_says(evaluated: Path, faq: Faq):
    """The recipe on the same questions, slices by topic, contributions, stability, lineage."""
    document = stated(read_evaluation(evaluated))
    for name in ("test_known", "test_unseen"):
        ours, theirs = document["metrics"][name], document["baseline"][name]
        assert ours["gain_at_1"]["count"] == theirs["gain_at_1"]["count"]
        assert ours["gain_at_1"]["value"] > theirs["gain_at_1"]["value"]
    topics = document["slices"]["topic"]
    assert topics.keys() == {"topic-0", "topic-1", "topic-2"}
    counts = sum(of["gain_at_1"]["count"] for of in topics.values())
    assert counts == document["metrics"]["test_known"]["gain_at_1"]["count"]
    shares = document["contributions"]
    assert {of["feature"] for of in shares} == set(NAMES)
    assert sum(of["share"] for of in shares) == pytest.approx(1)
    assert len(document["stability"]["gain_at_1"]["values"]) == 2
    assert [(check["check"], check["value"]) for check in document["leakage"]] == [
        ("identifiers.shared", 0)
    ]


def test_the_baseline_is_the_recipes_own(evaluated: Path, faq: Faq, parts: Split):
    """Scored here again, on one thread and on two: the same figures, to the last bit."""
    document = stated(read_evaluation(evaluated))
    for threads in (1, 2):
        again = recipe.metrics(faq, parts, threads)
        for name, row in again.items():
            assert document["baseline"][name] == {key: asdict(of) for key, of in row.items()}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data_sha256": "0" * 64}, "has data_sha256 000"),
        ({"split_seed": 5}, "has split_seed 5"),
        ({"metrics": {"test_known": {"gain_at_1": {"value": 0.1}}}}, "test_known.gain_at_1.low"),
    ],
)
def test_a_baseline_of_other_questions_is_refused(
    evaluated: Path,
    folder: Path,
    schema: Path,
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, object],
    said: str,
):
    """Other data, another split or half a file: exit code 2 before anything is measured."""
    document = json.loads((evaluated / recipe.FILE).read_text())
    (tmp_path / recipe.FILE).write_text(json.dumps(document | changed))
    data = ["--faq", str(folder), "--schema", str(schema), "--model", str(saved)]
    with pytest.raises(SystemExit) as ended:
        main([*data, "--baseline", str(tmp_path), "--evaluation", str(tmp_path / "out")])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and "error[baseline-mismatch]" in message and said in message
    assert not (tmp_path / "out").exists()


def test_it_is_logged(evaluated: Path):
    """Ours and the recipe's, by split."""
    (run,) = MlflowClient(f"sqlite:///{evaluated}/mlflow.db").search_runs(["0"])
    document = stated(read_evaluation(evaluated))
    value = document["metrics"]["test_unseen"]["gain_at_3"]["value"]
    assert run.data.metrics["test_unseen_gain_at_3"] == value
    assert "recipe_test_known_mean_rank" in run.data.metrics


def test_a_changed_model_is_not_opened(
    folder: Path, schema: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """One byte of the trees: exit code 2, before LightGBM sees the file."""
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    trees = tmp_path / "model.txt"
    trees.write_bytes(trees.read_bytes().replace(b"leaf_value=0", b"leaf_value=9", 1))
    data = ["--faq", str(folder), "--schema", str(schema)]
    with pytest.raises(SystemExit) as ended:
        main([*data, "--model", str(tmp_path), "--evaluation", str(tmp_path / "out")])
    assert ended.value.code == 2 and "model.txt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_entries_that_the_model_does_not_know_rank_last(model: FaqModel, faq: Faq, parts: Split):
    """The FAQ got a new entry since: its questions are wrong, the others as before."""
    before = {row.unit: row for row in answered(model, faq, parts)}
    renamed = tuple(
        replace(entry, id="brand-new") if at == 0 else entry for at, entry in enumerate(faq.entries)
    )
    for row in answered(model, replace(faq, entries=renamed), parts):
        if row.expected == "brand-new":
            assert row.rank == len(faq.entries) + 1
        else:
            assert row == before[row.unit]


def answered(model: FaqModel, faq: Faq, parts: Split) -> list[Prediction]:
    """The predictions of every evaluated split."""
    names = [entry.id for entry in model.entries]
    return [
        row
        for name, rows in measure.answers(model, faq, parts).items()
        for row in predict("ranking", name, rows, names)
    ]


def test_questions_are_recognised_by_their_text(model: FaqModel, faq: Faq, parts: Split):
    """No test question is in the memory; under another split there are some."""

    def is_leak(split: Split) -> bool:
        tested = [
            text
            for name, rows in measure.answers(model, faq, split).items()
            for text in rows.recognised_by
            if name != "validation"
        ]
        return leaks(shared(model.questions, tested, "question"))

    assert not is_leak(parts)
    assert is_leak(replace(parts, assigned=np.roll(parts.assigned, 5)))


def test_the_recipe_is_lightgbms_classifier():
    """Trained through lightgbm.train, it predicts what LGBMClassifier does with those settings."""
    script = f"""
import lightgbm as lgb, numpy as np
rng = np.random.default_rng(0)
x = rng.random((800, 6)); y = (x[:, 0] + rng.random(800) > 1.3).astype(int)
w = (len(y) / (2 * np.bincount(y)))[y]
one = lgb.LGBMClassifier(n_estimators=40, verbose=-1, n_jobs=1).fit(x, y, sample_weight=w)
two = lgb.train({{**{CLASSIFIER!r}, "num_threads": 1}}, lgb.Dataset(x, y, weight=w), 40)
assert np.array_equal(one.predict_proba(x)[:, 1], two.predict(x))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert TREES == 1000
