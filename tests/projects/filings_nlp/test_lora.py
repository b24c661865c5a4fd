"""A pretrained encoder that is adapted by LoRA: frozen, resumed, merged, served."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from ml.projects.filings_nlp import evaluate, export, train
from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, read
from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.pretraining import pretrain
from ml.projects.filings_nlp.served import GRAPH, OUTPUTS, Classifier
from ml.projects.filings_nlp.tokens import PADDING, UNKNOWN, Vocabulary, stack
from ml.projects.filings_nlp.transformer import ADAPTED, Pretrained, Transformer, write
from ml.serving.scoring.onnx import Graph
from ml.toolkit.torch import adapters, graphs
from ml.toolkit.torch.graphs import difference
from ml.toolkit.training.model_folder import seal, unseal
from tests.conftest import ROOT
from tests.projects.filings_nlp.small import SETTINGS, read_filings, unique, write_filings
from tests.toolkit.torch import ranks

SHAPE = {"width": 8, "layers": 1, "heads": 2}
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
SMALL = {**SETTINGS, "rank": 2, "epochs": 2}


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_filings(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", name="base")
def _base(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that was not trained: its weights do not matter here."""
    folder = tmp_path_factory.mktemp("base") / "base"
    vocabulary = Vocabulary.learn(read(data).splits[TRAIN].documents)
    torch.manual_seed(0)
    write(folder, Transformer(len(vocabulary), **SHAPE), vocabulary, {"shape": SHAPE})
    return folder


def command(data: Path, base: Path, folder: Path) -> list[str]:
    """One training in a process of its own."""
    places = {"--data": data, "--base": base, "--model": folder / "model"}
    places |= {"--checkpoints": folder / "checkpoints"}
    arguments = ["--epochs", "3", "--rank", "2", "--learning-rate", "0.01"]
    words = [str(of) for pair in places.items() for of in pair]
    return [sys.executable, "-u", "-m", "ml.projects.filings_nlp.train", *arguments, *words]


