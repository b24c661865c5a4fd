"""`ml runs …` as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Ml = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ml() -> Ml:
    """Runs `ml runs …`; nobody is at the keyboard."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from ml.cli.app import main; main()", "runs", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )

    return call
