"""ml.core.files: lines are appended completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ml.core.files import append


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
