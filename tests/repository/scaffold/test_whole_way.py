"""What the tutorial, a project's README and the guide to a metric say, with generated tables."""

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

README = ROOT / "ml/repository/scaffold/templates/README.md.jinja"
TUTORIAL = ROOT / "docs/tutorial.md"
METRIC = ROOT / "docs/how-to/add-a-metric.md"
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
    """The command that makes a project, and the four of its README."""
    words = {"<< name >>": name, "<< endpoint >>": name, "sweep.yml": f"sweep.yml {FEWER}"}
    made = commands(README.read_text())
    for old, new in words.items():
        made = [line.replace(old, new) for line in made]
    made.insert(0, f".venv/bin/ml new {name} --table {name}.csv --target {target}")
    assert [line.split()[1] for line in made] == ["new", "run", "release", "release", "invoke"]
    return made


@pytest.mark.slow
def test_the_tutorial_from_a_table_to_a_rollback(fork: Path) -> None:
    """Binary by its AUC: a version, a second one that only a reason lets replace it, and back."""
    tables.churn(fork / "churn.csv")
    said: dict[str, list[str]] = {}
    try:
        for command in commands(TUTORIAL.read_text()):
            words = command.replace("jobs/sweep.yml", f"jobs/sweep.yml {FEWER}")
            said.setdefault(" ".join(command.split()[1:3]), []).append(typed(fork, words))
    finally:
        typed(fork, ".venv/bin/ml serve --stop-all")
    answer = json.loads(said["invoke churn"][0].partition("\n")[0])
    assert 0 < answer["predictions"][0] < 1 and answer["model_digest"].startswith("sha256:")
    first, second = said["release propose"]
    assert "no champion yet" in first and "against champion 1" in second
    assert "10 %" in said["release apply"][1] and "churn 2" in said["release apply"][1]
    assert re.search(r"serving +1 at http", said["release status"][0])


@pytest.mark.slow
def test_a_table_of_another_shape_in_a_datastore(fork: Path, own_home: Path) -> None:
    """A regression of 300 rows without an id: refused without a copy of the data, then served. It
    is tested out of fold, and by a metric of its own.
    """
    path = tables.houses(fork / "houses.csv", 300)
    new, sweep, propose, apply, invoke = five("houses", "price")
    typed(fork, f"{new} --datastore azureml://datastores/workspaceblobstore/paths/houses/")
    (metric,) = re.findall(r"metrics\.py\n(.*?)^```", METRIC.read_text(), re.M | re.S)
    (fork / "ml/projects/houses/metrics.py").write_text(metric)
    gates = fork / "ml/projects/houses/gates.yml"
    text = gates.read_text()
    for setting in re.findall(r"`((?:at_most|bounds): \{.*?)\}`", METRIC.read_text()):
        key = f"    {setting.partition('{')[0]}{{"
        text = text.replace(key, f"    {setting}, ", 1)
    assert text.count("per_room") == 2
    gates.write_text(text)
    for command in commands(METRIC.read_text()):
        typed(fork, command)
    refused = typed(fork, sweep, code=33)
    assert "error[data-not-local]" in refused and "data/houses/1" in refused
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
