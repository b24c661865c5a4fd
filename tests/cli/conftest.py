"""Fixture: run `ml runs …`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests import forks

Ml = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ml() -> Ml:
    """Return a function that runs `ml runs …` without a terminal."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.ml("runs", *words)

    return call
