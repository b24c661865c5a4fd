"""`ml new`: what it guesses of a table, what it writes, and what it refuses."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.cli.commands.check import release_files
from ml.core.errors import Refused
from ml.repository import project_metrics
from ml.repository.new import LARGEST, TEMPLATES
from ml.repository.new import new as project
from ml.repository.profile import FEWEST_ROWS, Choices, profile
from ml.repository.project_metrics import evaluation_problems, sweep_problems
from ml.specs.check.check import survey
from ml.toolkit.datasets import read_dataset
from policies.promotion import gate_settings
from tests.conftest import ROOT
from tests.named import spans, wrong
from tests.release.test_commands import ml
from tests.repository import tables

TABLES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "churn": (tables.churn, "Churn"),
    "houses": (tables.houses, "price"),
    "flowers": (tables.flowers, "species"),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without projects, with what their jobs and their code name."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ml" / "projects").mkdir(parents=True)
    for room in ("environments", "serving", "toolkit"):
        shutil.copytree(ROOT / "ml" / room, tmp_path / "ml" / room)
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / "requirements" / "main.lock", tmp_path / "requirements")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TABLES)
def test_what_is_written_is_sound(repository: Path, name: str) -> None:
    """`ml check` finds nothing, ruff finds nothing, and the table passes its own schema."""
    write, target = TABLES[name]
    made = project(name, write(repository / "rows.csv"), Choices(target))
    report = survey([made.folder], release_files())
    assert report.problems == () and report.specs >= 7
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(made.folder)]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *config], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    data = made.folder / "data"
    dataset = read_dataset(data / name, data / f"{name}.schema.yml")
    assert sum(map(len, dataset.parts.values())) == tables.COUNT
    requests = (made.folder / "endpoint/requests.jsonl").read_text().splitlines()
    (table,) = json.loads(requests[0]).values()
    assert table["columns"] == [column.name for column in dataset.features]
    every_row = [list(row) for part in dataset.parts.values() for row in part.rows]
    assert len(requests) == 5 and table["data"][0] in every_row


def test_a_project_is_short(repository: Path) -> None:
    """At most 150 lines of Python, and 60 of YAML besides what Azure ML asks for."""
    made = project("churn", tables.churn(repository / "rows.csv"), Choices("Churn"))

    def lines(*patterns: str) -> int:
        paths = [path for pattern in patterns for path in made.folder.glob(pattern)]
        assert paths
        return sum(len(path.read_text().splitlines()) for path in paths)

    assert lines("**/*.py") <= 150
    assert lines("*.yml", "data/*.schema.yml") <= 60


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "churn",
            {"task": "binary", "positive": "Yes", "id": "customerID", "slices": ["Contract"]},
        ),
        ("houses", {"task": "regression", "primary_metric": "mae", "delimiter": ";"}),
        ("flowers", {"task": "multiclass", "slices": ["colour"], "delimiter": "\t"}),
    ],
)
def test_guesses(repository: Path, name: str, expected: dict[str, object]) -> None:
    """The task, the positive value, the id, the slices and the separator."""
    write, target = TABLES[name]
    found = profile(write(repository / "rows.csv"), Choices(target))
    assert expected.items() <= found.head.items()
    types = {column.name: (column.type, column.optional) for column in found.columns}
    if name == "churn":
        assert types["Total.Charges"] == ("float", True) and types["tenure"] == ("integer", False)
        assert types["customerID"] == ("id", False)


def test_what_a_person_says_comes_first(repository: Path) -> None:
    """Metric, positive value, slice, group and time."""
    path = tables.churn(repository / "rows.csv")
    choices = Choices("Churn", primary_metric="f1", positive="No", slice="tenure", group="Contract")
    head = profile(path, choices).head
    assert head["primary_metric"] == "f1" and head["positive"] == "No"
    assert head["slices"] == ["tenure"] and head["group"] == "Contract"
    found = profile(path, Choices("tenure", task="multiclass"))
    assert found.classes == 72 and found.primary_metric == "log_loss"


def test_a_predicted_quantile(repository: Path) -> None:
    """LightGBM's objective follows the metric, and the constant to beat is that quantile."""
    path = tables.houses(repository / "rows.csv")
    made = project("houses", path, Choices("price", primary_metric="quantile_loss_90"))
    code = (made.folder / "train.py").read_text()
    assert '"objective": "quantile",' in code and '"alpha": 0.9,' in code
    median = profile(path, Choices("price")).same_answer
    assert made.profile.same_answer < median / 2
    assert survey([made.folder], release_files()).problems == ()


