"""What a person gets wrong: said with a hint, and what was there before stays as it was."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml.backends.endpoints import Live
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint, processes, server
from ml.cli.app import main
from ml.core import home
from ml.release.versions import store
from tests.backends.serving.servers import deployment
from tests.local import BACKEND
from tests.release.tiny import model_folder

GOOD = "code: code\ncommand: echo working\nenvironment: azureml:e:1\n"
SWEEP = """\
type: sweep
trial: {{command: "python -c \\"{script}\\" ${{{{search_space.x}}}}", environment: "azureml:e:1"}}
objective: {{goal: maximize, primary_metric: score}}
search_space: {{x: {{type: choice, values: [1]}}}}
limits: {{max_total_trials: 1}}
"""
NAN = "import mlflow; mlflow.log_metric('score', float('nan'))"
# Name → the spec (None: no such file), the exit code, the problem's code.
CASES: dict[str, tuple[str | None, int, str]] = {
    "missing file": (None, 2, "missing-file"),
    "unreadable YAML": ("command: [echo\n" + GOOD, 2, "unreadable-yaml"),
    "wrong type": (GOOD + "limits: {timeout: soon}\n", 2, "wrong-type"),
    "unknown field": (GOOD.replace("environment", "enviroment"), 2, "unknown-field"),
    "a script that exits 3": (GOOD.replace("echo working", "exit 3"), 1, "script-failed"),
    "NaN as the primary metric": (SWEEP.format(script=NAN), 1, "metric-not-finite"),
    "a trial that never logs": (SWEEP.format(script="print(1)"), 1, "metric-missing"),
    "a full disk": (GOOD, 1, "disk-full"),
}


@pytest.fixture
def served(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A repository, with a run that completed, a registered version, and a model that is served."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/script.py").write_text("print(1)\n")
    (tmp_path / "first.yml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    assert ml("run", "first.yml") == 0
    BACKEND.registry.register("tiny", "tiny", store(model_folder(tmp_path / "model")), "run1")
    made = deployment(tmp_path / "echo")
    live = Live(server.start(endpoint.folder("echo") / "blue", made), made)
    endpoint.switch("echo", live)
    endpoint.start_router("echo")
    yield live
    endpoint.stop("echo")


def ml(*words: str) -> int:
    """The exit code of `ml …`."""
    try:
        main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def what_there_is(first: str) -> dict[str, object]:
    """The first run with its files, every version with its model's files, what answers."""
    folders = (home.jobs() / first, home.home() / "models")
    router = endpoint.router("echo")
    assert router is not None
    answer = server.score(router.port, {"question": "how?"})
    assert answer.status == 200
    return {
        "run": LocalRuns().find(first),
        "files": {
            str(path): path.read_bytes()
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file()
        },
        "versions": BACKEND.registry.versions("tiny"),
        "live": endpoint.live("echo"),
        "answer": answer,
    }


@pytest.mark.slow
def test_a_mistake_is_told_and_touches_nothing(
    served: Live, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends with its code, an error with a hint and no traceback; all else is as before."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = LocalRuns().find("latest").name
    before = what_there_is(first)
    for number, (case, (text, exit_code, code)) in enumerate(CASES.items()):
        spec = Path(f"bad{number}.yml")
        if text is not None:
            spec.write_text(text)
        capfd.readouterr()
        with monkeypatch.context() as patch:
            if case == "a full disk":
                Path("code/script.py").write_text("print(2)\n")
                patch.setattr("shutil.copyfileobj", full)
            assert ml("run", str(spec)) == exit_code, case
        said = capfd.readouterr().err
        assert f"error[{code}]: " in said and "\n  hint: " in said, f"{case}\n{said}"
        assert "Traceback" not in said, f"{case}\n{said}"
        assert what_there_is(first) == before, case


@pytest.mark.slow
def test_a_port_in_use_touches_nothing(served: Live, capfd: pytest.CaptureFixture[str]) -> None:
    """The same of a server that is asked to a port that somebody has."""
    first = LocalRuns().find("latest").name
    before = what_there_is(first)
    with socket.socket() as taken:
        taken.bind((processes.HOST, 0))
        taken.listen()
        capfd.readouterr()
        assert ml("serve", "echo", "--port", str(taken.getsockname()[1])) == 2
    said = capfd.readouterr().err
    assert "error[port-in-use]: " in said and "\n  hint: " in said and "Traceback" not in said
    assert what_there_is(first) == before
