"""Releases know a backend by its port alone: the same steps on a backend in memory, unpatched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.release.declaration import desired_state
from ml.release.promotion.gate_check import check_registered
from ml.release.promotion.propose import propose
from ml.release.rollout.plan import plan
from ml.release.rollout.status import status
from ml.release.versions import Served, descendants, find_in_use
from ml.specs.plan import planning
from ml.specs.sdk.load import load
from tests.release import tiny
from tests.stand_ins.memory import MemoryBackend


@pytest.mark.slow
def test_a_release_on_a_backend_in_memory(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train, propose, gate, plan, status, a better one, a worse one."""
    monkeypatch.chdir(tmp_path)
    folder = tiny.make(tmp_path).folder
    backend = MemoryBackend(tmp_path / "memory")

    def train(skill: float) -> str:
        spec = load(folder / "jobs" / "train.yml", {"inputs.skill": str(skill)})
        run = backend.run(planning.plan(spec))
        assert run.status == "Completed", run.error
        return run.name

    first = propose(backend, "tiny", train(0.8))
    assert not first.decision.blocking, first.decision.blocking
    assert first.decision.outcome == "pending" and first.candidate.version == "1"
    declared = desired_state.read(backend, "tiny", "local")
    assert declared is not None and declared.digest == first.candidate.digest
    assert check_registered(backend, "tiny", "1", "local").decision.outcome == "pending"
    steps = plan(backend, "tiny")
    assert steps.unsigned and steps.steps and steps.stops is None
    assert status(backend, "tiny", "local")[0].declared == "1"
    trained = backend.runs.find(first.run)
    assert [d.relation for d in descendants(backend, trained)] == ["made"]
    # Where it serves is asked of the backend: this machine has no endpoint of that name.
    served = SimpleNamespace(launch=SimpleNamespace(digest=first.candidate.digest), canary=None)
    backend.endpoints = SimpleNamespace(  # type: ignore[assignment]
        live=lambda name, as_released: {"tiny-dev": served}.get(name),
        name_of="{}-{}".format,
        url="https://{}.example/score".format,
    )
    (version,) = descendants(backend, trained)
    assert version.serving == [Served("tiny-dev", "https://tiny-dev.example/score")]
    del backend.endpoints
    assert backend.registry.find("tiny", "1").folder in find_in_use(backend).paths

    backend.registry.promote(backend.registry.find("tiny", "1"), "local")
    worse = propose(backend, "tiny", train(0.7))
    assert worse.decision.outcome == "rejected"
    assert "non-inferiority" in [result.gate for result in worse.decision.blocking]
    better = propose(backend, "tiny", train(0.95))
    assert better.decision.allowed and (better.champion.version, better.candidate.version) == (
        "1",
        "3",
    )
    # None of it left a run in the local backend's home.
    assert not (own_home / "jobs").exists() and not (own_home / "mlflow.db").exists()
