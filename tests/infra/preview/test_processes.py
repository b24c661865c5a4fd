"""Processes: memory and CPU are measured per process, and none survives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infra.preview.runner import Peak, ended, started


def test_the_memory_of_the_parent_is_not_counted() -> None:
    """The parent holds 400 MiB, the child 64 of its own."""
    held = bytearray(b"x") * (400 * 2**20)
    child = subprocess.Popen(
        [sys.executable, "-c", "held = bytearray(b'x') * (64 * 2**20); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = Peak(child.pid)
    assert child.stdin
    while peak.mib < 64:  # it holds them before it waits for us
        assert child.poll() is None
    child.stdin.close()
    spent = ended(child, peak)
    assert 64 <= spent.peak_mib < 200
    assert spent.cpu_seconds > 0
    assert len(held) == 400 * 2**20


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
