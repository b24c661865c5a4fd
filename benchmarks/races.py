"""Race two processes that each propose and apply a model; the better one must become champion.

The races use real runs, gates, servers and canaries of the tests' tiny project, in a copy of a home
in which version 1 serves. The ratio is the share of races after which the better model is declared,
is champion and serves.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from contextlib import chdir
from pathlib import Path

from ml.backends.local.backend import LocalBackend
from ml.backends.local.model_registry import LocalRegistry
from ml.backends.local.serving import endpoint
from ml.release import audit
from ml.release.declaration import desired_state
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from tests.local import LOG

RACES = 50
FIRST, WORSE, BETTER = 0.8, 0.87, 0.95
LATER_S = 6.0  # maximum delay of the second process: about the time of a proposal


def main(quick: bool) -> float:
    from tests.release import tiny

    count, won = (3 if quick else RACES), 0
    with tempfile.TemporaryDirectory() as folder:
        root, first = Path(folder) / "repository", Path(folder) / "first"
        os.environ["MLOPS_HOME"] = str(first)
        project = tiny.make(root)
        with chdir(root):
            runs = {skill: project.train(skill).name for skill in (FIRST, WORSE, BETTER)}
            propose(LocalBackend(), "tiny", runs[FIRST])
            apply(LocalBackend(), "tiny", "local", "ana")
            endpoint.stop("tiny")
            for race in range(count):
                # Use a new path: MLflow would continue to read the deleted database at the old one.
                home = Path(folder) / f"home{race}"
                shutil.copytree(first, home)
                os.environ["MLOPS_HOME"] = str(home)
                skills = (WORSE, BETTER) if race % 2 else (BETTER, WORSE)
                try:
                    won += _race([runs[skill] for skill in skills], random.Random(race))
                finally:
                    endpoint.stop("tiny")
                shutil.rmtree(home)
    print(f"the better model ended as champion {won} times of {count}")
    return won / count


def _race(names: list[str], draw: random.Random) -> bool:
    """Run a race; return whether the better model is declared, applied, champion and serves."""
    endpoint.ensure("tiny")
    backend = LocalBackend()
    spawn = multiprocessing.get_context("spawn")
    first, second = (spawn.Process(target=promote, args=(name,)) for name in names)
    first.start()
    time.sleep(draw.random() * LATER_S)
    second.start()
    first.join()
    second.join()
    champion, entry = (
        LocalRegistry().champion("tiny", "local"),
        desired_state.read(backend, "tiny", "local"),
    )
    applied = [line["version"] for line in audit.verify(LOG) if line["event"] == "applied"]
    assert champion and entry
    answered = ask(backend, "tiny", {"question": "how?"}).version
    skill = json.loads((champion.folder / "skill.json").read_text())["skill"]
    print(f"applied {', '.join(map(str, applied))}; the champion's skill is {skill}", flush=True)
    agreed = {champion.version, entry.version, answered, str(applied[-1])}
    return first.exitcode == second.exitcode == 0 and len(agreed) == 1 and skill == BETTER


def promote(run: str) -> None:
    """Propose the model of `run` and apply the release; runs in a process of its own."""
    propose(LocalBackend(), "tiny", run)
    apply(LocalBackend(), "tiny", "local", "ana")
