"""What ml/projects/SECOND_MODEL.md says, done: from a table to a served model and the next one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.repository.forks import forks
from tests.repository.scaffold import tables
from tests.test_readme import commands

PAGE = ROOT / "ml/projects/SECOND_MODEL.md"
# Of a sweep, two trials show what twelve do.
FEWER = "--set limits.max_total_trials=2"


@pytest.fixture(name="fork")
def _fork(tmp_path: Path) -> Path:
    return forks.fork(tmp_path / "fork")


def typed(fork: Path, command: str, code: int = 0) -> str:
    """What a command of the page prints."""
    done = subprocess.run(command, shell=True, cwd=fork, capture_output=True, text=True)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def five(name: str, target: str) -> list[str]:
    """The five commands of the page, for a table of that name."""
    words = {"churn": name, "Churn": target, "jobs/sweep.yml": f"jobs/sweep.yml {FEWER}"}
    made = commands(PAGE.read_text())[:5]
    for old, new in words.items():
        made = [line.replace(old, new) for line in made]
    assert [line.split()[1] for line in made] == ["new", "run", "release", "release", "invoke"]
    return made


@pytest.mark.slow
def test_the_page_from_a_table_to_the_next_version(fork: Path) -> None:
    """Binary by its AUC: served, then replaced by a version that nobody shows to be better only
    with a reason.
    """
    tables.churn(fork / "churn.csv")
    new, sweep, propose, apply, invoke = five("churn", "Churn")
    try:
        for command in (new, sweep, propose, apply):
            typed(fork, command)
        answer = json.loads(typed(fork, invoke).partition("\n")[0])
        assert 0 < answer["predictions"][0] < 1 and answer["model_digest"].startswith("sha256:")
        run = ".venv/bin/ml run ml/projects/churn/jobs/train.yml --set inputs.seed=3"
        name = re.search(r"^(\S+): Completed", typed(fork, run), re.M)
        assert name
        refused = typed(fork, f"{propose} --run {name[1]}", code=3)
        difference = r"superiority +auc on test is 0\.0\d+ (better|worse) than the champion's"
        assert re.search(difference, refused)
        assert re.search(r"interval: 0\.\d+ worse to 0\.\d+\s+better\)", refused)
        assert "non-inferiority" in refused and "Traceback" not in refused
    finally:
        typed(fork, ".venv/bin/ml serve --stop-all")


OWN = '''"""What an error costs a room."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.metrics import Answers, OwnMetric


def per_room(answers: Answers, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The sum of the errors by the sum of the rooms."""
    errors = np.abs(answers.expected.astype(float) - answers.predicted.astype(float))
    return np.stack([errors, columns["rooms"].astype(float)], axis=1)


METRICS = {"per_room": OwnMetric("minimize", (0, 900_000), per_room, ratio=True)}
'''


@pytest.mark.slow
def test_a_table_of_another_shape_in_a_datastore(fork: Path, own_home: Path) -> None:
    """A regression of 300 rows without an id: refused without a copy of the data, then served. It
    is tested out of fold, and by a metric of its own.
    """
    path = tables.houses(fork / "houses.csv", 300)
    new, sweep, propose, apply, invoke = five("houses", "price")
    typed(fork, f"{new} --datastore azureml://datastores/workspaceblobstore/paths/houses/")
    (fork / "ml/projects/houses/metrics.py").write_text(OWN)
    gates = fork / "ml/projects/houses/gates.yml"
    own = "at_most: {test.per_room: 20000, "
    bounds = "    bounds: {per_room: [0, 900000], "
    text = gates.read_text().replace("at_most: {", own, 1).replace("    bounds: {", bounds, 1)
    gates.write_text(text)
    typed(fork, ".venv/bin/ml check ml/projects")
    refused = typed(fork, sweep, code=33)
    assert "error[data-not-here]" in refused and "data/houses/1" in refused
    copy = own_home / "data" / "houses" / "1"
    copy.mkdir(parents=True)
    shutil.move(path, copy / "table.csv")
    try:
        for command in (sweep, propose, apply):
            typed(fork, command)
        (price,) = json.loads(typed(fork, invoke).partition("\n")[0])["predictions"]
        assert 60_000 < price < 600_000
        (kept,) = (own_home / "evidence/houses/1").glob("*/evidence.json")
        evaluation = json.loads(kept.read_text())["evaluation"]
        assert evaluation["out_of_fold"] == {"test": 5}
        measured = evaluation["metrics"]["test"]["per_room"]
        assert measured["count"] == 225 and measured["low"] < measured["value"] < measured["high"]
    finally:
        typed(fork, ".venv/bin/ml serve --stop-all")


@pytest.mark.slow
def test_the_projects_are_typed(fork: Path) -> None:
    """mypy, strict as the repository's, finds nothing in a project of every task."""
    for name, target in (("churn", "Churn"), ("houses", "price"), ("flowers", "species")):
        getattr(tables, name)(fork / f"{name}.csv")
        typed(fork, five(name, target)[0])
    mypy = f"{sys.executable} -m mypy --cache-dir {fork}/.mypy_cache"
    sites = f"--config-file {ROOT}/requirements/mypy.ini ml/projects"
    assert "Success" in typed(fork, f"{mypy} {sites}")


@pytest.mark.slow
@pytest.mark.torture(only=True)
def test_three_classes_by_the_demo(fork: Path) -> None:
    """The sweep that is named from the project's folder, whose candidate is the first version, and
    a fault that is seen; the answer is a label, beside the probabilities of all.
    """
    tables.flowers(fork / "flowers.csv")
    new, *_, invoke = five("flowers", "species")
    typed(fork, new)
    sweep = fork / "ml/projects/flowers/jobs/sweep.yml"
    sweep.write_text(sweep.read_text().replace("max_total_trials: 12", "max_total_trials: 2"))
    try:
        demo = typed(fork, ".venv/bin/ml demo flowers --spec jobs/sweep.yml --fault errors")
        assert "[1] ml run ml/projects/flowers/jobs/sweep.yml" in demo and "jobs/jobs" not in demo
        assert "flowers 1 serves now" in demo and "rolled back at 10 %" in demo
        answer = json.loads(typed(fork, invoke).partition("\n")[0])
        (probabilities,) = answer["probabilities"]
        assert answer["classes"] == ["other", "rosa", "setosa"]
        assert sum(probabilities) == pytest.approx(1)
        assert answer["predictions"] == [answer["classes"][np.argmax(probabilities)]]
    finally:
        typed(fork, ".venv/bin/ml serve --stop-all")
