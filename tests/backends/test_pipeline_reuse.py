"""Reuse of unchanged steps: when it is right, and everything that forbids it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.core.home import home as home_folder
from ml.core.home import tracking_uri
from tests.backends.conftest import LOG
from tests.backends.pipelines import RunPipeline, planned, statuses
from tests.backends.pipelines import repository as repository
from tests.backends.pipelines import run_pipeline as run_pipeline

TWO = """
inputs: {word: hello, data: {type: uri_folder, path: ./data}}
jobs:
  a:
    type: command
    environment: {image: example, conda_file: ./conda.yml}
    environment_variables: {WORD: w}
    code: ./code
    command: >-
      cat ${{inputs.d}}/t note.txt > ${{outputs.o}}/t && echo ${{inputs.w}} >> ${{outputs.o}}/t
    inputs: {w: "${{parent.inputs.word}}", d: "${{parent.inputs.data}}"}
    outputs: {o: {type: uri_folder}}
  b: {@, command: "cat ${{inputs.x}}/t > ${{outputs.o}}",
    inputs: {x: "${{parent.jobs.a.outputs.o}}"}, outputs: {o: {type: uri_file}}}
"""
BOTH, NEITHER = {"a": "reused", "b": "reused"}, {"a": "Completed", "b": "Completed"}
Change = Callable[[Path, str], str]


@pytest.fixture(autouse=True)
def files(repository: Path) -> None:
    """The data, the code and the environment of the first step."""
    for name, text in (("data/t", "data\n"), ("code/note.txt", "note\n"), ("conda.yml", "name: a")):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)


def edit(name: str, text: str) -> Change:
    def change(repository: Path, spec: str) -> str:
        (repository / name).write_text(text)
        return spec

    return change


def respell(before: str, after: str) -> Change:
    def change(repository: Path, spec: str) -> str:
        assert before in spec
        return spec.replace(before, after)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (respell("hello", "hello"), BOTH),
        (respell("jobs:", "tags: {x: y}\njobs:"), BOTH),
        (respell("code: ./code", "code: ./code\n    display_name: other"), BOTH),
        (respell("note.txt >", "./note.txt >"), {"a": "Completed", "b": "reused"}),
        (edit("code/note.txt", "changed\n"), NEITHER),
        (edit("code/more.txt", "more\n"), {"a": "Completed", "b": "reused"}),
        (respell("word: hello", "word: bye"), NEITHER),
        (edit("data/t", "other\n"), NEITHER),
        (edit("data/u", "more\n"), {"a": "Completed", "b": "reused"}),
        (edit("conda.yml", "name: b"), {"a": "Completed", "b": "reused"}),
        (respell("image: example", "image: other"), {"a": "Completed", "b": "reused"}),
        (respell("WORD: w", "WORD: v"), {"a": "Completed", "b": "reused"}),
        (respell("jobs:", "settings: {force_rerun: true}\njobs:"), NEITHER),
        (respell("inputs: {x:", "inputs: {more: 1, x:"), {"a": "reused", "b": "Completed"}),
    ],
)
def test_what_changes_a_step(
    run_pipeline: RunPipeline, repository: Path, change: Change, expected: dict[str, str]
) -> None:
    """A step whose result is the same byte for byte lets the steps after it be reused."""
    first = run_pipeline(TWO)
    assert statuses(first) == NEITHER
    again = run_pipeline(change(repository, TWO))
    assert (again.status, statuses(again)) == ("Completed", expected)


def test_a_step_that_is_not_deterministic(run_pipeline: RunPipeline) -> None:
    text = """
jobs:
  a:
    type: command
    component: {type: command, is_deterministic: SAID, command: "echo ${{outputs.o}} >/dev/null",
      environment: azureml:e:1, outputs: {o: {type: uri_folder}}}
"""
    for said, expected in (("false", "Completed"), ("true", "reused")):
        run_pipeline(text.replace("SAID", said))
        assert statuses(run_pipeline(text.replace("SAID", said))) == {"a": expected}


def test_a_reused_step_has_all_that_the_first_had(
    run_pipeline: RunPipeline, repository: Path
) -> None:
    """Outputs, metrics, parameters, a child run that says where they come from."""
    script = LOG + "log('loss', 0.5); Path(sys.argv[1]).write_text('model')"
    (repository / "code" / "script.py").write_text(script)
    text = """
