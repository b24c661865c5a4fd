"""A tiny project in a repository of its own: real jobs, real models, a real scoring script.

`skill` is the share of questions that a model gets right, the same questions for the same skill, so
that a better model is better on every resample. Its model is a weight: a library that takes longer
to import than all the rest would be imported by each of a thousand jobs and servers.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.endpoints import ModelDeployment
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.backends.runs import Run
from ml.release.declaration import desired_state
from ml.serving.scoring.manifest import write_manifest
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.local import BACKEND
from tests.shared import ON_THE_NODE, bring

QUESTIONS = 400

_TRAIN = """
import argparse, json, pathlib
from ml.serving.scoring.manifest import write_manifest

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--skill", type=float)
parser.add_argument("--model", type=pathlib.Path)
parser.add_argument("--log", action="store_true")
asked = parser.parse_args()
if asked.log:
    import mlflow

    mlflow.log_metric("skill", asked.skill)
(asked.model / "model.txt").write_text(f"{asked.skill / 10}\\n")
(asked.model / "skill.json").write_text(json.dumps({"skill": asked.skill}))
write_manifest(asked.model)
"""

_EVALUATE = """
import argparse, csv, json, pathlib
import numpy
from ml.serving.scoring.manifest import verify
from ml.measures.evaluation import Prediction, write_evaluation
from ml.measures.leakage import shared
from ml.measures.schema import (
    Contribution, Disparity, Evaluation, Explanation, Fit, Stability
)
from ml.measures.ranking import estimates
from ml.measures.evaluation import Request

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--model", type=pathlib.Path)
parser.add_argument("--evaluation", type=pathlib.Path)
asked = parser.parse_args()
verify(asked.model)
skill = json.loads((asked.model / "skill.json").read_text())["skill"]
questions = list(csv.DictReader((asked.data / "questions.csv").open()))


SPLITS = ("test", "validation")


def ranks(skill):
    return [1 if float(row["difficulty"]) < skill else 2 for row in questions]


sides = numpy.array(["left" if int(row["id"][1:]) % 2 else "right" for row in questions])
found = {side: estimates(numpy.array(ranks(skill))[sides == side]) for side in ("left", "right")}
low, high = sorted(found, key=lambda side: found[side]["gain_at_1"].value)
apart = found[high]["gain_at_1"].value - found[low]["gain_at_1"].value
write_evaluation(
    asked.evaluation,
    Evaluation(
        model="tiny", task="ranking", primary_metric="gain_at_1", goal="maximize",
        unit="question", resampled="question",
        feature_set_hash="f" * 64, seed=0, hyperparameters={"skill": skill},
        metrics={split: estimates(numpy.array(ranks(skill))) for split in SPLITS},
        baseline={"test": estimates(numpy.array(ranks(0.5)))},
        slice_split="test",
        slices={"side": found},
        fairness={"side": {"gain_at_1": Disparity("test", apart, low, high, 2)}},
        contributions=(Contribution("words", 0.75), Contribution("length", 0.25)),
        explanation=Explanation("TreeSHAP", len(questions), 0.0),
        stability={"gain_at_1": Stability("seeds", (skill, skill), 0.0)},
        training=Fit(1.0, 1),
        leakage=(
            shared([str(row) for row in range(200)], [row["id"] for row in questions], "id"),
        ),
    ),
    [
        Prediction(
            # Other rows by name: a test that shares rows with validation is refused.
            row["id"] if split == "test" else "v" + row["id"],
            split, {"side": side}, "a", "a" if rank == 1 else "b", rank, 0.5,
        )
        for split in SPLITS
        for row, side, rank in zip(questions, sides, ranks(skill))
    ],
    # What is asked is how difficult it is.
    [Request("test", row["id"], {"question": row["difficulty"]}) for row in questions],
)
"""

SCORE = """
import json
from ml.serving.scoring.messages import BadRequest, Integer, Text, parse, refusal, reply
from ml.serving.scoring.model import open_model


def init():
    global model, weight, skill
    model = open_model()
    skill = json.loads((model.folder / "skill.json").read_text())["skill"]
    weight = float((model.folder / "model.txt").read_text())


def run(body):
    try:
        asked = parse(body, {"question": Text(100), "top": Integer(1, 5, default=3)})
    except BadRequest as error:
        return refusal(error)
    question = asked.texts["question"]
    entry = {"rank": 1, "score": len(question) * weight, "question": "q", "answer": "a"}
    entry["entry_id"] = "a" if float(question if question[0] == "0" else 0) < skill else "b"
    return reply(model, {"answers": [entry]})
