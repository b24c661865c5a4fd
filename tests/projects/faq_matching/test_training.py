"""Training from the command line: real LightGBM, real MLflow, real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from ml.measures.ranking import gain_at, ranks
from ml.projects.faq_matching.fitting import entries_of, fit, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel, Ranker
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import TEST_KNOWN, TRAIN, VALIDATION, Split, shuffled
from ml.projects.faq_matching.train import main
from ml.serving.scoring.manifest import verify
from tests.conftest import ROOT
from tests.projects.faq_matching.conftest import SMALL

ARGUMENTS = ("--trees", "30", "--min-child-samples", "10", "--matches", "12")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty tracking store."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return uri


def train(folder: Path, schema: Path, out: Path, *more: str) -> None:
    main(["--faq", str(folder), "--schema", str(schema), "--model", str(out), *ARGUMENTS, *more])


def test_end_to_end(folder: Path, schema: Path, store: str, tmp_path: Path):
    """A model folder with a manifest; metrics whose steps rise, parameters, a finished run."""
    train(folder, schema, tmp_path / "model", "--report-every", "7")
    assert verify(tmp_path / "model").startswith("sha256:")
    client = MlflowClient(store)
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "validation_gain_at_3")
    assert [point.step for point in history] == [7, 14, 21, 28, 30, 31]
    assert run.data.params["trees"] == "30" and run.data.params["seed"] == "0"
    names = {"validation_gain_at_1", "validation_mean_rank", "validation_new_gain_at_1"}
    names |= {"predict_p50_ms", "predict_p95_ms", "predict_cpu_ms", "training_seconds"}
    assert names <= run.data.metrics.keys() and run.info.status == "FINISHED"
    assert "validation_gain_at_3_std" not in run.data.metrics  # one fit has no spread


def test_other_seeds_say_how_stable_it_is(
    folder: Path, schema: Path, store: str, tmp_path: Path, faq: Faq, parts: Split
):
    """The spread is that of this fit and of fits with the next seeds; the model stays its own."""
    train(folder, schema, tmp_path / "model", "--refits", "1", "--seed", "3")
    model = FaqModel.load(tmp_path / "model")
    rows = parts.rows(VALIDATION)
    settings = Hyperparameters.from_mapping({**model.settings, "trees": model.booster.num_trees()})
    gains = [
        gain_at(ranks(fitted.scores(texts_of(faq, rows)), entries_of(faq, rows)), 3)
        for fitted in (model, fit(faq, parts, parts.rows(TRAIN), settings, seed=4))
    ]
    (run,) = MlflowClient(store).search_runs(["0"])
    assert run.data.metrics["validation_gain_at_3_std"] == pytest.approx(stdev(gains))


def test_a_fit_like_another_is_the_fit_it_would_have_been(
    faq: Faq, parts: Split, model: FaqModel, tmp_path: Path
):
    """What another seed's model lends saves time and changes nothing."""
    fits = [fit(faq, parts, parts.rows(TRAIN), SMALL, seed=4, like=one) for one in (None, model)]
    assert len({one.save(tmp_path / str(at)) for at, one in enumerate(fits)}) == 1


def test_what_is_logged_is_what_the_model_does(
    folder: Path, schema: Path, store: str, tmp_path: Path, faq: Faq, parts: Split
):
    """The last logged gain is that of the saved model on the validation questions."""
    train(folder, schema, tmp_path / "model")
    model = FaqModel.load(tmp_path / "model")
    rows = parts.rows(VALIDATION)
    positions = ranks(model.scores(texts_of(faq, rows)), entries_of(faq, rows))
    client = MlflowClient(store)
    (run,) = client.search_runs(["0"])
    assert run.data.metrics["validation_gain_at_3"] == gain_at(positions, 3)
    history = client.get_metric_history(run.info.run_id, "validation_gain_at_3")
    best = max(point.value for point in history)
    latest = max(point.step for point in history[:-1] if point.value == best)
    assert gain_at(positions, 3) == best and model.booster.num_trees() == latest


def test_shuffled_labels_teach_nothing(
    folder: Path, schema: Path, store: str, tmp_path: Path, faq: Faq, parts: Split
):
    """The labels are the same ones, dealt out anew to the training questions and to no other; the
    model that comes of it says so, and is much worse."""
    dealt = shuffled(faq, parts, seed=0)
    rows = parts.rows(TRAIN)
    before, after = (sorted(one.questions[row].entry for row in rows) for one in (faq, dealt))
    assert before == after
    changed = [at for at, q in enumerate(faq.questions) if q != dealt.questions[at]]
    assert changed and set(changed) <= set(rows)
    for name, more in (("sound", ()), ("shuffled", ("--shuffled", "true"))):
        train(folder, schema, tmp_path / name, *more)
    assert FaqModel.load(tmp_path / "shuffled").settings["shuffled_labels"] is True
    assert "shuffled_labels" not in FaqModel.load(tmp_path / "sound").settings
    gains = {
        run.data.params["shuffled_labels"]: run.data.metrics["validation_gain_at_1"]
        for run in MlflowClient(store).search_runs(["0"])
    }
    assert gains["True"] < gains["False"] / 2


