"""Fixture: an A/B experiment between two versions without trained models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from ml.backends.model_registry import Version
from ml.release.ab import experiment
from ml.release.ab.experiment import Experiment
from tests.local import BACKEND

A = Version("tiny", "1", "sha256:" + "a" * 64, "tiny", "run-a", "")
B = Version("tiny", "2", "sha256:" + "b" * 64, "tiny", "run-b", "")
BINARY: dict[str, Any] = {"outcome": "binary", "baseline": 0.4, "effect": 0.1}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Return a function that begins an experiment, binary by default, with constant salts."""
    salts = count()
    monkeypatch.setattr("secrets.token_hex", lambda size: f"{next(salts):0{2 * size}x}")

    def begin(name: str = "wording", **settings: Any) -> Experiment:
        return experiment.declare(
            BACKEND, name, A, B, **{"environment": "local", **BINARY, **settings}
        )

    return begin
