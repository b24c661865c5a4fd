"""`ml ui`: starts, answers, ends with everything that it started."""

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

from ml.cli.app import main
from tests.conftest import ROOT


def started(*words: str) -> subprocess.Popen[str]:
    """`ml ui …` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from ml.cli.app import main; main()", "ui", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(home: Path, ended_by: signal.Signals) -> None:
    """The address on stdout once it answers; Ctrl-C is exit 0 and leaves no process behind."""
    process = started()
    assert process.stdout
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address) as answer:
        assert b"<title>MLflow</title>" in answer.read()
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(ended_by)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.splitlines()[-1] == "ended"
    assert "Traceback" not in said
    assert not [child for child in children if child.is_running()]


def test_a_port_in_use(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2; says who has it and what to type."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            main(["ui", "--port", str(port)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"port {port} is held by " in said
    assert f"process {os.getpid()}" in said
    assert "leave --port out" in said


def test_no_runs_yet(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to show: exit 2, and no empty store is made."""
    with pytest.raises(SystemExit) as ended:
        main(["ui"])
    assert ended.value.code == 2
    assert "ml run SPEC" in capsys.readouterr().err
    assert not (own_home / "mlflow.db").exists()
