"""`ml check`: files and folders, exit codes, the three formats, the closing line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.cli.app import main
from ml.cli.commands.check import annotation
from ml.core.errors import Place, Problem
from ml.core.terminal import shown
from ml.specs.check.check import survey
from tests.specs.broken import COMMAND, LIMITS, SPACE, SWEEP
from tests.specs.samples import SAMPLES

WRONG = COMMAND + "resources: {instance_count: -1}\n"
DOUBTFUL = (
    SWEEP
    + SPACE
    + LIMITS
    + "sampling_algorithm: bayesian\nearly_termination: {type: median_stopping}\n"
)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def specs(repo: Path) -> Path:
    """One right spec, one wrong, one doubtful, and YAML that is no spec."""
    (repo / "component.yml").unlink()
    (repo / "jobs").mkdir()
    (repo / "jobs" / "right.yml").write_text(COMMAND)
    (repo / "jobs" / "wrong.yaml").write_text(WRONG)
    (repo / "jobs" / "doubtful.yml").write_text(DOUBTFUL)
    (repo / "jobs" / "workflow.yml").write_text("on: push\njobs: {}\n")
    (repo / "jobs" / "template.yml").write_text("{{ not yaml }\n")
    (repo / ".hidden").mkdir()
    (repo / ".hidden" / "x.yml").write_text(WRONG)
    (repo / ".venv").mkdir()
    (repo / ".venv" / "x.yml").write_text(WRONG)
    return repo


def test_the_repository(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a path every spec of the repository is checked, whatever the working directory."""
    assert run() == 2
    out = capsys.readouterr().out
    assert "error[number-out-of-range]: jobs/wrong.yaml:3: `instance_count` is -1" in out
    assert "warning[bayesian-early-termination]: jobs/doubtful.yml:" in out
    assert out.splitlines()[-1] == "3 specs, 1 error, 1 warning (3 other YAML files)"


