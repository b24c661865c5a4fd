"""Evaluation, explanation, jobs, charts and the served answer of the project."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")


from ml.measures.evaluation import read_evaluation
from ml.measures.metrics import ScoredRows
from ml.projects.filings_nlp import evaluate, metrics, train
from ml.projects.filings_nlp.corpus import SCHEMA, TEST, VALIDATION, read
from ml.projects.filings_nlp.endpoint import score
from ml.projects.filings_nlp.evaluate import shapley
from ml.projects.filings_nlp.pretraining import pretrain
from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import MOST_CHARACTERS, SECTIONS
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, PipelinePlan, SweepPlan
from ml.specs.sdk.load import load
from tests.conftest import ROOT
from tests.named import SOURCE, spans, wrong
from tests.projects.filings_nlp.small import ARGUMENTS, write_filings
from tests.release.test_commands import ml
from tests.test_readme import commands

FOLDER = SCHEMA.parents[1]


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_filings(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", name="model")
def _model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the small corpus."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        store = tmp_path_factory.mktemp("store") / "mlflow.db"
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
        train.main(["--data", str(data), "--model", str(folder), *ARGUMENTS])
    return folder


@pytest.fixture(name="served")
def _served(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The endpoint's code with that model."""
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(model))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    return model


def asked(document: object) -> dict[str, Any]:
    answer = score.run(json.dumps(document))
    assert isinstance(answer, dict), answer
    return answer


def test_what_is_measured_is_what_is_served(data: Path, served: Path) -> None:
    """One by one as in a batch; probabilities, weights and the digest are there."""
    split, classifier = read(data).splits[VALIDATION], Classifier(served)
    table = classifier.probabilities(classifier.encode(split.documents))
    for document, expected in zip(split.documents[:20], table, strict=False):
        answer = asked(dict(document))
        assert answer["predictions"] == [classifier.classes[int(expected.argmax())]]
        assert np.allclose(answer["probabilities"][0], expected, atol=1e-5)
        assert sum(answer["sections"].values()) == pytest.approx(1, abs=1e-4)
        first, *others = [of["weight"] for of in answer["sentences"]]
        assert others and first >= max(others) and answer["read"]["sentences"] > 3


@pytest.mark.parametrize(
    ("document", "sentences", "unknown"),
    [
        ({}, 0, 0.0),
        ({"notes": ""}, 0, 0.0),
        ({"notes": "Ordnungsgemäß gebucht. 我们支付了供应商。"}, 2, 1.0),
        ({"business": "We employ 12 thousand people.", "legal_proceedings": " "}, 1, 0.2),
        ({"mdna": "zz b. " * 30_000}, 256, 1.0),
    ],
)
def test_any_text_has_an_answer(
    served: Path, document: dict[str, str], sentences: int, unknown: float
) -> None:
    """That says what it is based on."""
    answer = asked(document)
    assert answer["read"]["sentences"] == sentences
    assert answer["read"]["unknown_words"] == pytest.approx(unknown, abs=0.25)
    assert sum(answer["probabilities"][0]) == pytest.approx(1)


@pytest.mark.parametrize(
    "body",
    ['{"notes": 3}', '{"note": ""}', "[]", "{", '{"mdna": "%s"}' % ("x" * (MOST_CHARACTERS + 1))],
)
def test_another_request_is_the_callers_fault(served: Path, body: str) -> None:
    """Status 400 with a sentence."""
    answer: Any = score.run(body)
    assert answer.status_code == 400 and json.loads(answer.get_data())["error"]["message"]


