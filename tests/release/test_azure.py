"""Releases on Azure: the unmodified SDK against the stand-in, from a run to what serves."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.pipeline.transport import RequestsTransport

from infra.settings.workflows import RELEASER
from ml.backends.azure import traffic
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import REGISTRY, VARIABLES
from ml.backends.endpoints import Canary, Endpoints, Live, ModelDeployment
from ml.backends.model_registry import model_folder
from ml.core.errors import UserError
from ml.release import audit
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.promotion.gate_check import GateCheck
from ml.release.rollout import apply as applying
from ml.release.rollout.apply import Acceptance, Applied, RolloutPlan
from ml.release.rollout.invoke import ask
from ml.serving.scoring.manifest import folder_digest
from tests.backends.conftest import azure
from tests.backends.deployments import QUICK, SAMPLES, released
from tests.release import tiny
from tests.release.authority import Authority
from tests.release.canary.greens import script
from tests.release.killing import killed
from tests.release.test_commands import ml
from tests.stand_ins.azure.actions import actions
from tests.stand_ins.azure.running import StandIn, provision, register_environment

__all__ = ["azure"]
AUTHORITY = Authority()


def test_local_is_not_on_azure() -> None:
    """Exit 33, and where each environment is."""
    assert desired_state.place_of("local", None) == "local"
    assert desired_state.place_of("prod", "local") == "local"
    assert desired_state.place_of("prod", None) == "azure"
    with pytest.raises(UserError) as refused:
        desired_state.place_of("local", "azure")
    assert refused.value.exit_code == 33


def test_staging_needs_the_shared_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 names the setting; dev is where models are made, and needs none."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv(REGISTRY, raising=False)
    for environment in ("staging", "prod"):
        words = ("propose", "tiny", "--env", environment, "--on", "azure")
        code, out, err = ml(capsys, "release", *words)
        assert (code, out) == (2, "") and "error[no-registry-named]" in err and REGISTRY in err
    monkeypatch.setenv(REGISTRY, "shared")
    assert AzureBackend().registry.reference("m", "1").startswith("azureml://registries/shared/")


@pytest.mark.slow
def test_the_same_files_reach_another_workspace(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the shared registry, with the marks of the version; other files are refused.

    What the endpoint refuses is not the model's answer, and what others deployed there stays.
    """
    monkeypatch.setenv(REGISTRY, f"shared-{azure.enter(monkeypatch)}")
    dev = AzureBackend()
    deployment = released(dev, "words", tmp_path)
    dev.registry.promote(dev.registry.find("words", "1"), "dev", deployment.deployment_digest)
    shutil.rmtree(deployment.model_folder)  # another machine

    azure.enter(monkeypatch)
    prod = AzureBackend()
    register_environment(prod.workspace.client, "ml-cpu", "1")
    (version,) = prod.registry.versions("words")
    assert version.digest == deployment.digest and version.served_in(
        deployment.deployment_digest
    ) == ("dev",)
    provision(prod.workspace.client, "words")
    prod.endpoints.check_deployment(deployment)
    assert folder_digest(deployment.model_folder) == deployment.digest
    with prod.endpoints.locked("words"):
        server = prod.endpoints.begin(deployment)()
        prod.endpoints.switch("words", Live(server, deployment))
    assert ask(prod, "words", SAMPLES[0]).version == "1"

    other = "sha256:" + "0" * 64
    azure.fail({"pattern": "POST /score", "status": 403})
    with pytest.raises(UserError, match="no-permission"):
        prod.endpoints.score(server, SAMPLES[0])
    assert prod.endpoints.score(server, SAMPLES[0]).status == 200
    theirs = next(iter(prod.workspace.client.online_deployments.list("words")))
    theirs.name = "theirs"
    prod.workspace.client.online_deployments.begin_create_or_update(theirs).result()
    prod.endpoints.stop_idle("words")
    kept = {each.name for each in prod.workspace.client.online_deployments.list("words")}
    assert kept == {server.slot.name, "theirs"}
    with pytest.raises(UserError, match="model-corrupt"):
        prod.endpoints.check_deployment(
            replace(deployment, digest=other, model_folder=model_folder(other))
        )


