"""ml.core.files: lines are appended completely or not at all; an unchanged file is opened once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ml.core.files import append, content


def test_a_partial_line_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the file stays as it was."""
    path = tmp_path / "lines.jsonl"
    append(path, b"one\n")
    real = os.write
    calls: list[int] = []

    def full(descriptor: int, content: bytes) -> int:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, content[:2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        append(path, b"two\n")
    assert path.read_bytes() == b"one\n" and len(calls) == 2


def test_an_unchanged_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = tmp_path / "a.yml", []
    file.write_text("a")
    read_bytes, later = Path.read_bytes, time.time_ns() + 10**9
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or read_bytes(path))
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert content(file) == content(file) == b"a"
    assert opened == [file]
    file.write_text("b")
    os.utime(file, ns=(0, 0))
    assert content(file) == b"b" and opened == [file, file]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Also if its size and time stay, and within one tick of the file system's clock."""
    file = tmp_path / "a.yml"
    for number in range(50):
        file.write_text(str(number % 10))
        os.utime(file, ns=(0, 0))
        assert content(file) == str(number % 10).encode()