outputs: {model: {type: uri_file}}
jobs:
  a: {@, code: ./code, command: "python script.py ${{outputs.o}} ${{inputs.n}}", inputs: {n: 3},
    outputs: {o: "${{parent.outputs.model}}"}}
"""
    first, again, third = (run_pipeline(text) for _ in range(3))
    step = again.step("a")
    assert step.reused_from == third.step("a").reused_from == first.step("a").name
    assert (step.metrics, step.parameters) == ({"loss": 0.5}, {"n": 3})
    assert again.outputs["model"].read_text() == "model"
    tracked = MlflowClient(tracking_uri()).get_run(step.id)
    assert tracked.data.tags["reused_from"] == first.step("a").name
    assert tracked.data.tags["mlflow.parentRunId"] == again.id
    assert tracked.data.metrics == {"loss": 0.5}
    assert LocalRuns().find(step.name) == step


def test_reused_outputs_outlive_the_first_run(run_pipeline: RunPipeline) -> None:
    """Whoever clears away the run that wrote them takes nothing from the runs that reused them."""
    first = run_pipeline(TWO)
    second = run_pipeline(TWO)
    shutil.rmtree(first.folder)
    assert second.step("b").outputs["o"].read_text() == "data\nnote\nhello\n"
    assert statuses(run_pipeline(TWO)) == BOTH


def test_outputs_that_were_changed_are_not_reused(run_pipeline: RunPipeline) -> None:
    """A byte more in what a step wrote: it runs again, and what it writes is right again."""
    first = run_pipeline(TWO)
    with (first.step("a").outputs["o"] / "t").open("a") as file:
        file.write("tampered\n")
    again = run_pipeline(TWO)
    assert statuses(again) == {"a": "Completed", "b": "reused"}
    assert (again.step("a").outputs["o"] / "t").read_text() == "data\nnote\nhello\n"


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"folder": "/nowhere", "outputs": {}}'])
def test_an_index_that_is_damaged(run_pipeline: RunPipeline, damage: str) -> None:
    """Is as none: the step runs."""
    run_pipeline(TWO)
    for path in (home_folder() / "reusable").iterdir():
        path.write_text(damage)
    assert statuses(run_pipeline(TWO)) == NEITHER


def test_a_step_that_failed_is_not_reused(run_pipeline: RunPipeline) -> None:
    """What had completed before it is."""
    text = TWO.replace('"cat ${{inputs.x}}/t', '"false && cat ${{inputs.x}}/t')
    run_pipeline(text)
    assert statuses(run_pipeline(text)) == {"a": "reused", "b": "Failed"}


WITH_OUTPUT = TWO.replace("\njobs:", "\noutputs: {end: {type: uri_file}}\njobs:").replace(
    "outputs: {o: {type: uri_file}}}", 'outputs: {o: "${{parent.outputs.end}}"}}'
)


@pytest.mark.parametrize(
    ("spec", "recalled"),
    [
        (WITH_OUTPUT, True),
        (WITH_OUTPUT.replace("hello", "bye"), False),
        ("settings: {force_rerun: true}" + WITH_OUTPUT, False),
    ],
)
def test_what_was_done_before_is_recalled(
    run_pipeline: RunPipeline, repository: Path, spec: str, recalled: bool
) -> None:
    """Without a run: the step that wrote the output, if every step of the pipeline is kept."""
    backend, made = LocalBackend(), planned(repository, WITH_OUTPUT)
    assert backend.cached(made, "end") is None
    done = run_pipeline(WITH_OUTPUT)
    found = backend.cached(planned(repository, spec), "end")
    assert (found == done.step("b")) is recalled and (found is None) is not recalled
    assert [run.name for run in LocalRuns().all()] == [done.name]


@pytest.mark.attack("The index of finished steps names another run's outputs")
@pytest.mark.parametrize("how", ["whole", "folder", "outputs", "renamed"])
def test_the_outputs_of_another_step_are_not_taken_over(
    run_pipeline: RunPipeline, how: str
) -> None:
    """The step's own record says what it ran with; the index has to agree with it."""
    other = {path.name for path in _index(run_pipeline, TWO.replace("hello", "bye"))}
    mine = {path.name for path in _index(run_pipeline, TWO)} - other
    index = home_folder() / "reusable"
    for name in mine:
        theirs = [json.loads((index / each).read_text()) for each in sorted(other)]
        record = json.loads((index / name).read_text())
        (match,) = (each for each in theirs if _step(each) == _step(record))
        if how == "renamed":
            shutil.copy(
                next(index / each for each in other if _same(index / each, match)), index / name
            )
        else:
            forged = {"whole": match, "folder": record | {"folder": match["folder"]}}
            forged["outputs"] = record | {"outputs": match["outputs"]}
            (index / name).write_text(json.dumps(forged[how]))
    again = run_pipeline(TWO)
    assert statuses(again) == NEITHER
    assert again.step("b").outputs["o"].read_text() == "data\nnote\nhello\n"