def test_names_that_yaml_would_read_otherwise(repository: Path) -> None:
    """Columns and classes called yes, null or 1: texts they stay."""
    path = repository / "rows.csv"
    lines = [f"{at % 7},{('on', 'off')[at % 3 == 0]},{at % 2}" for at in range(FEWEST_ROWS)]
    path.write_text("\n".join(["yes,null,1", *lines]))
    made = project("odd", path, Choices("null"))
    data = made.folder / "data"
    head = yaml.safe_load((data / "odd.schema.yml").read_text())
    assert (head["target"], head["positive"]) == ("null", "off")
    dataset = read_dataset(data / "odd", data / "odd.schema.yml")
    assert [column.name for column in dataset.features] == ["yes", "1"]


def test_spaces_around_names_and_a_byte_order_mark(repository: Path) -> None:
    """As spreadsheets and old data sets have them: neither is a part of a name or a value."""
    path = repository / "rows.csv"
    lines = [f"{at % 7}, {('on', 'off')[at % 3 == 0]}, {at}" for at in range(FEWEST_ROWS)]
    path.write_text("\n".join(["size, state, row id", *lines]), encoding="utf-8-sig")
    made = project("spaces", path, Choices("state"))
    data = made.folder / "data"
    dataset = read_dataset(data / "spaces", data / "spaces.schema.yml")
    assert [column.name for column in dataset.features] == ["size"]
    assert (dataset.about.id, dataset.about.positive) == ("row id", "off")


def test_a_split_by_time_is_asked_of_every_version(repository: Path) -> None:
    """The gate `leakage` then requires that the test is later than training."""
    path = repository / "rows.csv"
    lines = [
        f"{at % 7},{('on', 'off')[at % 3 == 0]},2026-01-{1 + at // 30:02}" for at in range(800)
    ]
    path.write_text("\n".join(["size,state,day", *lines]))
    made = project("daily", path, Choices("state", time="day"))
    assert "time.not_later" in (made.folder / "gates.yml").read_text()
    assert survey([made.folder], release_files()).problems == ()
    data = made.folder / "data"
    dataset = read_dataset(data / "daily", data / "daily.schema.yml")
    assert dataset.about.time == "day" and dataset.leakage()[0].value == 0


def test_data_in_a_datastore(repository: Path) -> None:
    """The asset names it, and the table is not copied."""
    where = "azureml://datastores/workspaceblobstore/paths/churn/"
    path = tables.churn(repository / "sample.csv")
    made = project("churn", path, Choices("Churn"), where)
    assert yaml.safe_load((made.folder / "data/churn.yml").read_text())["path"] == where
    assert not list(made.folder.rglob("*.csv"))
    assert survey([made.folder], release_files()).errors == ()


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("9lives", Choices("Churn"), "error[bad-name]"),
        ("x" * 40, Choices("Churn"), "error[bad-name]"),
        ("taken", Choices("Churn"), "error[project-exists]"),
        ("churn", Choices("Chrun"), "did you mean `Churn`?"),
        ("churn", Choices("Churn", slice="Contrat"), "did you mean `Contract`?"),
        ("churn", Choices("Churn", task="ranking"), "error[no-such-task]"),
        ("churn", Choices("Churn", task="regression"), "error[wrong-target]"),
        ("churn", Choices("customerID"), "error[wrong-target]"),
        ("churn", Choices("Churn", primary_metric="mae"), "error[no-such-metric]"),
        ("churn", Choices("Churn", positive="Maybe"), "one of: No, Yes"),
        ("churn", Choices("Total.Charges"), "error[empty-target]"),
    ],
)
def test_what_cannot_be_written_is_refused(
    repository: Path, name: str, choices: Choices, message: str
) -> None:
    """With what is wrong, and nothing is written."""
    (repository / "ml/projects/taken").mkdir()
    path = tables.churn(repository / "rows.csv")
    with pytest.raises(Refused) as refused:
        project(name, path, choices)
    assert message in str(refused.value)
    assert [one.name for one in (repository / "ml/projects").iterdir()] == ["taken"]


