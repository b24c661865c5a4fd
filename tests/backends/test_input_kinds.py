"""Every kind and mode of input, each read by a real job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.runs import Run
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.backends.pipelines import RunPipeline, repository, run_pipeline

__all__ = ["repository", "run_pipeline"]
JOB = """\
command: {command}
inputs: {inputs}
environment: azureml:e:1
compute: azureml:c
experiment_name: tests
"""
FOLDERS = ("uri_folder", "mltable", "custom_model", "mlflow_model", "triton_model")
# What azure-ai-ml takes; `eval_…` is for tables alone, and no input is `rw_mount`.
MODES = ("ro_mount", "download", "direct")
EVERY = [(kind, mode) for kind in FOLDERS for mode in MODES]
EVERY += [("mltable", "eval_mount"), ("mltable", "eval_download")]
MOUNTS = [("uri_folder", "ro_mount"), ("uri_folder", "direct"), ("mltable", "eval_mount")]
COPIES = [("uri_folder", "download"), ("mltable", "eval_download")]


def do(root: Path, command: str, inputs: str) -> Run:
    """Plans and runs the job."""
    (root / "job.yml").write_text(JOB.format(command=command, inputs=inputs))
    return LocalBackend().run(plan(load(Path("job.yml"))))


def printed(run: Run) -> str:
    return (run.folder / "logs" / "std_log.txt").read_text()


@pytest.fixture
def data(repository: Path) -> Path:
    """A folder that is anything: data, a table, a model."""
    folder = repository / "data"
    folder.mkdir()
    (folder / "MLTable").write_text("paths: [{file: ./a.csv}]\n")
    (folder / "a.csv").write_text("one\n")
    return folder


@pytest.mark.parametrize(("kind", "mode"), EVERY)
def test_folders(home: Path, repository: Path, data: Path, kind: str, mode: str) -> None:
    """Whatever its type and mode, the command gets the path of a folder with the files."""
    inputs = f"{{d: {{type: {kind}, path: ./data, mode: {mode}}}}}"
    run = do(repository, "cat ${{inputs.d}}/a.csv", inputs)
    assert (run.status, printed(run), run.warnings) == ("Completed", "one\n", ())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["uri_file", "custom_model"])
def test_files(home: Path, repository: Path, data: Path, kind: str, mode: str) -> None:
    """The path of the file itself, by its own name."""
    inputs = f"{{d: {{type: {kind}, path: ./data/a.csv, mode: {mode}}}}}"
    run = do(repository, "cat ${{inputs.d}} && basename ${{inputs.d}}", inputs)
    assert (run.status, printed(run)) == ("Completed", "one\na.csv\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [("1", "1"), ("0.5", "0.5"), ("true", "True"), ("word", "word"), ("'007'", "007")],
)
def test_literals(home: Path, repository: Path, value: str, text: str) -> None:
    """As Python spells them, which is what Azure ML puts into the command."""
    run = do(repository, "echo ${{inputs.x}}", f"{{x: {value}}}")
    assert printed(run) == f"{text}\n"


@pytest.mark.parametrize(("kind", "mode"), MOUNTS)
def test_a_job_that_writes_to_a_mount_is_told(
    home: Path, repository: Path, data: Path, kind: str, mode: str
) -> None:
    """On Azure ML it is read-only; here the file, the input and the way out are named."""
    inputs = f"{{d: {{type: {kind}, path: ./data, mode: {mode}}}}}"
    run = do(repository, "echo x >> ${{inputs.d}}/a.csv; touch ${{inputs.d}}/new", inputs)
    assert run.status == "Completed"
    (warning,) = run.warnings
    assert (warning.code, str(warning.place)) == ("input-changed", "job.yml:2")
    assert "a.csv, new in data" in warning.actual and "mode: download" in warning.hint


@pytest.mark.parametrize(
    "command", ["rm ${{inputs.d}}/a.csv", "echo x > ${{inputs.d}}/a.csv; exit 3"]
)
def test_removing_and_failing_count_too(
    home: Path, repository: Path, data: Path, command: str
) -> None:
    """A run that failed may have failed for it."""
    run = do(repository, command, "{d: {type: uri_folder, path: ./data}}")
    assert [warning.code for warning in run.warnings] == ["input-changed"]


@pytest.mark.parametrize(("kind", "mode"), COPIES)
def test_a_copy_may_be_changed(
    home: Path, repository: Path, data: Path, kind: str, mode: str
) -> None:
    """The original stays as it is, and nothing is said."""
    inputs = f"{{d: {{type: {kind}, path: ./data, mode: {mode}}}}}"
    run = do(repository, "echo x > ${{inputs.d}}/a.csv", inputs)
    assert run.warnings == ()
    assert (data / "a.csv").read_text() == "one\n"


def test_what_is_only_read_is_not_told(home: Path, repository: Path, data: Path) -> None:
    """Reading changes no time of change."""
    before = (data / "a.csv").stat().st_mtime_ns
    run = do(repository, "cat ${{inputs.d}}/*", "{d: {type: uri_folder, path: ./data}}")
    assert run.warnings == () and (data / "a.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}", "plain\n"),
        ("{note: hi}", "plain --note hi\n"),
        ("{flag: true}", "plain --flag True\n"),
    ],
)
def test_optional_inputs_of_a_component(
    run_pipeline: RunPipeline, repository: Path, given: str, said: str
) -> None:
    """`$[[…]]` goes when an input inside it is not given, and stays without its brackets."""
    (repository / "component.yml").write_text(
        "type: command\nname: c\nversion: 1\nenvironment: azureml:e:1\n"
        "inputs:\n  note: {type: string, optional: true}\n  flag: {type: boolean, optional: true}\n"
        "outputs: {o: {type: uri_file}}\n"
        "command: echo plain $[[--note ${{inputs.note}}]] $[[--flag ${{inputs.flag}}]]"
        " > ${{outputs.o}}\n"
    )
    run = run_pipeline(
        f"jobs:\n  a: {{type: command, component: ./component.yml, inputs: {given}}}\n"
    )
    assert run.step("a").outputs["o"].read_text() == said
