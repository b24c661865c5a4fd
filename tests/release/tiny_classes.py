"""The tiny project turned into a tabular classification, as a fork would: real rows, real trees.

`skill` is the share of fifty boosting rounds: more of them lose less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.release import tiny
from tests.release.tiny import Tiny

ROWS = 1500

_READ = """
import csv, json, pathlib
import lightgbm, numpy

SETTINGS = {"objective": "binary", "num_leaves": 7, "verbose": -1, "num_threads": 1}
FEATURES = ("amount", "hour")


def rows(folder, split):
    names = ("train", "validation", "test")
    every = csv.DictReader((folder / "rows.csv").open())
    return [row for row in every if names[int(row["id"]) % 3] == split]


def table(found):
    return numpy.array([[float(row[name]) for name in FEATURES] for row in found])


def fit(found, skill, seed=0):
    labels = [int(row["fraud"]) for row in found]
    data = lightgbm.Dataset(table(found), labels)
    settings = SETTINGS | {"seed": seed, "bagging_fraction": 0.8, "bagging_freq": 1}
    return lightgbm.train(settings, data, num_boost_round=round(50 * skill))
"""

_TRAIN = """
import argparse, json, pathlib
from ml.serving.scoring.manifest import write_manifest
from reading import fit, rows

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--skill", type=float)
parser.add_argument("--model", type=pathlib.Path)
asked = parser.parse_args()
fit(rows(asked.data, "train"), asked.skill).save_model(asked.model / "model.txt")
(asked.model / "settings.json").write_text(json.dumps({"skill": asked.skill}))
write_manifest(asked.model)
"""

_EVALUATE = """
import argparse, json, pathlib
import lightgbm
from ml.toolkit.training.boosting import contributions
from ml.serving.scoring.manifest import verify
from ml.measures.measurement import Features, Rows, Training, evaluate, metric_values
from reading import FEATURES, fit, rows, table

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--model", type=pathlib.Path)
parser.add_argument("--evaluation", type=pathlib.Path)
asked = parser.parse_args()
digest = verify(asked.model)
booster = lightgbm.Booster(model_file=asked.model / "model.txt")
skill = json.loads((asked.model / "settings.json").read_text())["skill"]


def answered(split, model):
    found = rows(asked.data, split)
    return Rows(
        [row["id"] for row in found], [int(row["fraud"]) for row in found],
        model.predict(table(found)) if model else (), {"shop": [row["shop"] for row in found]},
        requests=[{name: int(row[name]) for name in FEATURES} for row in found],
    )


train = rows(asked.data, "train")
refits = [
    metric_values("binary", answered("validation", fit(train, skill, seed)))["log_loss"]
    for seed in (1, 2)
]
evaluate(
    asked.evaluation,
    {split: answered(split, booster) for split in ("test", "validation")},
    Training(answered("train", None), {"skill": skill}, refits, seconds=1.0),
    Features(FEATURES, table(rows(asked.data, "test"))),
    contributions(booster, table(rows(asked.data, "test"))),
    task="binary", primary_metric="log_loss", model="tiny", digest=digest, unit="payment",
)
"""

_SCORE = """
import lightgbm
from ml.serving.scoring.messages import BadRequest, Integer, parse, refusal, reply
from ml.serving.scoring.model import open_model


def init():
    global model, booster
    model = open_model()
    booster = lightgbm.Booster(model_file=model.folder / "model.txt")


def run(body):
    try:
        asked = parse(body, {name: Integer(0, 100, default=0) for name in ("amount", "hour")})
    except BadRequest as error:
        return refusal(error)
    row = [[asked.integers["amount"], asked.integers["hour"]]]
    return reply(model, {"fraud": float(booster.predict(row, num_threads=1)[0])})
"""

_GATES = """
schema_version: 1
gates:
  quality:
    at_least: {test.auc: 0.7}
    at_most: {test.log_loss: 0.55}
  gap:
    at_most: {test.log_loss: 0.2, test.auc: 0.1}
  fairness:
    dimensions: [shop]
    at_most: {shop.f1: 0.3}
  non-inferiority:
    splits: [test]
  serving:
    prediction: fraud
"""


def make(root: Path) -> Tiny:
    """Write the repository and commit it."""
    changed: Mapping[str, str] = {
        "ml/projects/tiny/reading.py": _READ,
        "ml/projects/tiny/train.py": _TRAIN,
        "ml/projects/tiny/evaluate.py": _EVALUATE,
        "ml/projects/tiny/endpoint/score.py": _SCORE,
        "ml/projects/tiny/endpoint/requests.jsonl": '{"amount": 10}\n{"amount": 90, "hour": 3}\n',
        "ml/projects/tiny/gates.yml": _GATES,
        "ml/projects/tiny/data/files/rows.csv": _rows(),
    }
    return tiny.make(root, changed)


def _rows() -> str:
    rng = np.random.default_rng(0)
    amount, hour = rng.integers(0, 101, (2, ROWS))
    fraud = rng.random(ROWS) < 1 / (1 + np.exp(-(amount - 60) / 8 + (hour - 50) / 25))
    shops = rng.choice(["near", "far"], ROWS)
    lines = [f"{at},{amount[at]},{hour[at]},{shops[at]},{int(fraud[at])}" for at in range(ROWS)]
    return "\n".join(["id,amount,hour,shop,fraud", *lines]) + "\n"
