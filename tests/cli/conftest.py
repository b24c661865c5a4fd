"""`ml runs …` as a person types it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests import forks

Ml = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ml() -> Ml:
    """Runs `ml runs …`; nobody is at the keyboard."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.ml("runs", *words)

    return call
