"""Compare the fast server with azureml-inference-server-http: same model, score.py and caller.

The model has 300 trees over 30 columns, with preprocessing. Each server has one worker. The caller
uses keep-alive (the standard server closes connections by default) and polls without sleeping, so
that only the server is measured. The responses are first checked to be equal. The ratio is that of
the requests per second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.load import Caller, closed_loop, latencies, share
from ml.backends.endpoints import ModelDeployment
from ml.backends.local.serving import processes, server
from ml.release.evidence.cost import hardware
from ml.serving.scoring.columns import FILE
from ml.serving.scoring.manifest import folder_digest, write_manifest

ROOT = Path(__file__).parents[1]
TREES, COLUMNS, TEXTS = 300, 30, 3
ROUNDS = 5
CATEGORIES = ["north", "east", "south", "west"]
MODEL = "model.txt"
SCRIPT = """
import numpy as np
from ml.serving.scoring.table import Table
from ml.serving.scoring.trees import Trees


def derive(row):
    return row


def load(folder):
    return Trees(folder / "model.txt")


def predict(model, table):
    return np.asarray(model.predict(table))


def init():
    global table
    table = Table.open(derive, load, predict)


def run(body):
    return table.answer(body)
"""


def main(quick: bool) -> float:
    seconds, requests = (1.0, 2000) if quick else (5.0, 20_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deployment = fixture(folder)
        bodies = [request(row) for row in rows(200, seed=1)]
        slot = folder / "slot"
        try:
            standard = server.start(slot, deployment)
            with fast(deployment) as port:
                same = [answer(standard.port, body) == answer(port, body) for body in bodies]
                print(f"the same answers to {sum(same)} of {len(same)} requests")
                assert all(same)
                found = []
                for _ in range(ROUNDS):
                    slow_rate = closed_loop(standard.port, bodies[0], seconds, spins=True)
                    fast_rate = closed_loop(port, bodies[0], seconds, spins=True)
                    found.append((fast_rate / slow_rate, slow_rate, fast_rate))
                ratio, slow_rate, fast_rate = sorted(found)[ROUNDS // 2]
                print(f"azureml-inference-server-http {slow_rate:.0f}/s, fast {fast_rate:.0f}/s")
                for label, target in (("standard", standard.port), ("fast", port)):
                    taken = latencies(
                        target, bodies[0], requests // (1 if target == port else 10), spins=True
                    )
                    said = ", ".join(
                        f"p{int(p * 100)} {share(taken, p):.3f} ms" for p in (0.5, 0.99)
                    )
                    print(f"  {label}: {said}")
                print(f"  {hardware()}; load {os.getloadavg()[0]:.1f}")
                return ratio
        finally:
            processes.stop(slot)


def fixture(folder: Path) -> ModelDeployment:
    """Write the model folder, with preprocessing, and the scoring script; return the deployment."""
    import lightgbm

    model, code = folder / "model", folder / "code"
    model.mkdir()
    code.mkdir()
    draw = np.random.default_rng(0)
    table = draw.normal(size=(4000, COLUMNS))
    table[:, :TEXTS] = draw.integers(0, len(CATEGORIES), (4000, TEXTS))
    target = table[:, 3] * table[:, 0] + np.sin(table[:, 4] * 3) + draw.normal(size=4000)
    data = lightgbm.Dataset(table, (target > 0).astype(int), categorical_feature=[0, 1, 2])
    settings = {"objective": "binary", "verbose": -1, "num_threads": 2, "seed": 0}
    booster = lightgbm.train(settings, data, num_boost_round=TREES)
    booster.save_model(model / MODEL)
    names = [f"c{number}" for number in range(COLUMNS)]
    document = {
        "columns": [
            {"name": name, "type": "text" if number < TEXTS else "float"}
            for number, name in enumerate(names)
        ],
        "inputs": [
            {"name": name, **({"categories": CATEGORIES} if number < TEXTS else {})}
            for number, name in enumerate(names)
        ],
        "encoding": "codes",
        "classes": [],
    }
    (model / FILE).write_text(json.dumps(document))
    write_manifest(model)
    (code / "score.py").write_text(SCRIPT)
    room = "ml/serving/scoring"
    shutil.copytree(ROOT / room, code / room, ignore=shutil.ignore_patterns("__pycache__"))
    digest = folder_digest(model)
    return ModelDeployment(
        *(code, "score.py", {"OMP_NUM_THREADS": "1"}),
        endpoint="bench",
        model="bench",
        version="1",
        digest=digest,
        model_folder=model,
    )


def rows(count: int, seed: int) -> list[list[object]]:
    """Return random rows as callers send them: strings, numbers and some missing values."""
    draw = np.random.default_rng(seed)
    made: list[list[object]] = []
    for _ in range(count):
        texts = [*CATEGORIES, "nowhere"]
        numbers: list[object] = [float(value) for value in draw.normal(size=COLUMNS - TEXTS)]
        if draw.random() < 0.2:
            numbers[int(draw.integers(len(numbers)))] = None
        made.append([*(texts[int(draw.integers(5))] for _ in range(TEXTS)), *numbers])
    return made


def request(row: list[object]) -> bytes:
    """Return a request body with one row in Azure ML's format for tables."""
    columns = [f"c{number}" for number in range(COLUMNS)]
    return json.dumps({"input_data": {"columns": columns, "data": [row]}}).encode()


def answer(port: int, body: bytes) -> object:
    """Send a request; return status and parsed content."""
    caller = Caller(port, body)
    status, content = caller.ask()
    caller.close()
    return status, json.loads(content)


@contextmanager
def fast(deployment: ModelDeployment, image: Path | None = None) -> Iterator[int]:
    """Start the fast server, in the folder of an image if given; yield its port, then stop it."""
    port = processes.free_port()
    environment = {
        **os.environ,
        "AML_APP_ROOT": str(deployment.code),
        "AZUREML_ENTRY_SCRIPT": deployment.scoring_script,
        "AZUREML_MODEL_DIR": str(deployment.model_folder),
        "MODEL_DIGEST": deployment.digest,
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ml.serving.fast", "--port", str(port)],
        env=environment,
        cwd=image,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("listening"):
                break
        else:
            raise RuntimeError("the fast server did not start")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stderr.close()
