"""`ml new --kind sequence`: a project of a text column, and what is refused."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.cli.commands.check import release_files
from ml.core.errors import UserError
from ml.repository.scaffold.new import new
from ml.repository.scaffold.profile import Choices
from ml.repository.scaffold.series import SeriesChoices
from ml.specs.check.check import survey
from ml.toolkit.data.datasets import read_dataset
from policies.promotion import gate_settings
from tests.conftest import ROOT
from tests.repository.scaffold import tables

SEQUENCE = Choices("topic", kind="sequence")
FEW = 200


@pytest.mark.parametrize("target", ["topic", "channel"])
def test_what_is_written_is_sound(repository: Path, target: str) -> None:
    """`ml check` and ruff find nothing, and the text is found; of several and of two classes."""
    made = new(
        repository,
        "tickets",
        tables.tickets(repository / "t.csv"),
        Choices(target, kind="sequence"),
    )
    report = survey([made.folder], release_files())
    assert report.problems == () and report.specs >= 6
    tests = str(repository / "tests" / "projects" / "tickets")
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(made.folder), tests]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, *config], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    dataset = read_dataset(made.folder / "data/tickets", made.folder / "data/tickets.schema.yml")
    assert [column.name for column in dataset.features] == ["message"]
    requests = (made.folder / "endpoint/requests.jsonl").read_text().splitlines()
    (table,) = json.loads(requests[0]).values()
    assert len(requests) == 100 and table["columns"] == ["message"]
    assert gate_settings.load(made.folder / "gates.yml")
    assert "ml-torch" in (made.folder / "endpoint/deployment.yml").read_text()


def test_a_text_of_few_values_is_named(repository: Path) -> None:
    """`--text` takes a category too; without another column its lengths are the slices."""
    path = repository / "t.csv"
    texts = ["late again", "I was charged twice for it"]
    path.write_text("note,y\n" + "".join(f"{texts[of % 2]},{of % 3}\n" for of in range(FEW)))
    made = new(repository, "notes", path, Choices("y", kind="sequence", text="note"))
    assert made.profile.head["text"] == "note" and made.profile.head["slices"] == ["note"]
    with pytest.raises(UserError) as refused:
        new(repository, "others", path, Choices("y", kind="sequence"))
    assert refused.value.problems[0].code == "no-feature"


@pytest.mark.parametrize(
    ("choices", "more", "code", "words"),
    [
        (Choices("topic", kind="tree"), {}, "no-such-kind", "--kind tree"),
        (Choices("topic", text="message"), {}, "option-conflict", "--text without --kind"),
        (SEQUENCE, {"model": "torch"}, "option-conflict", "--model with"),
        (SEQUENCE, {"series": SeriesChoices(3, ["a"])}, "option-conflict", "--horizon with"),
        (
            Choices("topic", task="regression", kind="sequence"),
            {},
            "option-conflict",
            "--task regression with",
        ),
        (Choices("number", kind="sequence"), {}, "wrong-target", "`number` has numbers"),
        (Choices("topic", kind="sequence", text="massage"), {}, "no-such-column", "for --text"),
        (Choices("topic", kind="sequence", text="topic"), {}, "option-conflict", "`topic` is"),
    ],
)
def test_what_cannot_be_written_is_refused(
    repository: Path, choices: Choices, more: dict[str, Any], code: str, words: str
) -> None:
    """And nothing is written."""
    path = tables.tickets(repository / "t.csv", FEW)
    header, *lines = path.read_text().splitlines()
    numbered = [f"{line},{at / 7}" for at, line in enumerate(lines)]
    path.write_text("\n".join([f"{header},number", *numbered]) + "\n")
    with pytest.raises(UserError) as refused:
        new(repository, "tickets", path, choices, **more)
    problem = refused.value.problems[0]
    assert problem.code == code and words in problem.actual
    assert not (repository / "ml/projects/tickets").exists()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["topic", "channel"])
def test_it_trains_evaluates_and_answers(
    repository: Path, home: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph answers as the network within 1e-5; the model beats a constant where a text tells
    the target, and its own test passes.
    """
    pytest.importorskip("torch")
    name = f"tickets_{target}"
    made = new(
        repository,
        name,
        tables.tickets(repository / "t.csv", 300),
        Choices(target, kind="sequence"),
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    import ml.projects
    import tests.projects

    monkeypatch.setattr(ml.projects, "__path__", [str(made.folder.parent)])
    monkeypatch.setattr(
        tests.projects, "__path__", [str(repository / "tests/projects")], raising=True
    )
    project, model, test, own = (
        importlib.import_module(of)
        for of in (
            f"ml.projects.{name}.train",
            f"ml.projects.{name}.model",
            f"tests.projects.{name}.test_model",
            "ml.toolkit.training.tabular",
        )
    )
    test.test_what_is_saved_is_what_is_served(repository / "model", monkeypatch)
    data, folder = str(made.folder / "data" / name), str(repository / "trained")
    kept = str(repository / "kept")
    own.train(project.PROJECT, ["--data", data, "--model", folder, "--checkpoints", kept])
    assert [*Path(kept).iterdir()]
    arguments = ["--data", data, "--model", folder, "--evaluation", str(repository / "evaluation")]
    own.evaluate(project.PROJECT, arguments, model=made.endpoint)
    found = json.loads((repository / "evaluation/evaluation.json").read_text())
    accuracy = found["metrics"]["test"]["accuracy"]
    if target == "topic":
        assert accuracy["low"] > 0.6
    assert np.isfinite(accuracy["value"]) and {*found["slices"]} == {
        "channel" if target == "topic" else "topic"
    }
    told = [of["feature"] for of in found["contributions"]]
    assert target == "channel" or {*told[:6]} <= {*tables.TELLING}
    assert {of.name for of in Path(folder).iterdir()} >= {model.WEIGHTS, model.GRAPH}