def test_tables_that_are_none_are_refused(repository: Path) -> None:
    """Too few rows, two columns of one name, no text, no file, too many bytes for git."""
    path = repository / "rows.csv"
    tables.churn(path, FEWEST_ROWS - 1)
    cases = {"too-few-rows": path.read_bytes()}
    cases |= {"bad-header": b"a,a\n" + b"1,2\n" * 700, "unreadable": bytes(range(256)) * 9}
    cases |= {"too-large-for-git": b"a,b\n" * (LARGEST // 4 + 1)}
    for code, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(Refused, match=code):
            project("churn", path, Choices("a" if code == "bad-header" else "Churn"))
    with pytest.raises(Refused, match="unreadable"):
        project("churn", repository / "gone.csv", Choices("Churn"))


def test_the_command(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files on stdout; what was found and the next commands on stderr."""
    path = tables.churn(repository / "rows.csv")
    code, out, err = ml(capsys, "new", "churn", "--table", str(path), "--target", "Churn")
    assert code == 0 and "ml/projects/churn/train.py" in out.splitlines()
    assert "binary: 4 features" in err and "ml run ml/projects/churn/jobs/sweep.yml" in err
    assert "not features: customerID (id)\n" in err
    code, _, err = ml(capsys, "new", "churn", "--table", str(path), "--target", "Churn")
    assert code == 2 and "error[project-exists]" in err


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "message"),
    [
        ("data/churn.schema.yml", "auc", "log_los", 6, "did you mean `log_loss`?"),
        ("data/churn.schema.yml", "auc", "mae", 6, "expected: one of accuracy, log_loss"),
        ("data/churn.schema.yml", "slices:", "slice:", 10, "did you mean `slices`?"),
        ("evaluate.py", "about.primary_metric,", '"log_los",', 43, "did you mean `log_loss`?"),
        ("evaluate.py", "about.primary_metric,", '"mae",', 43, "a metric of a binary model"),
        ("gates.yml", "test.auc: 0.5}", "test.acu: 0.5}", 8, "did you mean `auc`?"),
        ("gates.yml", "{test.auc: 0.1", "{test.gain_at_1: 0.1", 10, "a metric of a binary model"),
        ("jobs/sweep.yml", "n_auc", "n_acu", 32, "did you mean `validation_auc`?"),
        ("jobs/sweep.yml", "validation_auc", "auc", 32, "did you mean `validation_auc`?"),
        ("jobs/sweep.yml", "validation_auc", "loss", 32, "expected: a metric of a binary model"),
    ],
)
def test_a_wrong_primary_metric_is_refused_with_its_line(
    repository: Path, file: str, old: str, new: str, line: int, message: str
) -> None:
    """By `ml check`, before anything is trained; in the schema or as a text in evaluate.py."""
    made = project("churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    path = made.folder / file
    text = path.read_text().replace("task=about.task", 'task="binary"')
    assert old in text
    path.write_text(text.replace(old, new))
    (problem,) = survey([made.folder], release_files()).errors
    assert problem.code in ("wrong-schema", "wrong-primary-metric")
    assert problem.place and problem.place.line == line and message in str(problem)
    assert str(problem.place.path).endswith(file)


def test_every_gate_with_entries_by_metric_is_read() -> None:
    """Of what gates.yml may have."""
    entries = {
        (gate, name)
        for gate, kinds in gate_settings.SETTINGS.items()
        for name, kind in kinds.items()
        if kind.entries
    }
    assert entries == {*project_metrics.SETTINGS, ("leakage", "at_most")}


@pytest.mark.parametrize("code", ['"loss"', 'f"{part}_loss"', "mlflow.autolog()"])
def test_a_sweep_may_compare_what_its_own_code_logs(repository: Path, code: str) -> None:
    """A text of train.py, one that is computed in part, and a library that logs by itself."""
    made = project("churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    sweep = made.folder / "jobs/sweep.yml"
    name = "validation_loss" if "part" in code else "loss"
    sweep.write_text(sweep.read_text().replace("validation_auc", name))
    assert [problem.code for problem in survey([sweep], release_files()).errors]
    train = made.folder / "train.py"
    train.write_text(train.read_text() + f"\nlogged = {code}\n")
    assert not survey([sweep], release_files()).errors


def test_a_sweep_without_a_table_is_refused_for_a_slip_alone(tmp_path: Path) -> None:
    """Other code may log anything; a pipeline's sweep is read as well, a broken file is not."""
    folder = tmp_path / "ml/projects/own"
    (folder / "jobs").mkdir(parents=True)
    (folder / "evaluate.py").write_text('evaluate(task="binary", primary_metric="auc")\n')
    job = folder / "jobs/pipeline.yml"
    for name, is_right in {
        "validation_auc": True,
        "hits": True,
        "validation_log_los": False,
    }.items():
        steps = f"one: {{type: sweep, objective: {{primary_metric: {name}}}}}"
        job.write_text(f"type: pipeline\njobs:\n  zero: 1\n  {steps}\n")
        problems = list(sweep_problems(job))
        assert (problems == []) is is_right
    assert problems[0].place and problems[0].place.line == 4
    (folder / "evaluate.py").write_text("evaluate(task=computed(), primary_metric=other)\n")
    assert list(sweep_problems(job)) == []  # the task is not written


def test_a_constant_is_read_where_it_stands(tmp_path: Path) -> None:
    """And a ranking is the task of an Evaluation that names none; other calls are not read."""
    path = tmp_path / "evaluate.py"
    path.write_text(
        'PRIMARY = "gain_at_2"\n'
        "Evaluation(primary_metric=PRIMARY)\n"
        'other(primary_metric="x")\nEvaluation(primary_metric=made(), task="binary")\n'
    )
    (problem,) = evaluation_problems(path)
    assert problem.place and problem.place.line == 1 and "gain_at_1" in problem.expected
    path.write_text("def broken(:")
    assert list(evaluation_problems(path)) == []
    assert list(evaluation_problems(tmp_path / "gone.py")) == []


def test_the_page_names_what_is_written(repository: Path) -> None:
    """Files of the project, and commands with their options."""
    page = (ROOT / "ml/projects/SECOND_MODEL.md").read_text()
    made = project("churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    assert [span for span in spans(page) if wrong(span, made.folder)] == []
    assert len(made.files) == 16 and "16 files" in page


def signatures(page: str) -> Iterator[tuple[Any, str, str]]:
    """(module, name, what the page says of it): a signature, or the type of an attribute."""
    for module, block in re.findall(r"^\*\*`(ml[\w.]+)`\*\*\n\n```\n(.*?)^```", page, re.M | re.S):
        code = re.sub(r" *#.*", "", block)
        for statement in re.split(r"\n(?=\w)", code.strip()):
            match = re.match(r"([\w.]+)(.*)", statement, re.S)
            assert match
            yield importlib.import_module(module), match[1], match[2]


def bare(text: str) -> str:
    """A signature without spaces, quotes, `self` and what follows from the kind of thing."""
    text = re.sub(r"[\s'\"]", "", text).replace("<factory>", "{}").replace(",)", ")")
    return re.sub(r"^\(self,?", "(", text)


def test_the_signatures_of_the_page_are_those_of_the_code() -> None:
    """Names, order, types, defaults and results, of functions, classes and attributes."""
    page = (ROOT / "ml/projects/SECOND_MODEL.md").read_text()
    names = set()
    for module, name, stated in signatures(page):
        owner, _, last = name.rpartition(".")
        within = getattr(module, owner) if owner else module
        names.add(name)
        if stated.startswith(":"):
            of = inspect.getattr_static(within, last, None)
            kind = of.fget if isinstance(of, property | cached_property) else None
            types = inspect.get_annotations(within)
            actual = ": " + str(inspect.signature(kind).return_annotation if kind else types[last])
        else:
            of = getattr(within, last)
            actual = str(inspect.signature(of))
            if isinstance(of, type):
                actual = re.sub(r" -> '?None'?$", "", actual)
        assert bare(stated) == bare(actual), name
    code = "".join(file.read_text() for file in TEMPLATES.rglob("*.py.jinja"))
    imports = re.findall(r"^from (ml\.(?:toolkit|serving)\S+) import (.+)$", code, re.M)
    stated_names = {name.partition(".")[0] for name in names}
    for module, imported in imports:
        assert f"**`{module}`**" in page and {*imported.split(", ")} <= stated_names