@pytest.mark.slow
def test_requests_of_callers_are_in_the_log(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that answers every sample and fails callers is taken back, after a mirror."""
    azure.enter(monkeypatch)
    monkeypatch.setattr(traffic, "LOG_S", 0.3)
    backend, name = AzureBackend(), "words"
    endpoints = backend.endpoints
    register_environment(backend.workspace.client, "ml-cpu", "1")
    first = released(backend, name, tmp_path)
    bad = script("if asked == 'anybody?': raise RuntimeError('bad')")
    second = released(backend, name, tmp_path, bad)
    ended = threading.Event()

    def call() -> None:
        url = endpoints.start_router(name).url
        while not ended.is_set():
            backend.workspace.score(url, '{"question": "anybody?"}', {})

    with ExitStack() as undo:
        with endpoints.locked(name):
            live = Live(endpoints.begin(first)(), first)
            endpoints.switch(name, live)
            trial = canary.start_trial(endpoints, name, live, second, SAMPLES, undo, baseline=True)
        callers = threading.Thread(target=call)
        callers.start()
        strategy = replace(QUICK, mirror=20, steps=(50, 100), requests=(30, 30), false_alarms=0.2)
        lines = list[str]()
        try:
            outcome = canary.run_canary(
                endpoints, name, trial, strategy, SAMPLES, progress=lines.append
            )
        finally:
            ended.set()
            callers.join()
    assert outcome.kind == "rolled-back" and "errors" in outcome.why, (outcome, lines)
    assert [line.split(": ")[1] for line in lines if ", after" not in line] == ["a copy of 20 %"]
    green = trial.server.slot.name
    assert outcome.errors[green] > 0 == outcome.errors[live.server.slot.name]


def run_canary(endpoints: Endpoints, name: str, trial: Canary, *_: object, **__: object) -> Outcome:
    """A canary that passes without requests."""
    for weight in (0, 10, 50, 100):
        canary.set_canary(endpoints, name, replace(trial, weight=weight))
    return Outcome("passed", "", 100, (), {}, {}, 0, 0.0)


def release(
    deployment: ModelDeployment, kill_after: int = 0, calls: list[str] | None = None
) -> Applied | None:
    """Apply the version as `ml release apply` does once the gates have approved it.

    The process dies right after the `kill_after`-th request that changes something, in the
    workspace or in its storage; `calls` gets them.
    """
    sent = RequestsTransport.send
    calls = [] if calls is None else calls

    def send(self: RequestsTransport, request: Any, **options: Any) -> Any:
        answer = sent(self, request, **options)
        changed = "MachineLearningServices" in request.url or "/releases/" in request.url
        if request.method in ("PUT", "DELETE") and changed:
            calls.append(request.url)
        if kill_after and len(calls) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    backend, name = AzureBackend(), deployment.endpoint
    version = backend.registry.find(deployment.model, deployment.version)
    champion = backend.registry.champion(deployment.model, "dev")
    approved: Any = SimpleNamespace(outcome="approved")
    nothing: Any = None
    acceptance = Acceptance(SAMPLES, QUICK, None, None, new_fields=(), expired=())
    unread = dict.fromkeys(field.name for field in fields(RolloutPlan))
    known = {
        **{"project": "words", "environment": "dev", "entry": ReleaseEntry(decision="d" * 64)},
        **{"version": version, "deployment": deployment, "acceptance": acceptance},
        **{"approved_by": "ana", "backend": backend, "live": backend.endpoints.live(name)},
        "history": audit.history(backend.audit_log, name),
        "check": GateCheck(approved, version, champion, nothing, ""),
    }
    rollout = RolloutPlan(**{**unread, **known})  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutPlan, "is_current", lambda self: True)
        patch.setattr(canary, "run_canary", run_canary)
        patch.setattr(RequestsTransport, "send", send)
        return applying._carry_out(rollout, None, False, lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "every",
    [False, pytest.param(True, marks=pytest.mark.torture(only=True))],
    ids=["some", "all"],
)
def test_an_apply_that_is_killed_converges(
    azure: StandIn, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """After any request that changes something: the next apply serves the version, alone."""
    azure.enter(monkeypatch)
    backend = AzureBackend()
    register_environment(backend.workspace.client, "ml-cpu", "1")
    first, second = (released(backend, "words", tmp_path) for _ in "ab")
    azure.requests()
    release(first)
    # The identity that releases may send all of this.
    needed = actions(azure.requests())
    assert any(action.endswith("/onlineEndpoints/write") for action in needed)
    assert needed <= {*RELEASER.actions}
    points = [2, 6]
    if every:
        changes = list[str]()
        release(second, calls=changes)
        assert any("comp=appendblock" in url for url in changes)
        points = [*range(1, len(changes) + 1)]
    for number, point in enumerate(points, start=1 - every):
        deployment = (first, second)[number % 2]
        (own_home / "deployment").write_bytes(pickle.dumps(deployment))
        killed(
            "import pickle, pathlib\nfrom tests.release import test_azure\n"
            f"path = pathlib.Path({str(own_home / 'deployment')!r})\n"
            "deployment = pickle.loads(path.read_bytes())\n"
            f"test_azure.release(deployment, {point})\n"
        )
        before = len(audit.history(backend.audit_log, "words").applied)
        done = release(deployment)
        assert done and done.outcome in ("applied", "unchanged"), point
        live = backend.endpoints.live("words")
        assert live and live.canary is None and live.deployment.digest == deployment.digest
        names = {each.name for each in backend.workspace.client.online_deployments.list("words")}
        assert names == {live.server.slot.name}
        champion = backend.registry.champion("words", "dev")
        assert champion and champion.digest == deployment.digest
        assert len(audit.history(backend.audit_log, "words").applied) - before <= 1
        assert audit.matches_deployment(
            audit.history(backend.audit_log, "words").applied[-1], deployment
        )