@pytest.mark.slow
def test_the_seed_decides_every_bit(folder: Path, schema: Path, store: str, tmp_path: Path):
    """The same seed: the same folder, digest and all. Another seed: other trees."""
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        train(folder, schema, tmp_path / name, "--seed", seed)
    a, b, c = (tmp_path / name for name in "abc")
    assert verify(a) == verify(b) != verify(c)
    assert (a / "model.txt").read_bytes() == (b / "model.txt").read_bytes()
    assert (a / "model.txt").read_bytes() != (c / "model.txt").read_bytes()


def test_it_learns(model: FaqModel, faq: Faq, parts: Split):
    """Held-out questions are ranked far better than by chance (1 in 24)."""
    rows = parts.rows(TEST_KNOWN)
    positions = ranks(model.scores(texts_of(faq, rows)), entries_of(faq, rows))
    assert gain_at(positions, 1) > 0.5


def test_only_training_questions_are_looked_at(faq: Faq, parts: Split, model: FaqModel):
    """Every other question's text replaced: the same trees, the same memory, to the bit."""
    from dataclasses import replace

    rows = set(parts.rows(TRAIN).tolist())
    changed = tuple(
        question if at in rows else replace(question, text="changed beyond recognition")
        for at, question in enumerate(faq.questions)
    )
    again = fit(replace(faq, questions=changed), parts, parts.rows(TRAIN), SMALL)
    assert again.booster.model_to_string() == model.booster.model_to_string()
    np.testing.assert_array_equal(again.memory.weights, model.memory.weights)
    assert again.questions == model.questions


def test_a_saved_model_scores_the_same(model: FaqModel, faq: Faq, parts: Split, tmp_path: Path):
    """Loaded from its folder: equal to the last bit."""
    model.save(tmp_path / "model")
    texts = texts_of(faq, parts.rows(TEST_KNOWN))
    loaded = FaqModel.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.scores(texts), model.scores(texts))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".txt", ".json", ".npz"}


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--objective", "lambdarank"), ("--weighted", "false")])
def test_every_objective_learns(
    folder: Path, schema: Path, store: str, tmp_path: Path, more: tuple[str, str]
):
    """Ranking, and weighing matches as much as non-matches."""
    train(folder, schema, tmp_path / "model", *more, "--hard-negatives", "3")
    (run,) = MlflowClient(store).search_runs(["0"])
    assert run.data.metrics["validation_gain_at_3"] > 0.5


@pytest.mark.parametrize(
    ("name", "value"), [("--trees", "0"), ("--weighted", "maybe"), ("--objective", "hinge")]
)
def test_wrong_hyperparameters_are_refused(
    folder: Path, schema: Path, tmp_path: Path, name: str, value: str
):
    """Exit code 2, and no folder is left."""
    with pytest.raises(SystemExit) as ended:
        train(folder, schema, tmp_path / "model", name, value)
    assert ended.value.code == 2 and not (tmp_path / "model").exists()


def test_broken_data_ends_with_its_place(
    schema: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Exit code 2 and the findings on stderr; no traceback, no run."""
    with pytest.raises(SystemExit) as ended:
        train(tmp_path, schema, tmp_path / "model")
    assert ended.value.code == 2
    assert "error[missing-file]" in capsys.readouterr().err


def test_training_imports_little(tmp_path: Path):
    """Of ours what travels alone; nothing heavy before it logs."""
    script = (
        "import sys; import ml.projects.faq_matching.train\n"
        "print(*[n for n in sys.modules if n.split('.')[0] in "
        "('ml', 'sklearn', 'pandas', 'mlflow', 'azure', 'optuna')])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    allowed = ("ml.measures", "ml.toolkit", "ml.serving", "ml.projects", "ml.features")
    others = [n for n in process.stdout.split() if n != "ml" and not n.startswith(allowed)]
    serving = [n for n in process.stdout.split() if n.startswith("ml.serving.")]
    assert others == [] and all(n.startswith("ml.serving.scoring") for n in serving)


def test_answers_are_sensible(model: FaqModel, faq: Faq, tmp_path: Path):
    """A printed question finds its own entry; shares fall, and add up to at most one."""
    model.save(tmp_path / "model")
    ranker = Ranker.load(tmp_path / "model")
    hits = [ranker.rank(entry.question)[0].entry_id == entry.id for entry in faq.entries]
    assert np.mean(hits) > 0.8
    answers = ranker.rank(faq.questions[0].text.upper(), top=5)
    scores = [answer.score for answer in answers]
    assert len({answer.entry_id for answer in answers}) == 5
    assert scores == sorted(scores, reverse=True) and 0 < sum(scores) <= 1 + 1e-9
    assert {answer.answer for answer in answers} <= {entry.answer for entry in faq.entries}
    assert len(ranker.rank("anything", top=1000)) == len(faq.entries)


@pytest.mark.parametrize("question", ["", "   ", "<p></p>"])
def test_an_empty_question_is_refused(model: FaqModel, question: str):
    """There is nothing to rank by."""
    with pytest.raises(ValueError, match="empty"):
        Ranker(model).rank(question)


@pytest.mark.parametrize("question", ["???", "x", "日本語の質問", "a" * 5000, "\x00"])
def test_any_other_question_is_answered(model: FaqModel, question: str):
    """Finite scores, whatever is typed."""
    assert all(np.isfinite(answer.score) for answer in Ranker(model).rank(question))