@pytest.mark.slow
def test_a_killed_adaptation_ends_with_the_weights_of_one_never_killed(
    data: Path, base: Path, tmp_path: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL after the first epoch; the base stays, the adapters are in the folder for peft, the
    merged model is what is served, and the evidence's figures are those of the files.
    """
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        shutil.copy(fresh_store, tmp_path / name / "mlflow.db")
    environment = {name: {**os.environ, "OMP_NUM_THREADS": "1"} for name in ("whole", "killed")}
    for name, variables in environment.items():
        variables["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path / name / 'mlflow.db'}"

    def start(name: str) -> subprocess.Popen[str]:
        words = command(data, base, tmp_path / name)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, cwd=ROOT, env=environment[name], text=True, **pipes)

    whole, killed = start("whole"), start("killed")
    checkpoints, began = tmp_path / "killed" / "checkpoints", time.monotonic()
    while not [*checkpoints.glob("step-*[0-9]/manifest.json")] and time.monotonic() < began + 200:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "model").exists()
    again = start("killed")
    said = [of.communicate(timeout=240)[0] for of in (whole, again)]
    assert (whole.returncode, again.returncode) == (0, 0), "\n".join(said)
    assert "resuming from step-" in said[1]
    models = [tmp_path / name / "model" for name in ("whole", "killed")]
    weights = [(of / export.WEIGHTS).read_bytes() for of in models]
    assert weights[0] == weights[1]

    facts, _ = unseal(models[0])
    served, adapter = load_file(models[0] / export.WEIGHTS), facts["adapter"]
    size = (models[0] / adapters.WEIGHTS).stat().st_size
    assert adapter["adapter_bytes"] == size and adapter["adapter_parameters"] == 64
    assert 0 < adapter["trained_share"] < 1
    frozen = load_file(base / "encoder.safetensors")
    changed = {
        name for name, of in frozen.items() if not torch.equal(of, served[f"encoder.{name}"])
    }
    assert changed == {f"blocks.0.{name}.weight" for name in ADAPTED}

    # peft itself puts base and adapters together, torch computes, ONNX Runtime answers alike.
    peft = adapters.load_peft()
    encoder = peft.PeftModel.from_pretrained(Pretrained.load(base).encoder(), models[0])
    classifier, split = Classifier(models[0]), read(data).splits[VALIDATION]
    model = HierarchicalAttention(
        len(classifier.vocabulary), len(classifier.classes), SHAPE["width"], encoder=encoder
    )
    others = {name: of for name, of in served.items() if not name.startswith("encoder.")}
    model.load_state_dict(others, strict=False)
    batches = [stack(classifier.encode(split.documents[:of]))._asdict() for of in (1, 20)]
    graph = export._Graph(model).eval()
    assert difference(graph, Graph(models[0] / GRAPH), batches, OUTPUTS) < 1e-5

    # Its evaluation adapts the base in the folder with other seeds.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment["whole"]["MLFLOW_TRACKING_URI"])
    places = {"--data": data, "--model": models[0], "--evaluation": tmp_path / "evaluation"}
    evaluate.main([str(of) for pair in places.items() for of in pair])
    evaluation = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())
    assert len(evaluation["stability"]["log_loss"]["values"]) == len(evaluate.REFITS)


@pytest.mark.slow
def test_a_sharded_adaptation_resumes_to_the_same_bytes_and_equals_ddp(
    data: Path, base: Path, tmp_path: Path
) -> None:
    """Two processes under FSDP: the checkpoints hold the trained parameters alone, and the base
    stays. The merged model answers as the adapters, and its graph as the model, within 1e-5.
    """
    ranks.run(adapt_by_two, 2, tmp_path / "logs", data, base, tmp_path)
    whole, resumed, ddp = (tmp_path / name / export.WEIGHTS for name in ("whole", "resumed", "ddp"))
    assert whole.read_bytes() == resumed.read_bytes()
    weights, expected = load_file(whole), load_file(ddp)
    for name, tensor in expected.items():
        # The softmax cancels a bias of all keys: its gradient is rounding, which Adam scales up.
        if not name.endswith("s.key.bias"):
            torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-5, msg=name)
    frozen = load_file(base / "encoder.safetensors")
    changed = {
        name for name, of in frozen.items() if not torch.equal(of, weights[f"encoder.{name}"])
    }
    assert changed == {f"blocks.0.{name}.weight" for name in ADAPTED}
    manifest = max((tmp_path / "resumed-checkpoints").glob("step-*/manifest.json"))
    kept = [name for name in json.loads(manifest.read_text())["weights"] if "encoder" in name]
    assert kept and all("lora_" in name for name in kept)


class Interrupted(Exception):
    """Ends a training in all processes at the same step."""


def adapt_by_two(data: Path, base: Path, folder: Path) -> None:
    """Adapt and write under FSDP, uninterrupted and resumed after an epoch, and under DDP."""
    corpus, pretrained, calls = read(data), Pretrained.load(base), count()

    def adapt(name: str, strategy: str) -> None:
        settings = {**SMALL, "batch": 64, "strategy": strategy}
        fitted = train.fit(corpus, settings, 0, folder / f"{name}-checkpoints", base=pretrained)
        if fitted is None:
            return
        documents = [pretrained.vocabulary.encode(of) for of in corpus.splits[TRAIN].documents[:8]]
        before = train.logits(fitted.model, documents)
        train.save_adapted(folder / name, fitted.model, pretrained)
        assert torch.allclose(train.logits(fitted.model, documents), before, atol=1e-5)
        save_file(fitted.model.state_dict(), folder / name / export.WEIGHTS)
        if name == "whole":
            graph, batches = export._Graph(fitted.model).eval(), [stack(documents)._asdict()]
            axes = {name: {0: f"{name}_rows"} for name in ("sentences", "places")}
            assert graphs.export(graph, folder / GRAPH, batches, OUTPUTS, axes) < 1e-5

    validate = train.validate

    def break_off(*arguments: Any) -> None:
        if next(calls):
            raise Interrupted
        validate(*arguments)

    adapt("whole", "fsdp")
    with mock.patch.object(train, "validate", break_off), suppress(Interrupted):
        adapt("resumed", "fsdp")
    adapt("resumed", "fsdp")
    adapt("ddp", "ddp")


def test_sharding_in_float16_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the data are read."""
    words = ["--data", "x", "--model", "y", "--strategy", "fsdp", "--precision", "float16"]
    with pytest.raises(SystemExit) as ended:
        train.main(words)
    assert ended.value.code == 2 and "use bfloat16" in capsys.readouterr().err


def test_an_adapted_model_has_what_a_refit_needs(data: Path, base: Path, tmp_path: Path) -> None:
    """The base beside the adapters; every file is under the manifest."""
    fitted = train.fit(
        read(data), {**SMALL, "epochs": 1}, 0, tmp_path / "kept", base=Pretrained.load(base)
    )
    assert fitted is not None
    facts = train.save_adapted(tmp_path / "model", fitted.model, Pretrained.load(base))
    assert Pretrained.load(tmp_path / "model" / train.BASE).digest == Pretrained.load(base).digest
    assert isinstance(fitted.model.encoder, Transformer)
    listed = {of.name for of in (tmp_path / "model").iterdir()}
    assert listed == {adapters.WEIGHTS, adapters.CONFIGURATION, train.BASE}
    assert facts["adapter_parameters"] == 64


def test_a_base_that_was_changed_is_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything reads it."""
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base" / "vocabulary.json").write_text("[]")
    with pytest.raises(SystemExit) as ended:
        Pretrained.load(tmp_path / "base")
    assert ended.value.code == 2 and "error[model-changed]" in capsys.readouterr().err


def test_a_model_that_is_no_base_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of another kind of model, sealed as it should be."""
    seal(tmp_path, {"hyperparameters": {}})
    with pytest.raises(SystemExit) as ended:
        Pretrained.load(tmp_path)
    assert ended.value.code == 2 and "error[no-encoder]" in capsys.readouterr().err


def test_masked_words_are_the_targets(tmp_path: Path) -> None:
    """A share of the words, at least one of each sentence, and nothing where no word is."""
    vocabulary = Vocabulary.learn(read_filings(tmp_path).splits[TRAIN].documents)
    words = unique(read(tmp_path), TRAIN, vocabulary)
    hidden = pretrain.masked({"target": words}, np.random.default_rng(0))
    targets = hidden["target"] >= 0
    assert targets.any(axis=1).all() and not targets[words == PADDING].any()
    assert 0.1 < targets.sum() / (words != PADDING).sum() < 0.2
    assert (hidden["sentences"][targets] == UNKNOWN).all()
    assert (hidden["target"][targets] == words[targets]).all()
    assert (hidden["sentences"][~targets] == words[~targets]).all()


def test_pretraining_learns_and_pads_change_nothing(
    data: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better than the frequencies of words; a sentence has the same vectors in a longer batch."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    arguments = ["--data", data, "--base", tmp_path / "base", "--epochs", "4", "--width", "16"]
    arguments += ["--batch", "32", "--learning-rate", "0.01"]
    pretrain.main([*map(str, arguments)])
    facts, _ = unseal(tmp_path / "base")
    base = Pretrained.load(tmp_path / "base")
    table = unique(read(data), VALIDATION, base.vocabulary)
    shares = np.bincount(table[table != PADDING]) / (table != PADDING).sum()
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert facts[pretrain.METRIC] < 0.97 * entropy
    encoder = base.encoder().eval()
    words = torch.from_numpy(table[:4, :6])
    longer = torch.nn.functional.pad(words, (0, 5))
    with torch.no_grad():
        assert torch.allclose(encoder(words), encoder(longer)[:, :6], atol=1e-5)
    assert json.loads((tmp_path / "base" / "settings.json").read_text())["shape"]["width"] == 16
