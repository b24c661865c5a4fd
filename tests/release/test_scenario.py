"""The scenario of a release on every backend: this machine, Azure's stand-in and one in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.settings import loader
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.workspace import REGISTRY
from ml.backends.endpoints import Live
from ml.backends.local.serving import endpoint
from ml.backends.local.serving.endpoint import candidate
from ml.core.errors import UserError
from ml.release.rollout.apply import Applied
from tests.backends.conftest import azure
from tests.backends.serving.servers import process_of
from tests.local import BACKEND
from tests.release.authority import Authority, Workflow
from tests.release.promotion.test_environments import REVIEWS, WRITTEN, prepare_environments
from tests.release.scenario import ReleaseScenario, Team
from tests.release.test_commands import ml
from tests.shared import declare_endpoint
from tests.stand_ins.azure.running import StandIn, provision, register_environment
from tests.stand_ins.memory import MemoryBackend

__all__ = ["azure"]
pytestmark = pytest.mark.slow
AUTHORITY = Authority()


@pytest.fixture
def stopped() -> Iterator[None]:
    """Servers of this machine are stopped when the test ends."""
    yield
    for name in endpoint.names():
        endpoint.stop(name)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, and advisories that `prepare_environments` writes."""
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "osv"))
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


class TestLocal(ReleaseScenario):
    """A simulated dev."""

    @pytest.fixture
    def team(self, root: Path, stopped: None) -> Team:
        team = Team(root, BACKEND)
        prepare_environments(team.project.folder, root.parent / "osv", WRITTEN)
        return team

    def check_progress(self, lines: list[str], blue: Live) -> None:
        """Blue's version is started again beside green, as what green is compared with."""
        super().check_progress(lines, blue)
        assert lines[0] == "starting version 3, and 1 again as baseline"
        assert lines[-1].startswith("canary: 100 %: ")
        assert process_of(blue.server.slot) is None


class TestMemory(ReleaseScenario):
    """Releases know a backend by its port alone."""

    @pytest.fixture
    def team(self, root: Path, own_home: Path, stopped: None) -> Iterator[Team]:
        team = Team(root, MemoryBackend(root.parent / "memory", AUTHORITY.verifier))
        team.pipeline, team.commands, team.attestor = None, False, Workflow(AUTHORITY)
        prepare_environments(team.project.folder, root.parent / "osv", WRITTEN)
        yield team
        # Nothing left a run in the local backend's home.
        assert not (own_home / "jobs").exists() and not (own_home / "mlflow.db").exists()


class AzureTeam(Team):
    """Each step is on another machine, as of a workflow every job is on a fresh runner."""

    backend: AzureBackend

    def __init__(
        self, folder: Path, homes: pytest.TempPathFactory, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(folder, AzureBackend(candidate=candidate))
        self._homes, self._patch = homes, patch
        self.start_next_step()
        self.attestor = Workflow(AUTHORITY, commit=None)
        register_environment(self.backend.workspace.client, "ml-cpu", "1")
        for state in self.backend.assets.compare(folder):
            self.backend.assets.create(state)

    def start_next_step(self) -> None:
        self._patch.setenv("MLOPS_HOME", str(self._homes.mktemp("home")))
        self.backend = AzureBackend(candidate=candidate)
        self.backend.verifier = AUTHORITY.verifier


class TestAzure(ReleaseScenario):
    """The unmodified SDK against the stand-in."""

    @pytest.fixture
    def team(
        self,
        azure: StandIn,
        root: Path,
        tmp_path_factory: pytest.TempPathFactory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Team:
        monkeypatch.setenv(REGISTRY, f"shared-{azure.enter(monkeypatch)}")
        stacks = root.parent / "stacks"
        declare_endpoint("tiny", stacks / "Pulumi.dev.yaml")
        monkeypatch.setattr(loader, "FOLDER", stacks)
        self.patch, self.homes = monkeypatch, tmp_path_factory
        team = AzureTeam(root, tmp_path_factory, monkeypatch)
        prepare_environments(team.project.folder, root.parent / "osv", REVIEWS)
        return team

    def check_unapplied(self, team: Team) -> None:
        """`infra` makes the endpoint."""
        assert isinstance(team, AzureTeam)
        stops = team.plan().stops
        assert stops and stops.problems[0].hint.startswith("make deploy ENV=dev")
        with pytest.raises(UserError, match=f"no-endpoint.*{team.endpoint}"):
            team.apply("ana")
        provision(team.backend.workspace.client, team.endpoint)

    def apply_first(self, team: Team) -> Applied | None:
        """Another machine has the endpoint: the apply waits for it."""
        other, waits = ExitStack(), list[str]()
        other.enter_context(AzureBackend().endpoints.reserve(team.endpoint, waits.append))

        def leave(sentence: str) -> None:
            waits.append(sentence)
            assert team.live() is None
            other.close()

        team.start_next_step()
        done = team.apply("ana", waiting=leave)
        assert len(waits) == 1
        return done

    def check_second(self, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
        """A plan takes an attestation of the trusted authority alone."""
        team.start_next_step()
        words = ("release", "plan", "tiny", "--env", "dev", "--on", "azure")
        for authority, code, text in ((Authority(), 3, "attestation"), (AUTHORITY, 0, "steps to")):
            program = authority.program(self.homes.mktemp("gh"))
            self.patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
            ended, out, err = ml(capsys, *words)
            assert (ended, text in out + err) == (code, True), err

    def check_fault(self, team: Team, run: str) -> None:
        """A deployment that is slow gets no traffic, and is not tried again without a proposal."""
        lines = list[str]()
        team.start_next_step()
        with (
            self.patch.context() as slow,
            pytest.raises(UserError, match="p95 is 999 ms") as refused,
        ):
            slow.setattr(AzureEndpoints, "p95_ms", lambda *_: 999.0)
            team.apply("bo", progress=lines.append)
        assert refused.value.problems[0].code == "too-slow" and "p95" not in " ".join(lines)
        assert team.answer() == "1"
        team.promote(run)

    def check_progress(self, lines: list[str], blue: Live) -> None:
        """What the deployment answers, and how fast, is known before it gets a request."""
        super().check_progress(lines, blue)
        begun = ["latency on the deployment", "parity check", "canary: 10 %"]
        assert [start for line in lines for start in begun if line.startswith(f"{start}:")] == begun

    def check_commands(
        self, team: Team, serves: Mapping[str, bool], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The log is the workspace's; this machine's own has no line."""
        super().check_commands(team, serves, capsys)
        code, _, err = ml(capsys, "audit", "verify", "--on", "azure")
        assert code == 0 and "dev committed in" in err
        code, _, err = ml(capsys, "audit", "verify")
        assert code == 0 and "no line yet" in err

    @pytest.mark.torture(only=True)
    def test_a_pipeline_with_a_sweep_is_proposed(self, team: Team) -> None:
        """By its name: the model is that of the sweep's best trial."""
        run = team.project.pipeline(team.backend)
        made = team.promote(run.name)
        assert made.evidence.lineage.environment == "azureml:ml-cpu:1"
        assert made.run == run.step("sweep").best
