"""Processes of a preview: none of them survives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_callback_is_not_lost(sent: signal.Signals) -> None:
    """An exception that its handler raises there is printed and forgotten by Python."""
    program = f"""
import os, signal, sys, weakref
from infra.preview.runner import started
class Short: ...
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
with started(["sleep", "60"]) as process:
    short = Short()
    kept = weakref.ref(short, lambda _: os.kill(os.getpid(), {int(sent)}))
    del short
    process.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True)
    assert ended.returncode == (-sent if sent == signal.SIGINT else 128 + sent)


def _running(session: int) -> list[str]:
    """The command lines of a session's processes that have not ended."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, of = (one / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append((one / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_preview_leaves_no_process(sent: signal.Signals) -> None:
    """Only the preview gets the signal, as from `timeout` and a cancelled workflow."""
    preview = subprocess.Popen(
        [sys.executable, "-c", "from infra.cli import main; main()", "preview", "dev"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any("launch.py" in one for one in _running(preview.pid)):
            assert preview.poll() is None
            time.sleep(0.01)
        preview.send_signal(sent)
        assert preview.wait(60) == 128 + sent
        assert preview.stderr and "Traceback" not in preview.stderr.read()
        assert _running(preview.pid) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(preview.pid, signal.SIGKILL)