def _index(run_pipeline: RunPipeline, text: str) -> list[Path]:
    run_pipeline(text)
    return list((home_folder() / "reusable").iterdir())


def _step(record: dict[str, str]) -> str:
    return Path(record["folder"]).name


def _same(path: Path, record: dict[str, str]) -> bool:
    return bool(json.loads(path.read_text()) == record)


IMPORTS = """
jobs:
  a:
    type: command
    environment: azureml:e:1
    code: .
    command: python -m ml.projects.one.train > ${{outputs.o}}
    outputs: {o: {type: uri_file}}
"""
NAMED = "from ml.projects.named import code"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "command", "changed", "reused"),
    [
        (NAMED, "", "other", True),
        (NAMED, "", "named", False),
        (NAMED, "", "beneath", False),
        (NAMED, "", "one", False),
        # What looks into the folder of projects by itself may find any of them.
        (
            "import pkgutil, ml.projects as all; [*pkgutil.iter_modules(all.__path__)]",
            "",
            "other",
            False,
        ),
        (
            "import importlib; importlib.import_module('ml.projects.' + 'oth' + 'er.code')",
            "",
            "other",
            False,
        ),
        ("import os; os.listdir(os.path.join('ml', 'projects'))", "", "other", False),
        ("", " && ls ml/projects", "other", False),
        ("", " && python -m ml.projects.other.code", "other", False),
    ],
)
def test_other_projects_change_nothing_unless_they_can_be_imported(
    repository: Path,
    run_pipeline: RunPipeline,
    train: str,
    command: str,
    changed: str,
    reused: bool,
) -> None:
    """By the plan, by the project's code, or by what looks for projects by itself."""
    (repository / ".amlignore").write_text("*\n!/ml/**/*.py\n")
    texts = {"one/train": train, "named/code": "from ..beneath import code", "beneath/code": ""}
    for name, text in {**texts, "other/code": ""}.items():
        path = repository / f"ml/projects/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    spec = IMPORTS.replace("train >", f"train{command} >")
    first = run_pipeline(spec)
    assert statuses(first) == {"a": "Completed"}, first.error
    (repository / f"ml/projects/{changed}/new.py").write_text("RATE = 2")
    assert statuses(run_pipeline(spec)) == {"a": "reused" if reused else "Completed"}


@pytest.mark.slow
@pytest.mark.attack("A step imports a project that its reuse does not count")
def test_what_reuse_does_not_count_is_not_there(
    repository: Path, run_pipeline: RunPipeline
) -> None:
    """A name that no text has is a module that no run has: the step fails, and is told."""
    (repository / ".amlignore").write_text("*\n!/ml/**/*.py\n")
    hidden = "import importlib; importlib.import_module(__package__[:-3] + 'o' + 'ther.code')"
    for name, text in {"one/train": hidden, "other/code": "print('hidden')"}.items():
        path = repository / f"ml/projects/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = run_pipeline(IMPORTS)
    assert statuses(run) == {"a": "Failed"}
    assert "No module named 'ml.projects.other'" in str(run.steps[0].error)
