"""What a process took is its own, however large the process that started it is."""

from __future__ import annotations

import subprocess
import sys

from infra.preview.processes import Peak, ended


def test_the_memory_of_who_starts_a_process_is_not_the_processs() -> None:
    """A preview in a process of 400 MiB; the child holds 64 of its own."""
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
