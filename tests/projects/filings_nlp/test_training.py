"""The model and its training: alone as in a batch, killed as never killed, exported as it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file

from ml.measures.measurement import metric_values
from ml.projects.filings_nlp import export, train
from ml.projects.filings_nlp.corpus import TEST, TRAIN, VALIDATION, Corpus, Split, read, rows
from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import GRAPH, INT8, OUTPUTS, Classifier
from ml.projects.filings_nlp.tokens import SECTIONS, Vocabulary, stack
from ml.serving.scoring.manifest import ManifestError
from ml.serving.scoring.onnx import Graph
from ml.toolkit.torch.graphs import difference
from ml.toolkit.torch.health import Diverged
from ml.toolkit.training.model_folder import unseal
from tests.conftest import ROOT
from tests.projects.filings_nlp.small import ARGUMENTS, SETTINGS, write_filings

BANKING = ROOT.parent / "shared" / "data" / "banking77" / "train.csv"


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_filings(tmp_path_factory.mktemp("data"))


def model_of(
    words: int = 50, classes: int = 4, kernels: tuple[int, ...] = (3,)
) -> HierarchicalAttention:
    torch.manual_seed(0)
    model = HierarchicalAttention(words, classes, 8, kernels=kernels)
    model.eval()
    return model


@pytest.mark.parametrize("kernels", [(3,), (3, 5)])
def test_a_document_alone_has_the_answer_that_it_has_in_a_batch(
    data: Path, kernels: tuple[int, ...]
) -> None:
    """However far longer ones fill it up; weights of a level sum to 1, or 0 where nothing is."""
    documents = read(data).splits[TEST].documents[:12]
    vocabulary = Vocabulary.learn(documents)
    encoded = [vocabulary.encode(of) for of in documents] + [vocabulary.encode({})]
    model = model_of(len(vocabulary), kernels=kernels)
    with torch.no_grad():
        together = model(*map(torch.from_numpy, stack(encoded)))
        for at, document in enumerate(encoded):
            alone = model(*map(torch.from_numpy, stack([document])))
            assert torch.allclose(alone.logits[0], together.logits[at], atol=1e-5)
    assert torch.allclose(together.sections[:-1].sum(1), torch.ones(12), atol=1e-5)
    assert together.sections[-1].sum() == 0 and together.sentences[-1].sum() == 0


def test_what_shares_add_is_there_outside_of_training_alone() -> None:
    """Balanced drawing is taken back where the model answers."""
    model = model_of()
    batch = stack([[[(3, 4)]] * len(SECTIONS)])
    with torch.no_grad():
        before = model(*map(torch.from_numpy, batch)).logits
        model.prior += torch.tensor([1.0, 0.0, 0.0, -1.0])
        after = model(*map(torch.from_numpy, batch)).logits
        assert torch.allclose(after - before, model.prior.expand(1, -1), atol=1e-6)
        model.train()
        model.encoder.dropout.p = 0.0
        assert not torch.allclose(model(*map(torch.from_numpy, batch)).logits, after, atol=0.5)


def test_the_graph_answers_as_the_model(tmp_path: Path) -> None:
    """Within the stated tolerance; a model of the weights in the folder does too."""
    vocabulary = Vocabulary(tuple(map(str, range(50))))
    examples = [stack([[[(3, 4), (5,)]] * 5] * 3), stack([[[]] * 5])]
    facts = export.write(tmp_path, model_of(), vocabulary, "abcd", examples)
    assert facts["largest_difference"] <= facts["tolerance"] == 1e-5
    again = export._Graph(HierarchicalAttention(50, 4, 8)).eval()
    again.model.load_state_dict({**load_file(tmp_path / export.WEIGHTS)})
    batches = [of._asdict() for of in examples]
    assert difference(again, Graph(tmp_path / GRAPH), batches, OUTPUTS) <= 1e-5


@pytest.mark.slow
def test_weight_sharing_chooses_the_architecture_that_is_trained(
    data: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run and the model state it; its weights are those of a training of it alone. A restart
    finds the search in the checkpoints.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")

    def trained(name: str, *words: str) -> dict[str, Any]:
        places = ["--data", str(data), "--model", str(tmp_path / name)]
        train.main([*places, *ARGUMENTS, "--epochs", "1", *words])
        settings: dict[str, Any] = unseal(tmp_path / name)[0]["hyperparameters"]
        return settings

    search = ["--search-epochs", "1", "--checkpoints", str(tmp_path / "checkpoints")]
    found = trained("found", *search)
    assert found["kernel_1"] in (1, 3, 5) and found["layers"] in (1, 2)
    client = MlflowClient()
    (run,) = client.search_runs([of.experiment_id for of in client.search_experiments()])
    assert run.data.params["kernel_1"] == str(found["kernel_1"])
    assert run.data.metrics["search_kernel_1_weight"] > 1 / 3
    words = [f"--{of.replace('_', '-')}={found[of]}" for of in ("layers", "kernel_1", "kernel_2")]
    trained("alone", *words)
    with mock.patch("ml.toolkit.torch.search.step_choices", side_effect=AssertionError):
        assert trained("again", *search) == found
    weights = [(tmp_path / of / export.WEIGHTS).read_bytes() for of in ("found", "alone", "again")]
    assert weights == weights[:1] * 3


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run(data: Path, folder: Path, store: Path, ranks: int = 2) -> list[subprocess.Popen[str]]:
    """The processes of one training, which log to a copy of the store."""
    folder.mkdir(exist_ok=True)
    shutil.copy(store, folder / "mlflow.db")
    arguments = [*ARGUMENTS, "--epochs", "3", "--micro-batches", "2"]
    places = {"--data": data, "--model": folder / "model", "--checkpoints": folder / "checkpoints"}
    command = [sys.executable, "-u", "-m", "ml.projects.filings_nlp.train", *arguments]
    command += [str(of) for pair in places.items() for of in pair]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    environment |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> str:
    """What the first one said; all of them ended well."""
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
    return said[0]


@pytest.mark.slow
def test_two_killed_processes_end_with_the_weights_of_two_never_killed(
    data: Path, tmp_path: Path, fresh_store: Path
) -> None:
    """SIGKILL after the first epoch; the next start goes on from its checkpoint, and the model's
    file is the same to the byte.
    """
    ended(run(data, tmp_path / "whole", fresh_store))
    killed = run(data, tmp_path / "killed", fresh_store)
    checkpoints = tmp_path / "killed" / "checkpoints"
    began = time.monotonic()
    while not [*checkpoints.glob("step-*[0-9]/manifest.json")] and time.monotonic() < began + 120:
        time.sleep(0.01)
    for process in killed:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / "killed" / "model").exists()
    assert "resuming from step-" in ended(run(data, tmp_path / "killed", fresh_store))
    weights = [
        (tmp_path / of / "model" / export.WEIGHTS).read_bytes() for of in ("whole", "killed")
    ]
    assert weights[0] == weights[1]


def test_a_training_leaves_what_serves(
    data: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file sealed, and how it was made; a flipped bit is found before a loader sees it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    folder = tmp_path / "model"
    train.main(["--data", str(data), "--model", str(folder), *ARGUMENTS, "--sampling", "balanced"])
    facts, digest = unseal(folder)
    assert facts["hyperparameters"]["sampling"] == "balanced" and digest.startswith("sha256:")
    assert facts["onnx"]["largest_difference"] <= facts["onnx"]["tolerance"]
    split = read(data).splits[VALIDATION]
    classifier = Classifier(folder)
    scores = classifier.probabilities(classifier.encode(split.documents))
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-12) and (scores > 0).all()
    # Drawn equally often, and answered as often as they are.
    shares = [split.labels.count(name) / len(split) for name in classifier.classes]
    assert np.abs(scores.mean(axis=0) - shares).max() < 0.2
    content = bytearray((folder / GRAPH).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / GRAPH).write_bytes(content)
    with pytest.raises(ManifestError, match=GRAPH):
        unseal(folder)


def test_an_int8_model_is_measured_as_it_is_served(
    data: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file of a graph, a smaller one; a document has one answer, alone and among others; what
    int8 costs in log loss is logged.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    folder = tmp_path / "model"
    arguments = ["--epochs", "1", "--width", "32", "--int8", "true"]
    train.main(["--data", str(data), "--model", str(folder), *arguments])
    facts, _ = unseal(folder)
    assert facts["onnx"]["int8_bytes"] < 0.7 * facts["onnx"]["float_bytes"]
    assert [of.name for of in folder.glob("*.onnx")] == [INT8]
    classifier, split = Classifier(folder), read(data).splits[VALIDATION]
    together = classifier.probabilities(classifier.encode(split.documents[:6]))
    alone = [classifier.read(of).probabilities for of in split.documents[:6]]
    assert np.array_equal(together, np.stack(alone))
    [run] = MlflowClient().search_runs(["0"])
    assert abs(run.data.metrics["int8_log_loss"]) < 0.5


def test_early_stopping_keeps_the_best_epoch(data: Path, tmp_path: Path) -> None:
    """A rate that is far too high gets no better: the training ends, with the best weights."""
    losses: list[float] = []
    settings = {**SETTINGS, "epochs": 6, "patience": 1, "learning_rate": 0.5, "warm_up": 0.0}
    fitted = train.fit(
        read(data), settings, 0, tmp_path, lambda of, _: losses.append(of["validation_log_loss"])
    )
    assert fitted is not None and len(losses) < 6
    assert fitted.loss == min(losses)


def test_a_training_without_numbers_ends_with_a_sentence(data: Path, tmp_path: Path) -> None:
    """A rate with which weights leave what floats can hold."""
    settings = {**SETTINGS, "learning_rate": 1e30, "warm_up": 0.0}
    with pytest.raises(Diverged, match=r"error\[diverged\]: the loss is nan since step"):
        train.fit(read(data), settings, 0, tmp_path)


def test_shuffled_events_are_those_of_training_alone(data: Path) -> None:
    """The same counts in another order; what is measured on stays."""
    corpus = read(data)
    shuffled = corpus.shuffled(0)
    before, after = (of.splits[TRAIN].labels for of in (corpus, shuffled))
    assert before != after and sorted(before) == sorted(after)
    assert corpus.splits[TEST].labels == shuffled.splits[TEST].labels


@pytest.mark.skipif(not BANKING.exists(), reason="no copy of banking77 beside the repository")
def test_questions_of_banks_are_told_apart(tmp_path: Path) -> None:
    """Real texts of one sentence: ten intents of banking77, far better than by chance."""
    import csv

    with BANKING.open(encoding="utf-8", newline="") as stream:
        table = [(row["text"], row["category"]) for row in csv.DictReader(stream)]
    chosen = sorted({category for _, category in table})[:10]
    table = [row for row in table if row[1] in chosen]
    splits = {}
    for number, name in enumerate((TRAIN, VALIDATION, TEST)):
        inside = [row for at, row in enumerate(table) if min(at % 5, 2) == 2 - number]
        texts = [{**dict.fromkeys(SECTIONS, ""), "business": text} for text, _ in inside]
        ids = [f"{name}{at}" for at in range(len(inside))]
        splits[name] = Split(ids, ids, ids, {}, texts, [category for _, category in inside])
    corpus = Corpus(splits, tuple(chosen))
    fitted = train.fit(corpus, {**SETTINGS, "epochs": 8, "width": 32}, 0, tmp_path / "checkpoints")
    assert fitted is not None
    some = [stack([fitted.vocabulary.encode(of) for of in splits[TEST].documents[:3]])]
    export.write(tmp_path / "model", fitted.model, fitted.vocabulary, corpus.classes, some)
    classifier = Classifier(tmp_path / "model")
    scores = classifier.probabilities(classifier.encode(splits[TEST].documents))
    values = metric_values("multiclass", rows(splits[TEST], scores), corpus.classes)
    assert values["accuracy"] > 0.6


def test_the_learning_rate_goes_up_and_down() -> None:
    """In a line to the highest, by half a cosine to 0."""
    rates = [train.cosine(step, 100, 0.1) for step in range(101)]
    assert rates[0] < rates[5] < max(rates) and rates[-1] == 0 and max(rates) > 0.9
    assert json.dumps(rates)
