"""Launches of the real inference server with scoring scripts for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil

from ml.backends.endpoints import ModelDeployment
from ml.backends.local.serving import processes
from ml.core import trees
from ml.serving.scoring.manifest import folder_digest, write_manifest
from tests.shared import bring

ECHO = """
from ml.serving.scoring.messages import BadRequest, Integer, Text, parse, refusal, reply
from ml.serving.scoring.model import open_model


def init():
    global model
    model = open_model()


def run(body):
    try:
        asked = parse(body, {"question": Text(20), "top": Integer(1, 5, default=3)})
    except BadRequest as error:
        return refusal(error)
    if asked.texts["question"] == "break":
        raise RuntimeError("broken on purpose")
    return reply(model, {"echo": asked.texts["question"], "top": asked.integers["top"]})
"""

CRASH = """
def init():
    raise RuntimeError("no weights, no answer")


def run(body):
    return body
"""

HANG = """
import threading


def init():
    threading.Event().wait()


def run(body):
    return body
"""


def deployment(
    folder: Path, script: str = ECHO, endpoint: str = "echo", version: str = "1"
) -> ModelDeployment:
    """A deployment of the script with a model folder of its own."""
    code = folder / f"code{version}"
    model = folder / f"model{version}"
    for path in (code, model):
        path.mkdir(parents=True, exist_ok=True)
    (code / "score.py").write_text(script)
    bring(code, "ml/serving/scoring")
    (model / "model.txt").write_text(f"tree\nversion={version}\n")
    write_manifest(model)
    content = trees.digest(trees.files(code)).removeprefix(trees.DIGEST_PREFIX)
    deployment = ModelDeployment(
        endpoint=endpoint,
        model=endpoint,
        version=version,
        digest=folder_digest(model),
        code=code,
        scoring_script="score.py",
        model_folder=model,
        environment_variables={},
    )
    return replace(deployment, deployment_digest=deployment.digest_with(content))


def process_of(slot: Path) -> psutil.Process | None:
    """The oldest living process of the slot, or None."""
    alive = [process for process in psutil.process_iter() if processes.belongs(process, slot)]
    return min(alive, key=lambda process: process.pid, default=None)
