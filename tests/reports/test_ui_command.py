"""`ml ui`: starts, answers, and ends with its child processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.release.test_commands import ml


def started(*words: str) -> subprocess.Popen[str]:
    """`ml ui …` in a child process."""
    return subprocess.Popen(
        [sys.executable, "-c", "from ml.cli.app import main; main()", "ui", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(home: Path, ended_by: signal.Signals) -> None:
    """The address is on stdout once it answers; Ctrl-C exits with 0 and leaves no process."""
    process = started()
    assert process.stdout
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address) as answer:
        assert b"<title>MLflow</title>" in answer.read()
    children = psutil.Process(process.pid).children(recursive=True)
    # Where MLflow's server imports from: not the folder that somebody typed `ml ui` in.
    assert {Path(child.cwd()) for child in children} == {home}
    process.send_signal(ended_by)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.splitlines()[-1] == "ended"
    assert "Traceback" not in output
    assert not [child for child in children if child.is_running()]


def test_a_port_in_use(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the process that holds it and a hint."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, output = ml(capsys, "ui", "--port", str(port))
    assert code == 2
    assert f"port {port} is held by " in output
    assert f"process {os.getpid()}" in output
    assert "omit --port" in output


def test_no_runs_yet(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and no store is created."""
    code, _, err = ml(capsys, "ui")
    assert code == 2 and "ml run SPEC" in err
    assert not (own_home / "mlflow.db").exists()
