"""Endpoints on Azure: `infra` makes them, others may change them, and the service is busy."""

from __future__ import annotations

import shutil
from collections import ChainMap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.ai.ml.entities import ManagedOnlineDeployment

from infra.settings import loader
from infra.settings.model import Settings
from ml.backends.azure import endpoint_record
from ml.backends.azure import endpoints as module
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.endpoint_record import CANARY, LIVE, Written, stack_of
from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.workspace import Workspace
from ml.backends.endpoints import Canary, Live, Server
from ml.backends.local.serving import endpoint
from ml.core.errors import Exit, UserError
from ml.release.canary import canary
from ml.release.rollout import apply as applying
from ml.release.rollout.status import status
from ml.release.versions import _descendant
from ml.release.watch.release_drift import drift
from tests.backends.conftest import azure
from tests.backends.deployments import SAMPLES, released
from tests.conftest import ROOT
from tests.local import BACKEND
from tests.release.conftest import World
from tests.shared import declare_endpoint
from tests.stand_ins.azure.running import StandIn, provision, register_environment

__all__ = ["azure"]
ENVIRONMENTS = ("dev", "staging", "prod")


def nowhere() -> AzureEndpoints:
    """Endpoints of a workspace that is never asked."""
    workspace = Workspace("s", "g", "w")
    return AzureEndpoints(workspace, AzureRegistry(workspace))


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stack files of each environment, which declare the endpoint of `words`, and of the
    registry that they share.
    """
    for environment in ENVIRONMENTS:
        declare_endpoint("words", tmp_path / "infra" / f"Pulumi.{environment}.yaml")
    shutil.copy(ROOT / "infra/Pulumi.shared.yaml", tmp_path / "infra")
    monkeypatch.setattr(loader, "FOLDER", tmp_path / "infra")
    return tmp_path / "infra"


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_release_names_the_endpoint_as_infra_does(environment: str, stacks: Path) -> None:
    """By the stack file alone, whatever another one holds; on this machine it has no suffix."""
    settings = loader.load(environment, stacks)
    (declared,) = settings.endpoints
    name = nowhere().name_of("words", environment)
    assert name == settings.names.regional(declared.name)
    assert 3 <= len(name) <= 32 and name[0].isalpha()
    (stacks / "Pulumi.another.yaml").write_text("config: {\n")
    assert stack_of(name) == environment
    assert endpoint.name_of("words", environment) == f"words-{environment}"
    assert endpoint.name_of("words", "local") == "words"


def test_a_name_stays_when_a_size_retires(stacks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves can be rolled back whatever the checks of a stack say by then."""
    name = nowhere().name_of("words", "dev")

    def refuse(settings: Settings, document: object) -> None:
        raise AssertionError("checked")

    monkeypatch.setattr("infra.settings.checks.problems", refuse)
    assert nowhere().name_of("words", "dev") == name


def test_an_endpoint_that_no_stack_declares_gets_no_release(stacks: Path) -> None:
    """The error says where to declare it, and the command that makes it; Azure is not asked."""
    for name in (nowhere().name_of("other", "dev"), "words-dev", "other-nowhere"):
        with pytest.raises(UserError) as refused, nowhere().reserve(name, print):
            pass
        (problem,) = refused.value.problems
        assert problem.code == "no-endpoint" and name in problem.actual
        assert "platform:endpoints" in problem.hint and "make deploy ENV=" in problem.hint


