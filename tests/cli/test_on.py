"""`--on`: the run commands on a backend that is registered by name and is not the local one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml.backends.azure.workspace import VARIABLES
from ml.backends.choice import BACKENDS
from ml.cli.app import main
from tests.stand_ins.memory import MemoryBackend

SPEC = """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
experiment_name: tests
command: echo ${{inputs.word}} | tee ${{outputs.note}}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
inputs: {word: hello}
outputs:
  note: {type: uri_file}
"""

Ml = Callable[..., tuple[int, str, str]]


@pytest.fixture
def memory(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemoryBackend]:
    """A backend in memory, which `--on memory` names, and a repository with one job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "job.yml").write_text(SPEC)
    backend = MemoryBackend(tmp_path / "memory")
    BACKENDS["memory"] = lambda options: backend
    yield backend
    del BACKENDS["memory"]


@pytest.fixture
def ml(memory: MemoryBackend, capsys: pytest.CaptureFixture[str]) -> Ml:
    """Runs `ml …` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        try:
            main([*words])
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_the_run_commands_know_a_backend_by_its_port(
    ml: Ml, memory: MemoryBackend, own_home: Path
) -> None:
    """Run, list, show, logs and clean; nothing is left in the local home."""
    code, out, err = ml("run", "job.yml", "--on", "memory", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["status"] == "Completed" and "memory: compute" in err
    code, _, err = ml("run", "job.yml", "--on", "memory", "--set", "inputs.word=bye")
    assert code == 0 and "memory_2: Completed" in err
    on = ("--on", "memory")
    code, out, _ = ml("runs", "list", "--json", *on)
    assert code == 0 and [run["name"] for run in json.loads(out)] == ["memory_2", "memory_1"]
    code, out, _ = ml("runs", "logs", "memory_1", *on)
    assert (code, out) == (0, "hello\n")
    code, out, err = ml("runs", "show", "latest", *on)
    assert code == 0 and "memory_2" in out, err
    code, _, err = ml("runs", "clean", "--keep", "0", "--yes", *on)
    assert code == 33 and "not-cleaned-here" in err  # it has nothing that cleans
    assert ml("runs", "cancel", "memory_1", *on)[0] == 2
    assert not (own_home / "jobs").exists()
    code, _, err = ml("runs", "list")
    assert code == 0 and "no run" in err


def test_a_backend_that_does_not_exist_is_refused(ml: Ml) -> None:
    """The error lists the backends that can be used, and no other."""
    for words in (("run", "job.yml"), ("runs", "list")):
        ended, _, err = ml(*words, "--on", "moon")
        assert ended == 2 and "error[unknown-place]: --on moon" in err
        assert "expected: --on local or --on azure or --on memory\n" in err


def test_azure_asks_for_its_settings(ml: Ml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable that is missing, with the command that prints its value; nothing is sent."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for words in (("run", "job.yml"), ("runs", "list"), ("assets", "plan")):
        ended, _, err = ml(*words, "--on", "azure")
        assert ended == 2
        for name in VARIABLES:
            assert f"error[no-workspace-named]: --on azure: the variable {name} is not set" in err


def test_hints_repeat_the_backend_of_the_run(ml: Ml) -> None:
    """The next command finds the run where it was made."""
    on = ("--on", "memory")
    _, _, err = ml("run", "job.yml", *on)
    assert "next: ml report memory_1 --on memory" in err
    assert ml("report", "memory_1", *on)[0] == 0