def test_names_of_files(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that git tracks, of the whole repository alone."""
    (specs / "jobs" / "wrong.yaml").unlink()
    (specs / "jobs" / "HEAD").write_text("ref: refs/heads/main\n")
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=specs, check=True)
    assert run() == 2
    out = capsys.readouterr().out
    assert "error[name-not-allowed]: jobs/HEAD:1: `jobs/HEAD`" in out
    assert run("jobs/right.yml") == 0


def test_outside_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that lies below is not checked unless it is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right.yml").write_text(COMMAND)
    assert run() == 2
    output = capsys.readouterr().err
    assert "error[no-repository]" in output and "a folder with a pyproject.toml" in output
    assert run("right.yml") == 0


def test_exit_codes(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 for right and for doubtful specs, 2 for wrong ones, for no spec and for no file."""
    assert run("jobs/right.yml") == 0
    assert capsys.readouterr().out == "1 spec, 0 errors, 0 warnings\n"
    assert run("jobs/doubtful.yml", "jobs/right.yml") == 0
    assert run("jobs") == 2
    assert run("jobs/workflow.yml") == 2
    assert "error[not-a-spec]" in capsys.readouterr().out
    assert run("jobs/template.yml") == 2
    assert run("jobs/gone.yml") == 2
    assert "error[missing-file]: `jobs/gone.yml` cannot be read" in capsys.readouterr().out


def test_a_broken_file_that_was_meant_as_a_spec(specs: Path) -> None:
    """In a folder a file that does not load counts when it says that it is a spec."""
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json\n"
    (specs / "jobs" / "wrong.yaml").write_text(COMMAND)
    assert run("jobs") == 0
    for line in (schema, "environment: azureml:e:1\n", "compute: 'azureml:c'\n"):
        (specs / "jobs" / "template.yml").write_text(line + "command: [\n")
        assert run("jobs") == 2
    (specs / "jobs" / "template.yml").write_text("# see azureml: it\ncommand: [\n")
    assert run("jobs") == 0


@pytest.mark.parametrize("content", [b"gates:\n\tquality: 1\n", b"a: 1\na: 2\n", b"\xff\xfea\x00"])
def test_a_broken_file_of_a_release_is_an_error_in_a_folder(specs: Path, content: bytes) -> None:
    """A pull request would pass that no release can read."""
    file = specs / "ml/projects/tiny/gates.yml"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    (problem,) = survey([specs / "ml"], {"ml/projects/*/gates.yml": lambda path: ()}).problems
    assert "ml/projects/tiny/gates.yml:" in str(problem)


def test_json(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON is on stdout alone and holds every problem; the closing line is on stderr."""
    assert run("jobs", "--format", "json") == 2
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["specs"], report["errors"], report["warnings"]) == (3, 1, 1)
    wrong = next(problem for problem in report["problems"] if problem["severity"] == "error")
    assert wrong["code"] == "number-out-of-range"
    assert (wrong["file"], wrong["line"]) == ("jobs/wrong.yaml", 3)
    assert wrong["expected"] == "at least 1" and wrong["source"]
    assert captured.err.startswith("3 specs, 1 error")
    assert run("jobs", "--json") == 2
    assert json.loads(capsys.readouterr().out) == report


def test_github(
    specs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each problem is a workflow command with file and line, which no other output may be."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with shown():
        assert run("jobs/wrong.yaml", "--format", "github") == 2
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "::error file=jobs/wrong.yaml,line=3,title=number-out-of-range"
        "::`instance_count` is -1%0Aexpected: at least 1%0Ahint: instance_count: 1"
    )


def test_github_escapes_what_would_end_the_command() -> None:
    """`%`, line ends, and in properties `:` and `,`, cannot forge a command of their own."""
    problem = Problem("x", "100%\n::error::forged", place=Place("a,b:c\n.yml", 1))
    assert annotation(problem) == (
        "::error file=a%2Cb%3Ac%0A.yml,line=1,title=x::100%25%0A::error::forged"
    )


def test_a_problem_of_a_shared_component_is_reported_once(
    specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two pipelines of one broken component, and the component: one problem."""
    (specs / "part.yml").write_text("name: p\ntype: command\nversion: '1'\ncommand: x\n"
                                    "environmen: azureml:e:1\n")  # fmt: skip
    for name in ("one", "two"):
        (specs / f"{name}.yml").write_text(
            "type: pipeline\ncompute: azureml:c\njobs: {s: {component: part.yml}}\n"
        )
    run("one.yml", "two.yml", "part.yml")
    assert capsys.readouterr().out.count("a command component has no `environment`") == 1


def test_every_sample_passes(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with a right spec of every kind has no errors and no warnings."""
    for name, (_, _, text) in SAMPLES.items():
        (repo / f"{name}.yml").write_bytes(text.encode())
    assert run() == 0
    last = f"{len(SAMPLES) + 1} specs, 0 errors, 0 warnings (1 other YAML file)\n"
    assert capsys.readouterr().out == last


def test_a_spec_without_read_permission_is_reported(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it is one; what passes unread would pass for checked."""
    (repo / "closed.yml").write_text("type: command\n")

    genuine = Path.read_bytes, Path.read_text

    def denied(path: Path, *_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    def guarded(number: int) -> Callable[..., object]:
        return lambda path, *given, **named: (
            denied(path) if path.name == "closed.yml" else genuine[number](path, *given, **named)
        )

    monkeypatch.setattr(Path, "read_bytes", guarded(0))
    monkeypatch.setattr(Path, "read_text", guarded(1))
    result = survey([repo])
    assert any("closed.yml" in str(problem) for problem in result.errors)


def test_a_wrong_name_of_a_deployment_is_not_called_an_endpoints(specs: Path) -> None:
    """Both have one form."""
    schema = "https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json"
    path = specs / "jobs" / "deployment.yml"
    path.write_text(f"$schema: {schema}\nname: {'a' * 33}\nendpoint_name: words\n")
    (problem,) = [each for each in survey([path]).errors if each.code == "bad-name"]
    assert "is not a valid endpoint or deployment name" in problem.actual