"""

_FILES = {
    "pyproject.toml": "",
    ".amlignore": "*\n!/ml/projects/*/endpoint/*.py\n!/ml/measures/**/*.py\n!/ml/toolkit/**/*.py\n"
    "!/ml/serving/**/*.py\n",
    # What a release writes into the project does not travel with a job.
    "ml/projects/tiny/.amlignore": "*\n!/*.py\n!/ml/**/*.py\n",
    "ml/projects/tiny/train.py": _TRAIN,
    "ml/projects/tiny/evaluate.py": _EVALUATE,
    "ml/projects/tiny/data/tiny.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/data.schema.json
name: tiny
version: 1
type: uri_folder
path: files
""",
    "ml/projects/tiny/jobs/train.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
experiment_name: tiny
code: ..
command: >-
  python train.py --data ${{inputs.data}} --skill ${{inputs.skill}} --model ${{outputs.model}}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
  skill: 0.8
outputs:
  model: {type: custom_model}
limits: {timeout: 600}
""",
    "ml/projects/tiny/jobs/sweep-random.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json
type: sweep
experiment_name: tiny
trial:
  code: ..
  command: >-
    python train.py --data ${{inputs.data}} --skill ${{search_space.skill}}
    --model ${{outputs.model}} --log
  environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
outputs:
  model: {type: custom_model}
sampling_algorithm: grid
objective: {goal: maximize, primary_metric: skill}
search_space:
  skill: {type: choice, values: [0.7, 0.9]}
limits: {max_total_trials: 2, max_concurrent_trials: 1}
""",
    "ml/projects/tiny/jobs/evaluate.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
experiment_name: tiny
code: ..
command: >-
  python evaluate.py --data ${{inputs.data}} --model ${{inputs.model}}
  --evaluation ${{outputs.evaluation}}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
  model: {type: custom_model, path: "azureml:tiny@latest"}
outputs:
  evaluation: {type: uri_folder}
limits: {timeout: 600}
""",
    "ml/projects/tiny/jobs/pipeline.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
experiment_name: tiny
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
outputs:
  model: {type: custom_model}
  evaluation: {type: uri_folder}
settings: {default_compute: "azureml:cpu-cluster"}
jobs:
  copy:
    type: command
    command: cp -r ${{inputs.data}}/. ${{outputs.files}}
    environment: azureml:ml-cpu:1
    inputs: {data: "${{parent.inputs.data}}"}
    outputs: {files: {type: uri_folder}}
  sweep:
    type: sweep
    trial: ./trial.yml
    inputs: {data: "${{parent.jobs.copy.outputs.files}}"}
    outputs: {model: "${{parent.outputs.model}}"}
    sampling_algorithm: grid
    objective: {goal: maximize, primary_metric: skill}
    search_space:
      skill: {type: choice, values: [0.7, 0.9]}
    limits: {max_total_trials: 2, max_concurrent_trials: 1}
  evaluate:
    type: command
    code: ..
    command: >-
      python evaluate.py --data ${{inputs.data}} --model ${{inputs.model}}
      --evaluation ${{outputs.evaluation}}
    environment: azureml:ml-cpu:1
    inputs:
      data: ${{parent.jobs.copy.outputs.files}}
      model: ${{parent.jobs.sweep.outputs.model}}
    outputs: {evaluation: "${{parent.outputs.evaluation}}"}
""",
    "ml/projects/tiny/jobs/trial.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: tiny_trial
version: 1
code: ..
command: >-
  python train.py --data ${{inputs.data}} --skill ${{inputs.skill}} --model ${{outputs.model}} --log
environment: azureml:ml-cpu:1
inputs:
  data: {type: uri_folder}
  skill: {type: number}
outputs:
  model: {type: custom_model}
""",
    "ml/projects/tiny/endpoint/endpoint.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json
name: tiny
auth_mode: aad_token
""",
    "ml/projects/tiny/endpoint/deployment.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: tiny
model: azureml:tiny@latest
code_configuration: {code: ../../../.., scoring_script: ml/projects/tiny/endpoint/score.py}
environment: azureml:ml-cpu:1
instance_type: Standard_DS3_v2
instance_count: 1
""",
    "ml/projects/tiny/release.yml": """
schema_version: 1
traffic: # few requests, so that a test is soon done; tests/release has its own policy
  requests: [20, 20, 20]
environments:
  dev:
  staging:
  # Nothing is declared for prod, which need not be said.
""",
    "ml/projects/tiny/endpoint/score.py": SCORE,
    "ml/projects/tiny/endpoint/requests.jsonl": '{"question": "how?"}\n{"question": "why not?"}\n',
    "ml/projects/tiny/gates.yml": """
schema_version: 1
gates:
  quality:
    at_least: {test.gain_at_1: 0.6}
  gap:
    at_most: {test.gain_at_1: 0.1}
  fairness:
    dimensions: [side]
  non-inferiority:
    splits: [test]
  serving: # no canary of the tests judges the drift of it
    prediction: answers/0/entry_id