@pytest.mark.parametrize(
    ("state", "is_up"),
    [(state, True) for state in ("Succeeded", "Updating", "Scaling", "Deleting", "Canceled")]
    + [("Failed", False), (None, False)],
)
def test_a_deployment_answers_while_it_is_scaled(
    state: str | None, is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update or a scaling is no fault of the version that it serves."""
    deployment = SimpleNamespace(provisioning_state=state)
    monkeypatch.setattr(AzureEndpoints, "_deployments", lambda *_: {"blue": deployment})
    monkeypatch.setattr(AzureEndpoints, "_check", lambda *_: None)
    assert nowhere().is_up(Server(Path("words") / "blue", 0, 0)) == is_up


def test_what_a_deployment_is_does_not_change_by_itself() -> None:
    """More instances are no other deployment; another model, variable or name is one."""

    def deployed(name: str = "blue", **fields: Any) -> dict[str, ManagedOnlineDeployment]:
        known = {"model": "azureml:words:1", "instance_count": 1, "environment_variables": {}}
        return {
            name: ManagedOnlineDeployment(name=name, endpoint_name="words", **{**known, **fields})
        }

    routes, blue = endpoint_record.NOTHING, endpoint_record.content_of(deployed()["blue"])
    record: Written = {"created": "", "routes": [routes], "deployments": {"blue": blue}}

    def changes(*deployments: dict[str, ManagedOnlineDeployment]) -> list[str]:
        return [*endpoint_record.changes_of(record, routes, ChainMap(*deployments))]

    assert changes(deployed()) == changes(deployed(instance_count=5)) == []
    assert changes(deployed(), deployed("theirs")) == []
    assert changes(deployed(model="azureml:words:2")) == [
        'model of blue is "azureml:words:2", and was "azureml:words:1"'
    ]
    assert changes(deployed(environment_variables={"WORDS": "few"})) == [
        "environment_variables.WORDS of blue is (hidden), and was nothing"
    ]
    assert changes(deployed(), deployed("green")) == [
        "the deployment green was not created by a release"
    ]
    assert changes({}) == ["the deployment blue is gone"]

    # Azure Policy adds tags of its own, and the case of an ARM id is not the same in each answer.
    tags, arm = (
        {"model": "words"},
        "azureml:/subscriptions/S/resourceGroups/G/models/words/versions/",
    )
    record["deployments"]["blue"] = endpoint_record.content_of(
        deployed(model=f"{arm}1", tags=tags)["blue"]
    )
    assert changes(deployed(model=f"{arm.lower()}1", tags=tags | {"CostCenter": "ml"})) == []
    assert changes(deployed(model=f"{arm}2", tags={})) == [
        f'model of blue is "{arm}2", and was "{arm}1"',
        'tags.model of blue is nothing, and was "words"',
    ]
    # A variable is a text, whatever is in it.
    signed = {"FEED": "https://a.example/subscriptions/s?sig=Ab"}
    other = {"FEED": "https://a.example/subscriptions/s?sig=aB"}
    record["deployments"]["blue"] = endpoint_record.content_of(
        deployed(environment_variables=signed)["blue"]
    )
    assert changes(deployed(environment_variables=signed)) == []
    assert changes(deployed(environment_variables=other)) == [
        "environment_variables.FEED of blue is (hidden), and was (hidden)"
    ]


def test_status_and_drift_say_what_somebody_changed(
    promoted_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daily look at an environment names it, and goes on with the other projects."""

    def live(name: str) -> Live | None:
        raise endpoint_record.refusal_of(
            name, ["the tag live is nothing, and was blue"], endpoint_record.NOTHING
        )

    monkeypatch.setattr(endpoint, "live", live)
    (now,) = status(BACKEND, "tiny", "local")
    assert not now.as_declared and "the tag live is nothing, and was blue" in now.verdict
    (release,) = drift(BACKEND, "local")
    assert release.differences and release.words == now.verdict


class Portal:
    """Somebody in the portal, and a release of two deployments with a canary of 10 %."""

    def __init__(self, backend: AzureBackend, folder: Path) -> None:
        self.client, self.endpoints = backend.workspace.client, backend.endpoints
        register_environment(self.client, "ml-cpu", "1")
        first, second = (released(backend, "words", folder) for _ in "ab")
        with self.endpoints.locked("words"):
            self.live = Live(self.endpoints.begin(first, "blue")(), first)
            self.endpoints.switch("words", self.live)
            green = self.endpoints.begin(second, "green")()
            self.live = replace(self.live, canary=Canary(green, second, 10))
            self.endpoints.switch("words", self.live)

    def endpoint(self, change: Callable[[Any], object]) -> None:
        """Change the endpoint."""
        resource = self.client.online_endpoints.get("words")
        change(resource)
        self.client.online_endpoints.begin_create_or_update(resource).result()

    def seen(self) -> tuple[dict[str, Any], set[str]]:
        """The endpoint as it is, and its deployments."""
        deployments = self.client.online_deployments.list("words")
        return endpoint_record.routes_of(self.client.online_endpoints.get("words")), {
            each.name for each in deployments
        }

    def refused(self, step: Callable[[], object]) -> str:
        """The sentence by which the step is refused; nothing is overwritten."""
        before = self.seen()
        with pytest.raises(UserError) as refused:
            step()
        assert self.seen() == before
        (problem,) = refused.value.problems
        assert problem.code == "endpoint-changed", problem
        assert "az ml online-endpoint update --name words" in problem.hint
        return problem.actual


@pytest.fixture
def portal(azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Portal:
    azure.enter(monkeypatch)
    monkeypatch.setattr(module, "BUSY_POLL_S", 0.05)
    monkeypatch.setattr(module, "stack_of", lambda name: "dev")
    return Portal(AzureBackend(), tmp_path)


@pytest.mark.slow
@pytest.mark.attack("somebody in the portal changes traffic, tags or deployments of a release")
def test_what_somebody_else_changed_is_not_overwritten(portal: Portal) -> None:
    """Each step of a canary, its undoing and the next apply end with what differs."""
    endpoints, live, green = portal.endpoints, portal.live, portal.live.canary
    assert green is not None
    routes, _ = portal.seen()

    def put(**fields: Any) -> Callable[[Any], object]:
        return lambda resource: vars(resource).update(fields)

    def apply() -> None:
        with AzureBackend().endpoints.reserve("words", print):
            pass

    steps: tuple[Callable[[], object], ...] = (
        lambda: canary.set_canary(endpoints, "words", replace(green, weight=50)),
        lambda: canary.set_canary(endpoints, "words", None),
        lambda: endpoints.stop_idle("words"),
        lambda: endpoints.begin(live.deployment, "baseline"),
        lambda: endpoints.check_deployment(live.deployment),
        apply,
    )
    tags = {LIVE: "blue", CANARY: "green", "owner": "ana"}
    portal.endpoint(put(tags=tags))  # a tag that is not a release's
    apply()
    for changed, words in (
        ({"traffic": {"blue": 60, "green": 40}}, "traffic is blue=60 green=40, and was"),
        ({"tags": {}}, "the tag live is nothing, and was blue"),
        ({"tags": {**tags, LIVE: "green"}}, "the tag live is green, and was blue"),
        ({"traffic": {"blue": 0, "green": 0}}, "traffic is nothing, and was"),
        ({"traffic": {"blue": 100}, "mirror_traffic": {"green": 10}}, "mirror is green=10"),
    ):
        portal.endpoint(put(**changed))
        assert all(words in portal.refused(step) for step in steps), changed
        steps = steps[-1:]
        portal.endpoint(put(tags=tags, traffic=routes["traffic"], mirror_traffic={}))
        apply()

    # Traffic without the tag that says what is live is no first release, on another machine either.
    portal.endpoint(put(tags={}, traffic={"blue": 100}))
    portal.refused(lambda: AzureBackend().endpoints.live("words"))
    portal.endpoint(put(tags=tags, traffic=routes["traffic"]))
    assert AzureBackend().endpoints.live("words") is not None

    deployment = portal.client.online_deployments.get("green", "words")
    deployment.environment_variables = {**deployment.environment_variables, "WORDS": "few"}
    portal.client.online_deployments.begin_create_or_update(deployment).result()
    changed = portal.refused(apply)
    assert "environment_variables.WORDS of green is (hidden), and was nothing" in changed
    portal.endpoint(put(tags=tags, traffic={"blue": 100}))
    portal.client.online_deployments.begin_delete("green", "words").result()
    assert "the deployment green is gone" in portal.refused(apply)
    assert "the deployment green is gone" in portal.refused(lambda: endpoints.is_up(green.server))

    record = AzureBackend().workspace.release_blob("words.json")
    content = record.download_blob().readall()
    for text in (b"{", b"[]", content.replace(b'"routes"', b'"other"')):
        record.upload_blob(text, overwrite=True)
        with pytest.raises(UserError, match="endpoint-record-unreadable"):
            apply()
    record.upload_blob(content, overwrite=True)

    # All of it by hand: no release follows unseen, before infra has made the endpoint anew.
    portal.endpoint(put(tags={}, traffic={"blue": 0}))
    portal.client.online_deployments.begin_delete("blue", "words").result()
    assert "the deployment blue is gone" in portal.refused(apply)
    portal.client.online_endpoints.begin_delete("words").result()
    with pytest.raises(UserError, match="make deploy ENV=dev"):
        apply()
    provision(portal.client, "words")
    apply()


@pytest.mark.slow
@pytest.mark.attack("somebody in the portal changes what serves, and nobody releases for a while")
def test_who_only_looks_sees_what_somebody_changed(
    portal: Portal, azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`live`, which status and drift ask, compares; who calls the endpoint gets an answer, and a
    run names what serves it, with a part of the requests too: not to know that is an error.
    """
    endpoints = portal.endpoints
    monkeypatch.setattr(AzureEndpoints, "name_of", lambda *_: "words")

    def serving() -> list[bool]:
        backend = AzureBackend()
        versions = backend.registry.versions("words")
        return [bool(_descendant(backend, each, "made").serving) for each in versions]

    assert serving() == [True, True]
    azure.fail({"pattern": "GET .*/onlineEndpoints/words", "status": 403, "times": 99})
    with pytest.raises(UserError, match="no-permission"):
        serving()
    azure.fail()
    with endpoints.locked("words"):
        endpoints.switch("words", replace(portal.live, canary=None))
        endpoints.stop_idle("words")
    deployment = portal.client.online_deployments.get("blue", "words")
    assert deployment.tags["owner"] == "ana"  # as deployment.yml says
    deployment.tags = {**deployment.tags, "collect": "often", "version": "7"}
    portal.client.online_deployments.begin_create_or_update(deployment).result()
    assert 'tags.collect of blue is "often"' in portal.refused(
        lambda: AzureBackend().endpoints.live("words")
    )
    assert serving() == [True, False]
    assert AzureBackend().endpoints.ask("words", {"question": "how?"}).status == 200
    deployment.tags = {
        **deployment.tags,
        "collect": "0.0",
        "version": portal.live.deployment.version,
    }
    portal.client.online_deployments.begin_create_or_update(deployment).result()
    assert AzureBackend().endpoints.live("words") is not None
    portal.endpoint(lambda resource: vars(resource).update(traffic={"blue": 0}))
    assert AzureBackend().endpoints.url("words") is None
    assert "traffic is nothing, and was blue=100" in portal.refused(
        lambda: AzureBackend().endpoints.live("words")
    )


@pytest.mark.slow
@pytest.mark.attack("the service answers in the model's place while a release asks green")
def test_an_answer_of_the_service_is_no_verdict_on_green(portal: Portal, azure: StandIn) -> None:
    """Nor is none: the version may be tried again. What the model answers is one."""
    green, score = portal.live.canary, "POST /score"
    assert green is not None
    for fault in (
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"status": 503},
        {"status": 404},
        {"drop": True},
    ):
        azure.fail({"pattern": score, **fault})
        with pytest.raises(UserError) as refused:
            canary.smoke_test(portal.endpoints, green.server, green.deployment, SAMPLES[:1])
        (problem,) = refused.value.problems
        assert (
            problem.code == "deployment-unresponsive"
            and problem.code not in applying.FAULTS_OF_GREEN
        )
        assert "`green` of `words`" in problem.actual and "apply again" in problem.hint, fault
        assert refused.value.exit_code == Exit.RUN_FAILED
    for of_model in (408, 424):
        azure.fail({"pattern": score, "status": of_model})
        with pytest.raises(UserError, match="smoke-failed"):
            canary.smoke_test(portal.endpoints, green.server, green.deployment, SAMPLES[:1])
    canary.smoke_test(portal.endpoints, green.server, green.deployment, SAMPLES[:1])
    # Callers get what the service answers.
    azure.fail({"pattern": score, "status": 429})
    assert portal.endpoints.ask("words", SAMPLES[0]).status == 429


CONFLICT = {"status": 409, "code": "Conflict", "message": "another operation is in progress"}
FAILED = {"status": "Failed", "error": {"code": "InternalServerError", "message": "an error"}}


@pytest.mark.parametrize(
    ("endpoint", "deployment", "changing"),
    [
        ("Succeeded", "Failed", False),
        ("Canceled", "Succeeded", False),
        ("Updating", "Succeeded", True),
        ("Succeeded", "A state of tomorrow", True),
        (None, None, False),
    ],
)
def test_an_operation_goes_on_until_a_final_state(
    endpoint: str | None, deployment: str | None, changing: bool
) -> None:
    def entity(state: str | None) -> Any:
        return state and SimpleNamespace(provisioning_state=state, name="blue")

    workspace = Workspace("s", "g", "w")
    endpoints = AzureEndpoints(workspace, AzureRegistry(workspace))
    vars(endpoints).update(
        _endpoint=lambda name: entity(endpoint),
        _deployments=lambda name: {"blue": entity(deployment)} if deployment else {},
    )
    assert endpoints._is_changing("words") is changing


def test_a_long_operation_shows_the_time_so_far() -> None:
    """A line for each wait that ends before the operation does."""
    workspace, lines, answers = Workspace("s", "g", "w"), list[str](), iter([False, False, True])
    endpoints = AzureEndpoints(workspace, AzureRegistry(workspace))
    vars(endpoints)["_say"] = lines.append
    poller = SimpleNamespace(wait=lambda seconds: None, done=lambda: next(answers), result=str)
    assert endpoints._begun("words", lambda: poller)() == ""
    assert lines == ["words: waiting for Azure, 0 s so far"] * 2


@pytest.mark.slow
def test_a_busy_service_is_waited_for(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sentence each time, for a bounded time, whatever words it has."""
    azure.enter(monkeypatch)
    monkeypatch.setattr(module, "BUSY_POLL_S", 0.05)
    monkeypatch.setattr(module, "stack_of", lambda name: "dev")
    backend = AzureBackend()
    register_environment(backend.workspace.client, "ml-cpu", "1")
    deployment, lines, endpoints = (
        released(backend, "words", tmp_path),
        list[str](),
        backend.endpoints,
    )
    put, operation = "PUT .*/onlineEndpoints/words$", "GET /operations.*/words$"
    with endpoints.reserve("words", lines.append):
        azure.fail(
            {"pattern": "PUT .*/deployments/blue$", **CONFLICT},
            {"pattern": "GET /operations.*/blue$", "body": FAILED},
            {"pattern": put, "times": 2, **CONFLICT},
            {"pattern": operation, "body": FAILED},
        )
        live = Live(endpoints.begin(deployment, "blue")(), deployment)
        endpoints.switch("words", live)
        assert endpoints.live("words") is not None and azure.faults_left() == 0
        assert len(lines) == 5 and "another operation is in progress" in lines[0]

        def portal(_: float) -> None:
            """Somebody's change of the endpoint is what the release waits for."""
            resource = backend.workspace.client.online_endpoints.get("words")
            resource.tags = {
                **resource.tags,
                LIVE: ("green" if resource.tags[LIVE] == "blue" else "blue"),
            }
            backend.workspace.client.online_endpoints.begin_create_or_update(resource).result()

        azure.fail({"pattern": put, **CONFLICT})
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(module, "time", SimpleNamespace(sleep=portal, monotonic=lambda: 0.0))
            with pytest.raises(UserError, match="the tag live is green"):
                endpoints.switch("words", None)
            portal(0.0)

        # Its name is in the message, which says nothing of a quota.
        busy = "Request to update endpoint quota-words failed: it is in Updating provisioning state"
        azure.fail({"pattern": put, **CONFLICT, "message": busy})
        endpoints.switch("words", None)
        endpoints.switch("words", live)
        assert azure.faults_left() == 0

        azure.fail({"pattern": put, **CONFLICT, "message": "the quota is used up"})
        with pytest.raises(UserError, match="the quota is used up"):
            endpoints.switch("words", None)
        azure.fail({"pattern": put, "times": 9, **CONFLICT})
        with pytest.raises(UserError, match="another operation"):
            endpoints.switch("words", None)
        assert azure.faults_left() == 5
        azure.fail()
        azure.fail({"pattern": operation, "times": 9, "body": FAILED})
        with pytest.raises(UserError, match="an error"):
            endpoints.switch("words", None)
        azure.fail({"pattern": put, "times": 99, **CONFLICT})
        with monkeypatch.context() as soon, pytest.raises(UserError, match="another operation"):
            soon.setattr(module, "BUSY_S", 0.2)
            soon.setattr(AzureEndpoints, "_is_changing", lambda self, endpoint: True)
            endpoints.switch("words", live)
        azure.fail({"pattern": operation, "body": {"status": "Canceled"}})
        with pytest.raises(UserError, match=r"azure-canceled.*before it ended") as ended:
            endpoints.switch("words", live)
        assert ended.value.exit_code == Exit.RUN_FAILED
        azure.fail({"pattern": "DELETE .*/deployments/blue$", **CONFLICT})
        endpoints.switch("words", None)
        endpoints.stop_idle("words")
        assert azure.faults_left() == 0
        assert not [*backend.workspace.client.online_deployments.list("words")]
    with AzureBackend().endpoints.reserve("words", print):  # each left what the next one knows
        pass
