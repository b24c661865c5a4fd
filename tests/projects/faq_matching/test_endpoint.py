"""The FAQ project's score.py in the real inference server, with a model of its own training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml.backends.endpoints import ModelDeployment, Server
from ml.backends.local.serving import processes, server
from ml.release.serving import read
from ml.serving.scoring.manifest import folder_digest
from tests.conftest import ROOT

PROJECT = ROOT / "ml" / "projects" / "faq_matching"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained with the defaults on the project's data."""
    folder = tmp_path_factory.mktemp("model")
    words = ["--faq", str(PROJECT / "data" / "faq"), "--model", str(folder)]
    module = ["-m", "ml.projects.faq_matching.train"]
    store = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    subprocess.run(
        [sys.executable, *module, *words],
        cwd=ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model behind the project's own deployment."""
    slot = tmp_path_factory.mktemp("slot")
    spec = read(PROJECT / "endpoint")
    deployment = ModelDeployment(
        endpoint=spec.endpoint_name,
        model=spec.endpoint_name,
        version="1",
        digest=folder_digest(model),
        code=spec.code,
        scoring_script=spec.scoring_script,
        model_folder=model,
        environment_variables=spec.environment_variables,
    )
    yield server.start(slot, deployment)
    processes.stop(slot)


def test_the_served_answers_are_the_rankers(served: Server, model: Path) -> None:
    """Three by default, best first, the same as in this process, with the model's digest."""
    from ml.projects.faq_matching.model import Ranker

    question = "how do I use spot nodes?"
    answer = server.score(served.port, {"question": question})
    assert answer.status == 200 and isinstance(answer.body, dict)
    assert answer.body["model_digest"] == folder_digest(model)
    answers = answer.body["answers"]
    expected = Ranker.load(model).rank(question, top=3)
    assert [entry["rank"] for entry in answers] == [1, 2, 3]
    for ours, theirs in zip(answers, expected, strict=True):
        assert (ours["entry_id"], ours["question"], ours["answer"]) == (
            theirs.entry_id,
            theirs.question,
            theirs.answer,
        )
        assert ours["score"] == pytest.approx(theirs.score)


def test_sample_requests_are_answered(served: Server) -> None:
    """Each line of requests.jsonl, with as many answers as it asks for."""
    from ml.release.declaration.projects import Project

    for sample in Project("faq_matching", PROJECT).samples():
        answer = server.score(served.port, sample)
        assert answer.status == 200 and isinstance(answer.body, dict)
        assert len(answer.body["answers"]) == sample.get("top", 3)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"question": ""},
        {"question": "<p></p>"},
        {"question": 3},
        {"question": "x" * 2001},
        {"question": "how?", "top": 0},
        {"question": "how?", "data": [[1]]},
    ],
)
def test_bad_requests_are_the_callers(served: Server, body: dict[str, object]) -> None:
    """400 with a sentence, and the server goes on."""
    answer = server.score(served.port, body)
    assert answer.status == 400 and isinstance(answer.body, dict)
    assert answer.body["error"]["message"]
    assert server.score(served.port, {"question": "how?"}).status == 200