""",
}


# A pipeline whose only step calls the model that it leaves `trained`.
SINGLE = {
    "ml/projects/tiny/jobs/single.yml": """
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
experiment_name: tiny
inputs:
  data: {type: uri_folder, path: "azureml:tiny:1"}
outputs:
  model: {type: custom_model}
settings: {default_compute: "azureml:cpu-cluster"}
jobs:
  train:
    type: command
    code: ..
    command: >-
      python train.py --data ${{inputs.data}} --skill 0.8 --model ${{outputs.trained}} --log
    environment: azureml:ml-cpu:1
    inputs: {data: "${{parent.inputs.data}}"}
    outputs: {trained: "${{parent.outputs.model}}"}
""",
}


@dataclass(frozen=True)
class Tiny:
    """The repository and the project in it."""

    root: Path

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return self.root / "ml" / "projects" / "tiny"

    def run(self, job: str, backend: Backend = BACKEND, **inputs: object) -> Run:
        """A completed run of a job of the project, some of its inputs changed."""
        changes = {f"inputs.{name}": str(value) for name, value in inputs.items()}
        run = backend.run(plan(load(self.folder / "jobs" / job, changes)))
        assert run.status == "Completed", run.error
        return run

    def train(self, skill: float, backend: Backend = BACKEND) -> Run:
        """A completed training run."""
        return self.run("train.yml", backend, skill=skill)

    def sweep(self) -> Run:
        """A completed sweep over two skills."""
        return self.run("sweep-random.yml")

    def pipeline(self, backend: Backend = BACKEND) -> Run:
        """A completed pipeline: the data copied, the same sweep, the best model evaluated."""
        return self.run("pipeline.yml", backend)


def make(root: Path, changed: Mapping[str, str] | None = None) -> Tiny:
    """Write the repository, with some files `changed`, and commit it."""
    for name, text in {**_FILES, **(changed or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    bring(root, *ON_THE_NODE)
    bring(root / "ml/projects/tiny", *ON_THE_NODE)
    lock = root / "requirements/main.lock"
    lock.parent.mkdir()
    lock.write_text("".join(f"{name}=={version(name)}\n" for name in ("lightgbm", "numpy")))
    questions(root)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tiny"]):
        subprocess.run([*git, *words], cwd=root, check=True, capture_output=True)
    return Tiny(root)


def project(root: Path) -> None:
    """Write the project alone, into a repository that has all else."""
    for name, text in _FILES.items():
        if name.startswith("ml/projects/tiny/"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text.lstrip("\n"))
    bring(root / "ml/projects/tiny", *ON_THE_NODE)
    questions(root)


def questions(root: Path, count: int = QUESTIONS) -> None:
    """Write the data: questions whose difficulties are spread evenly from 0 to 1."""
    folder = root / "ml/projects/tiny/data/files"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "questions.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["id", "difficulty"])
        rows.writerows([f"q{number}", number * 7 % count / count] for number in range(count))


def staged(environment: str = "prod") -> None:
    """What is declared for the environment has served in the one before it, by the registry."""
    entry = desired_state.read(BACKEND, "tiny", environment)
    assert entry is not None
    before = {"prod": "staging", "staging": "dev"}[environment]
    version = BACKEND.registry.find("tiny", entry.version)
    BACKEND.registry.promote(version, before, entry.deployment_digest)


def resealed(version: Version, evidence: str) -> Version:
    """The version with that text as its evidence; the registry is not told of its new hash."""
    made = replace(version, evidence=hashlib.sha256(evidence.encode()).hexdigest())
    if version.evidence:
        version.evidence_folder.rename(made.evidence_folder)
    else:  # the folder of a version without evidence is the one above
        shutil.copytree(version.evidence_folder, made.evidence_folder)
    (made.evidence_folder / EVIDENCE_FILE).write_text(evidence)
    return made


def measured(
    call: object, deployment: ModelDeployment, *_: object
) -> tuple[list[float], dict[str, object]]:
    """What `propose` measures of a server, without starting one."""
    answers = {
        "rows": QUESTIONS,
        "differing": 0,
        "largest": 0.0,
        "prediction": "answers/0/entry_id",
    }
    times = [1.0] * 190 + [2.0] * 8 + [3.0] * 2
    return times, {**answers, "deployment_digest": deployment.deployment_digest}


def model_folder(folder: Path, skill: float = 0.8) -> Path:
    """A model folder without a run: a text that starts as LightGBM's does, and its manifest."""
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text("tree\nversion=v4\n" + "leaf_value=0.25\n" * 200)
    (folder / "skill.json").write_text(f'{{"skill": {skill}}}')
    write_manifest(folder)
    return folder
