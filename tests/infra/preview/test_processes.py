"""Processes of a preview: none of them survives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.preview.runner import started


def test_a_process_ends_with_those_it_started() -> None:
    program = """
import os, time
if child := os.fork():
    print(child, flush=True)
time.sleep(60)
"""
    with started([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        assert psutil.Process(child).ppid() == process.pid
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline


def _running(session: int) -> list[str]:
    """The command lines of a session's processes that have not ended."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, of = (one / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append((one / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_process_starts_ends_it_too(
    sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives when the process exists and nobody holds it yet."""
    there: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def popen(*words: Any, **options: Any) -> subprocess.Popen[str]:
        there.append(start(*words, **options))
        signal.raise_signal(sent)
        return there[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = signal.signal(sent, lambda *_: sys.exit(128 + sent))
    try:
        with (
            pytest.raises(SystemExit) as left,
            started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE),
        ):
            raise AssertionError("the signal was lost")
        handler = signal.getsignal(sent)
    finally:
        signal.signal(sent, before)
    assert left.value.code == 128 + sent and handler is not before
    (process,) = there
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("child", ["pulumi.policy", "launch.py"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_preview_leaves_no_process(child: str, sent: signal.Signals) -> None:
    """Only the preview gets the signal, as from `timeout` and a cancelled workflow."""
    preview = subprocess.Popen(
        [sys.executable, "-c", "from infra.cli import main; main()", "preview", "dev"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(child in one for one in _running(preview.pid)):
            assert preview.poll() is None
            time.sleep(0.01)
        preview.send_signal(sent)
        assert preview.wait(60) == 128 + sent
        assert preview.stderr and "Traceback" not in preview.stderr.read()
        assert _running(preview.pid) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(preview.pid, signal.SIGKILL)