def test_samples_are_answered(served: Path) -> None:
    """Each line of requests.jsonl."""
    lines = (FOLDER / "endpoint" / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 5 and all(asked(json.loads(line)) for line in lines)


def test_the_sections_add_up(data: Path, served: Path) -> None:
    """To the difference from the empty document, exactly; one that is empty adds nothing."""
    split, classifier = read(data).splits[TEST], Classifier(served)
    documents = [{**of, "notes": ""} for of in split.documents[:5]]
    explained = shapley(classifier, classifier.encode(documents))
    assert explained.error < 1e-9 and explained.rows == 5
    assert explained.values.shape == (5 * len(classifier.classes), len(SECTIONS))
    assert np.allclose(explained.values[:, SECTIONS.index("notes")], 0, atol=1e-12)
    whole = classifier.probabilities(classifier.encode([*documents, {}]))
    assert np.allclose(explained.values.sum(1).reshape(5, -1), np.log(whole[:-1] / whole[-1]))


def test_an_evaluation_has_what_the_gates_ask_for(
    data: Path, model: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other companies, later years, slices, sections, requests."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    arguments = ["--data", data, "--model", model, "--evaluation", tmp_path / "evaluation"]
    evaluate.main([*map(str, arguments)])
    evaluation = read_evaluation(tmp_path / "evaluation")
    checks = {check.check: check.value for check in evaluation.leakage}
    assert checks["identifiers.shared"] == checks["time.not_later"] == 0
    assert {*evaluation.fairness} == {"sector", "size"} and evaluation.requests
    assert {of.feature for of in evaluation.contributions} == {*SECTIONS}
    assert {"log_loss", "f1", "caught"} <= {*evaluation.metrics[TEST]}
    assert evaluation.baseline[TEST]["accuracy"].value > 0.5
    assert len(evaluation.stability["log_loss"].values) == 2


def test_a_model_that_was_changed_is_not_measured(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without a manifest is none."""
    arguments = ["--data", data, "--model", tmp_path, "--evaluation", tmp_path / "evaluation"]
    with pytest.raises(SystemExit) as ended:
        evaluate.main([*map(str, arguments)])
    assert ended.value.code == 2 and "error[model-changed]" in capsys.readouterr().err


def test_what_is_caught_and_what_is_alarmed_for_nothing() -> None:
    """Any event counts as a warning of another one."""
    labels = np.array(["none", "none", "breach", "breach", "default"])
    predicted = np.array(["none", "breach", "default", "none", "default"])
    scored = ScoredRows(labels, predicted, np.zeros(5, dtype=np.int64), np.zeros(5))
    assert metrics.caught(scored, {}).sum(axis=0).tolist() == [2, 3]
    assert metrics.false_alarms(scored, {}).sum(axis=0).tolist() == [1, 2]


@pytest.mark.parametrize(
    "name", ["train", "train-two", "train-elastic", "train-gpu", "train-nodes", "evaluate"]
)
def test_jobs_call_what_is_there(name: str) -> None:
    """Every option is one of the program."""
    job = plan(load(FOLDER / "jobs" / f"{name}.yml"))
    assert isinstance(job, CommandPlan)
    module = evaluate if name == "evaluate" else train
    launcher, _, arguments = job.command.partition(f" -m {module.__name__} ")
    assert launcher.split()[0] in ("python", "torchrun")
    known = {f"--{of.replace('_', '-')}" for of in train.SETTINGS}
    known |= {
        "--data",
        "--model",
        "--checkpoints",
        "--seed",
        "--shuffled",
        "--evaluation",
        "--device",
        "--int8",
    }
    assert {word for word in arguments.split() if word.startswith("--")} <= known


def test_the_pipeline_adapts_in_two_processes() -> None:
    """What it pretrains is what it adapts, by options that the programs have."""
    steps = plan(load(FOLDER / "jobs" / "lora.yml"))
    assert isinstance(steps, PipelinePlan)
    pretrained, adapted = (steps.steps[name].plan for name in ("pretrain", "adapt"))
    assert isinstance(pretrained, CommandPlan) and isinstance(adapted, CommandPlan)
    assert (pretrained.processes, adapted.processes) == (1, 2)
    for job, module in ((pretrained, pretrain), (adapted, train)):
        known = {f"--{of.replace('_', '-')}" for of in module.SETTINGS}
        known |= {"--data", "--base", "--model", "--checkpoints", "--seed"}
        assert {word for word in job.command.split() if word.startswith("--")} <= known


def test_the_environments_have_the_locked_packages() -> None:
    """Each pin of the environments with PyTorch is that of torch.lock or torch.txt."""
    locks = "".join((ROOT / f"requirements/torch.{of}").read_text() for of in ("lock", "txt"))
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", locks, re.M))
    for name in ("torch", "torch-gpu", "acpt"):
        text = (ROOT / f"ml/environments/{name}/conda.yml").read_text()
        stated = dict(re.findall(r"- ([a-z0-9-]+)==(\S+)", text))
        stated.pop("deepspeed", None)  # not installed here
        assert "peft" in stated and {of: locked[of] for of in stated} == stated


def test_the_sweep_searches_settings() -> None:
    """By a metric that every epoch logs."""
    sweep = plan(load(FOLDER / "jobs" / "sweep.yml"))
    assert isinstance(sweep, SweepPlan) and {*sweep.search_space} <= {*train.SETTINGS}
    assert (sweep.goal, sweep.primary_metric) == ("minimize", "validation_log_loss")


def test_the_search_of_an_architecture_is_by_evolution() -> None:
    """The second kernel has an effect only with two layers."""
    sweep = plan(load(FOLDER / "jobs" / "sweep-architecture.yml"))
    assert isinstance(sweep, SweepPlan) and {*sweep.search_space} <= {*train.SETTINGS}
    assert (sweep.algorithm, sweep.hints.sampler) == ("random", "evolution")
    assert [(of.parameter, of.expression) for of in sweep.hints.conditions] == [
        ("kernel_2", "layers >= 2")
    ]


@SOURCE
def test_the_page_names_what_is_there() -> None:
    """Commands with their options, files."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [of for of in spans(page) if wrong(of, FOLDER)] == []


@SOURCE
def test_the_jobs_of_the_training_guide_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that runs one, with its overrides, as a dry run; `ml check` as it is."""
    typed = [line.split()[1:] for line in commands((ROOT / "docs/training.md").read_text())]
    planned = [[*words, "--dry-run"] for words in typed if words[0] == "run"]
    assert len(planned) == 8
    for words in [*planned, *(words for words in typed if words[0] == "check")]:
        code, out, err = ml(capsys, *dict.fromkeys(words))
        assert code == 0, out + err
    assert ["release", "propose", "filings_nlp", "--run", "latest"] in typed
