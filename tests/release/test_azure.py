"""Releases on Azure: the unmodified SDK against the stand-in, from a run to what serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.attestation import Certificates
from ml.backends.azure.backend import AzureBackend
from ml.core.errors import Refused
from ml.release.declaration import desired_state
from ml.release.promotion.propose import Proposal, propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.plan import plan
from ml.release.rollout.rollback import roll_back
from ml.release.rollout.status import status
from ml.specs.plan import planning
from ml.specs.sdk.load import load
from tests.backends.conftest import azure
from tests.release import tiny
from tests.release.authority import Authority, Workflow
from tests.release.promotion.test_environments import commit, rehearse
from tests.release.test_commands import ml
from tests.stand_ins.azure.running import StandIn, register_environment

__all__ = ["azure"]
AUTHORITY = Authority()


class World:
    """The tiny project, its data and environment registered in a workspace of its own."""

    def __init__(self, folder: Path) -> None:
        self.project = tiny.make(folder)
        self.backend = AzureBackend()
        self.backend.verifier = Certificates([AUTHORITY.pem])
        register_environment(self.backend.workspace.client, "ml-cpu", "1")
        for state in self.backend.assets.compare(folder):
            self.backend.assets.create(state)

    def train(self, skill: float) -> str:
        """A completed run of that skill; its name."""
        spec = load(self.project.folder / "jobs" / "train.yml", {"inputs.skill": str(skill)})
        run = self.backend.run(planning.plan(spec))
        assert run.status == "Completed", run.error
        return run.name

    def propose(self, run: str, environment: str = "dev") -> Proposal:
        """As the workflow that evaluates does it; what it declares is committed."""
        made = propose(
            self.backend, "tiny", run, environment, attestor=Workflow(AUTHORITY, commit=None)
        )
        assert made.decision.allowed, made.decision.blocking
        commit("a release")
        return made


@pytest.fixture
def world(azure: StandIn, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    azure.enter(monkeypatch)
    monkeypatch.chdir(tmp_path)
    made = World(tmp_path)
    rehearse(made.project.folder, tmp_path.parent / f"{tmp_path.name}-osv")
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path.parent / f"{tmp_path.name}-osv"))
    return made


@pytest.mark.slow
def test_the_whole_way(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, propose, plan, apply, a better version by a canary, and back to the first."""
    backend, lines = world.backend, list[str]()
    first, second = world.train(0.8), world.train(0.95)
    world.propose(first)
    steps = plan(backend, "tiny", "dev")
    assert steps.unsigned and steps.stops is None and steps.serving is None
    done = apply(backend, "tiny", "dev", "ana", progress=lines.append)
    assert done and (done.outcome, done.version.version, done.canary) == ("applied", "1", None)
    assert ask("tiny-dev", {"question": "how?"}, backend.endpoints).version == "1"

    better = world.propose(second)
    assert better.champion and better.champion.version == "1"
    code, out, err = ml(capsys, "release", "plan", "tiny", "--env", "dev", "--on", "azure")
    assert code == 3 and "attestation" in err  # the command has no verifier
    done = apply(backend, "tiny", "dev", "ana", progress=lines.append)
    assert done and (done.outcome, done.version.version) == ("applied", "2"), done.decision.blocking
    assert done.canary and done.canary.kind == "passed"
    assert [line.partition(":")[0] for line in lines] == ["10 %", "50 %", "100 %"]
    assert ask("tiny-dev", {"question": "how?"}, backend.endpoints).version == "2"
    (now,) = status(backend, "tiny", "dev")
    assert (now.declared, now.champion, now.serving, now.signed_off) == ("2", "2", "2", "ana")
    assert now.verdict == "as declared" and now.url

    assert roll_back(backend.registry, "tiny", "dev", "it was a test").declared.version == "1"
    commit("back")
    done = apply(backend, "tiny", "dev", "ana")
    assert done and (done.outcome, done.version.version, done.canary) == ("applied", "1", None)
    words = ("invoke", "tiny-dev", '{"question": "how?"}', "--on", "azure", "--json")
    code, out, _ = ml(capsys, *words)
    assert code == 0 and json.loads(out)["model_digest"] == done.version.digest
    words = ("release", "status", "tiny", "--env", "dev", "--on", "azure", "--json")
    code, out, _ = ml(capsys, *words)
    assert code == 0 and json.loads(out)[0]["serving"] == "1"
    done = apply(backend, "tiny", "dev", "ana")
    assert done and done.outcome == "unchanged"


def test_local_is_not_on_azure() -> None:
    """Exit 33, and where each environment is."""
    assert desired_state.place_of("local", None) == "local"
    assert desired_state.place_of("prod", "local") == "local"
    assert desired_state.place_of("prod", None) == "azure"
    with pytest.raises(Refused) as refused:
        desired_state.place_of("local", "azure")
    assert refused.value.exit_code == 33
