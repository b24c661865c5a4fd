"""Managed online endpoints: the Azure implementation of the port `Endpoints`.

`infra` creates the endpoints; the stack files name them. The service stores the state: the
endpoint's traffic, and tags that say which deployment is live and which are a canary's. One request
changes both, so a killed release never leaves half of a switch. The workspace's storage also has
the state that a release last wrote. If the endpoint differs from it, somebody else changed the
endpoint, and the release stops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from infra.settings import loader
from ml.backends.azure.blobs import Lease
from ml.backends.azure.endpoint_record import (
    CANARY,
    COLLECT,
    DEPLOYMENT_DIGEST,
    DIGEST,
    EXPERIMENT,
    LIVE,
    MODEL,
    NOTHING,
    TAGS,
    VERSION,
    Record,
    Routes,
    Written,
    changes_of,
    content_of,
    refusal_of,
    routes_of,
    stack_of,
    tags_of,
)
from ml.backends.azure.errors import as_user_errors, is_passing, or_none
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.traffic import AzureRouter, collected
from ml.backends.azure.workspace import Workspace
from ml.backends.endpoints import (
    BASELINE,
    SLOTS,
    Answer,
    Canary,
    Live,
    ModelDeployment,
    Server,
    check_deployment,
    idle_slot,
)
from ml.backends.model_registry import model_folder
from ml.backends.runs import QUIET_S
from ml.backends.traffic import TIMEOUT_MS
from ml.core import documents, files
from ml.core.errors import Exit, Problem, UserError
from ml.serving.scoring.model import MODEL_DIGEST
from ml.specs.sdk import load

# The error of a deployment whose container does not start: learn.microsoft.com/azure/
# machine-learning/how-to-troubleshoot-online-endpoints#error-resourcenotready
_NOT_READY = "ResourceNotReady"
# Set by the service from `request_settings`.
_TIMEOUT = "SCORING_TIMEOUT_MS"
_LOG_LINES = 15
# How long `is_up` caches that a deployment runs, in seconds.
_STATUS_S = 10.0
# Temporary values of `provisioningState`, counted as running: scaling and updates do not stop a
# deployment, and a deleted one is missing at the next poll.
_PASSING = ("Creating", "Updating", "Scaling", "Deleting", "Canceled")
_UP = frozenset({"Succeeded", *_PASSING})
# "If the value is other than these, the operation is still running": learn.microsoft.com/azure/
# azure-resource-manager/management/async-operations#provisioningstate-values
_ENDED = frozenset({"Succeeded", "Failed", "Canceled"})
# Timeout and polling interval for another operation on the endpoint, and the number of retries
# after a server error or a conflict that `provisioning_state` does not show.
BUSY_S, BUSY_POLL_S, _FAULTS = 1800.0, 15.0, 3
# Metrics of a deployment. A canary compares no per-minute P95: it mixes samples and callers.
# learn.microsoft.com/azure/azure-monitor/reference/supported-metrics/
# microsoft-machinelearningservices-workspaces-onlineendpoints-deployments-metrics
_MEMORY, _LATENCY = "CpuMemoryUtilizationPercentage", "RequestLatency_P95"
# Polling interval and look-back: Azure Monitor publishes each minute's value minutes later.
METRICS_S, _RECENT_S = 20.0, 900.0


class AzureEndpoints:
    """Implements `ml.backends.endpoints.Endpoints`. A `Server.slot` is ENDPOINT/DEPLOYMENT."""

    exposed = None  # callers name the deployment

    def __init__(self, workspace: Workspace, registry: AzureRegistry) -> None:
        self._workspace, self._registry = workspace, registry
        self._routers: dict[str, AzureRouter] = {}
        self._seen_up: dict[Path, float] = {}
        self._leases: dict[str, Lease] = {}
        self._say: Callable[[str], None] = lambda _: None
        self._metrics: dict[tuple[Server, str], tuple[float, list[tuple[float, float]]]] = {}
        self._sizes: dict[str, float] = {}
        self._is_blind = False  # whether the user knows that metrics cannot be read

    def name_of(self, model: str, environment: str) -> str:
        """Return the endpoint's name by the stack's settings; MODEL-ENVIRONMENT without a stack."""
        if environment not in loader.environments(loader.FOLDER):
            return f"{model}-{environment}"
        return loader.declared(environment, loader.FOLDER).names.regional(model)

    def live(self, endpoint: str, *, as_released: bool = True) -> Live | None:
        """Return the live state from the endpoint's tags; None if nothing was released.

        If `as_released`, raise UserError if the endpoint changed since the last release.
        """
        resource = self._endpoint(endpoint)
        if resource is None:
            return None
        if as_released:
            return self._state(endpoint, *self._check(endpoint))
        return self._state(endpoint, resource, self._deployments(endpoint))

    def _state(self, endpoint: str, resource: Any, deployments: Mapping[str, Any]) -> Live | None:
        routes = routes_of(resource)
        traffic, name = routes["traffic"], routes[LIVE]
        if not name:
            return None
        if name not in deployments:
            raise refusal_of(endpoint, [f"the deployment {name} is gone"], routes)
        state = Live(_server(endpoint, name), _model_deployment(endpoint, deployments[name]))
        if (green := deployments.get(routes[CANARY])) is None:
            return state
        canary = Canary(
            _server(endpoint, green.name),
            _model_deployment(endpoint, green),
            traffic.get(green.name, 0),
            routes["mirror"].get(green.name, 0),
            _server(endpoint, BASELINE) if BASELINE in deployments else None,
            routes.get(EXPERIMENT, ""),
        )
        return replace(state, canary=canary)

    def url(self, endpoint: str) -> str | None:
        resource = self._endpoint(endpoint)
        serves = resource is not None and routes_of(resource)["traffic"]
        return str(resource.scoring_uri) if serves else None

    @contextmanager
    def locked(self, endpoint: str) -> Iterator[None]:
        """Lock the endpoint among the processes of this machine; `reserve` is for other machines.

        azure-ai-ml prints a dot on stdout at every poll, so stdout is discarded in the block.
        """
        lock = self._workspace.folder / "endpoints" / f"{endpoint}.lock"
        with files.locked(lock), redirect_stdout(StringIO()):
            yield

    @contextmanager
    def reserve(self, endpoint: str, waiting: Callable[[str], None]) -> Iterator[None]:
        """Lock the endpoint for this machine; `waiting` is called while another one holds it.

        Raise UserError if no stack declares the endpoint, if it does not exist on Azure, or if
        somebody changed it.
        """
        if stack_of(endpoint) is None:
            raise self._no_endpoint(endpoint)
        with Lease(self._workspace, endpoint).hold(waiting) as lease:
            self._leases[endpoint], self._say = lease, waiting
            try:
                self._check(endpoint)
                yield
            finally:
                del self._leases[endpoint]

    def check_deployment(self, deployment: ModelDeployment) -> None:
        """Check the endpoint and the deployment.

        Raise UserError if either changed after the release.
        """
        self._check(deployment.endpoint)
        if deployment.settings:
            self._registry.download(self._registry.find(deployment.model, deployment.version))
            check_deployment(deployment)

    def ensure(self, endpoint: str, port: int | None = None) -> tuple[Live, bool]:
        state = self.live(endpoint)
        if state is None:
            raise self.nothing_served(endpoint)
        return state, False

    def router(self, endpoint: str) -> AzureRouter | None:
        if endpoint not in self._routers:
            resource = self._endpoint(endpoint)
            if resource is None:
                return None
            self._routers[endpoint] = AzureRouter(
                self._workspace, endpoint, resource.scoring_uri, lambda text: self._say(text)
            )
            if (state := self.live(endpoint, as_released=False)) is not None:
                self._routers[endpoint].follow(state)
        return self._routers[endpoint]

    def start_router(self, endpoint: str, port: int | None = None) -> AzureRouter:
        router = self.router(endpoint)
        if router is None:
            raise self.nothing_served(endpoint)
        return router

    def begin(self, deployment: ModelDeployment, slot: str = "") -> Callable[[], Server]:
        """Begin a deployment; return a function that waits for its server.

        Without `settings`, it is a copy of the running deployment with the same digests.
        """
        self._check_lease(deployment.endpoint)
        resource, deployments = self._check(deployment.endpoint)
        name = slot or idle_slot(self._state(deployment.endpoint, resource, deployments))
        entity = self._deployment(name, deployment, deployments.values())
        self._note(deployment.endpoint, {name: None})

        def put() -> Any:
            self._check(deployment.endpoint)
            return self._client.online_deployments.begin_create_or_update(entity)

        with as_user_errors():
            wait = self._begun(deployment.endpoint, put)
        return lambda: self._wait(wait, Path(deployment.endpoint) / name)

    def switch(self, endpoint: str, to: Live | None) -> None:
        """Set the endpoint's traffic, mirror and tags to the state; only the canary gets a mirror.

        learn.microsoft.com/azure/machine-learning/how-to-safely-rollout-online-endpoints: "You can
        mirror traffic to only one deployment".
        """
        self._check_lease(endpoint)
        before = routes_of(self._check(endpoint)[0])
        after: Routes = {"traffic": {}, "mirror": {}, LIVE: "", CANARY: ""}
        if to is not None:
            after["traffic"] = {name: value for name, value in to.traffic.items() if value}
            after[LIVE] = to.server.slot.name
        if to is not None and to.canary is not None:
            after[CANARY] = to.canary.server.slot.name
            after["mirror"] = {after[CANARY]: to.canary.mirror} if to.canary.mirror else {}
            if to.canary.experiment:
                after[EXPERIMENT] = to.canary.experiment

        def put() -> Any:
            resource, _ = self._check(endpoint)
            resource.traffic, resource.mirror_traffic = after["traffic"], after["mirror"]
            others = {key: value for key, value in (resource.tags or {}).items() if key not in TAGS}
            resource.tags = others | tags_of(after)
            return self._client.online_endpoints.begin_create_or_update(resource)

        if after != before:
            # If the release is killed in between, both states are valid.
            self._note(endpoint, routes=[before, after])
            with as_user_errors():
                self._begun(endpoint, put)()
            self._await_routes(endpoint, before, after)
            self._note(endpoint, routes=[after])
        if to is not None and endpoint in self._routers:
            self._routers[endpoint].follow(to)

    def drain(self, endpoint: str) -> None:
        """Wait for the longest request timeout of the deployments without traffic.

        Azure does not report which requests are in flight.
        """
        if idle := self._idle(endpoint).values():
            time.sleep(max(map(_timeout_ms, idle)) / 1000)

    def stop_idle(self, endpoint: str) -> None:
        self._check_lease(endpoint)
        self._check(endpoint)
        idle = self._idle(endpoint)
        self._note(endpoint, dict.fromkeys(idle))
        for name in idle:
            self._delete(endpoint, name)

    def is_up(self, server: Server) -> bool:
        """Return whether the deployment runs; True is cached for `_STATUS_S` seconds."""
        now = time.monotonic()
        if now - self._seen_up.get(server.slot, -_STATUS_S) >= _STATUS_S:
            endpoint = server.slot.parent.name
            deployment = self._deployments(endpoint).get(server.slot.name)
            if deployment is None or deployment.provisioning_state not in _UP:
                self._seen_up.pop(server.slot, None)
                self._check(endpoint)  # raise if somebody deleted it
                return False
            self._seen_up[server.slot] = now
        return True

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        """Return the deployment's response; raise UserError (deployment-unresponsive) if none."""
        slot = server.slot
        try:
            answer = self.start_router(slot.parent.name).post(json.dumps(body), slot.name)
        except OSError as error:
            raise self._unanswered(slot, str(error)) from None
        if not answer.by_model:
            raise self._unanswered(slot, f"status {answer.status}, {answer.excerpt}")
        return answer

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """Post a request through the router; the response's digest identifies the deployment."""
        answer = self.start_router(endpoint).post(json.dumps(body))
        state = self.live(endpoint, as_released=False)
        digest = answer.body.get("model_digest") if isinstance(answer.body, dict) else None
        if (
            state
            and state.canary
            and digest == state.canary.deployment.digest != state.deployment.digest
        ):
            return replace(answer, deployment=state.canary.server.slot.name)
        return answer

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        live = None
        with suppress(UserError):  # requests stay readable if somebody changed the endpoint
            live = self.live(endpoint, as_released=False)
        states = [state for state in (live, live and live.canary) if state]
        digests = {state.server.slot.name: state.deployment.digest for state in states}
        return collected(self._workspace, endpoint, since, digests=digests)

    def nothing_served(self, endpoint: str) -> UserError:
        actual = f"no model is released to `{endpoint}` in the workspace {self._workspace.name}"
        expected, hint = "an endpoint that a model was released to", "ml release status --on azure"
        return UserError(Problem("no-live-deployment", actual, expected, hint))

    def resident(self, server: Server) -> tuple[float, float] | None:
        """Return (epoch seconds, bytes): the instances' average memory in the latest minute.

        Return None if Azure Monitor has no value or cannot be read: memory is then not judged.
        """
        try:
            minutes = self._minutes(server, _MEMORY, time.time() - _RECENT_S)
        except UserError as refused:
            if not self._is_blind:
                self._is_blind = True
                self._say(
                    f"{server.slot.parent}: Azure Monitor cannot be read, memory is not judged: "
                    f"{refused.problems[0].actual}; infra doctor lists missing roles"
                )
            return None
        if not minutes:
            return None
        timestamp, percent = minutes[-1]
        return timestamp, percent / 100 * self._instance_bytes(server)

    def p95_ms(self, server: Server, since: float, until: float) -> float | None:
        """Return the largest P95 of a minute (Azure Monitor); None until it has the last minute."""
        minutes = self._minutes(server, _LATENCY, since - since % 60)
        if not minutes or minutes[-1][0] < until - until % 60:
            return None
        return max(value for _, value in minutes)

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> UserError:
        command = f"az ml online-deployment get-logs -e {slot.parent.name} -n {slot.name}"
        text = ""
        with suppress(UserError), as_user_errors():
            text = self._client.online_deployments.get_logs(
                slot.name, slot.parent.name, lines=_LOG_LINES
            )
        end = "\n".join(f"    {line}" for line in text.splitlines())
        hint = f"{hint}; its log: {command}" if hint else f"its log: {command}"
        problem = Problem(code, f"{what}; its log ends:\n{end}", expected, hint)
        return UserError(problem, exit_code=Exit.RUN_FAILED)

    def _unanswered(self, slot: Path, why: str) -> UserError:
        what = f"the deployment `{slot.name}` of `{slot.parent.name}` did not respond: {why}"
        expected, hint = "a response of its model", "apply again: traffic is unchanged"
        return self.failure(slot, "deployment-unresponsive", what, expected, hint)

    @property
    def _client(self) -> Any:
        return self._workspace.client

    def _endpoint(self, name: str) -> Any:
        return or_none(lambda: self._client.online_endpoints.get(name))

    def _minutes(self, server: Server, metric: str, since: float) -> list[tuple[float, float]]:
        """Return a metric of the deployment since that time: (epoch seconds, value) per minute."""
        now = time.monotonic()
        queried, minutes = self._metrics.get((server, metric), (-METRICS_S, []))
        if now - queried >= METRICS_S:
            name = server.slot.as_posix().replace("/", "/deployments/")
            with as_user_errors():
                minutes = self._workspace.metric(f"onlineEndpoints/{name}", metric, since)
            self._metrics[server, metric] = now, minutes
        return minutes

    def _instance_bytes(self, server: Server) -> float:
        """Return the memory of one instance of the deployment in bytes; UserError if unknown."""
        with as_user_errors():
            deployment = self._client.online_deployments.get(
                server.slot.name, server.slot.parent.name
            )
            if not self._sizes:
                # azure-ai-ml 1.35 leaves `memory_gb` empty and sets `memoryGB`.
                self._sizes = {
                    size.name.lower(): vars(size)["memoryGB"] * 2.0**30
                    for size in self._client.compute.list_sizes()
                }
        if (size := self._sizes.get(deployment.instance_type.lower())) is None:
            raise UserError(
                Problem(
                    "no-such-size",
                    f"the memory size of {deployment.instance_type} is unknown, so a canary cannot "
                    "judge memory",
                    "a size of the workspace's region",
                    "az ml compute list-sizes",
                )
            )
        return size

    def _check_lease(self, endpoint: str) -> None:
        if endpoint in self._leases:
            self._leases[endpoint].check()

    def _deployments(self, endpoint: str) -> dict[str, Any]:
        """Return the endpoint's deployments by name; none without an endpoint."""
        listed = or_none(lambda: list(self._client.online_deployments.list(endpoint)))
        return {deployment.name: deployment for deployment in listed or ()}

    def _idle(self, endpoint: str) -> dict[str, Any]:
        """Return the releases' deployments that neither the live state nor its canary uses."""
        state = self.live(endpoint)
        named = (
            {server.slot.name for server in (state.server, *state.canary_servers)}
            if state
            else set()
        )
        return {
            name: deployment
            for name, deployment in self._deployments(endpoint).items()
            if name in (*SLOTS, BASELINE) and name not in named
        }

    def _check(self, endpoint: str) -> tuple[Any, dict[str, Any]]:
        """Return the endpoint and its deployments; raise UserError if somebody changed them."""
        while True:
            resource, record = self._recorded(endpoint)
            deployments = self._deployments(endpoint)
            changes = list(changes_of(record, routes_of(resource), deployments))
            if not changes:
                return resource, deployments
            if self._recorded(endpoint)[1] == record:  # else a release changed it: compare again
                raise refusal_of(endpoint, changes, record["routes"][-1])

    def _recorded(self, endpoint: str) -> tuple[Any, Written]:
        """Return the endpoint and the state that releases last wrote of it.

        The record of an earlier endpoint with the same name is ignored.
        """
        record = Record(self._workspace, endpoint).read()
        resource = self._endpoint(endpoint)
        if resource is None:
            raise self._no_endpoint(endpoint)
        created = str((resource.properties or {}).get("createdAt"))
        if record is None or record["created"] != created:
            record = {"created": created, "routes": [NOTHING], "deployments": {}}
        return resource, record

    def _note(
        self,
        endpoint: str,
        deployments: Mapping[str, dict[str, str] | None] | None = None,
        routes: list[Routes] | None = None,
    ) -> None:
        """Update the endpoint's record, before and after the release changes the endpoint.

        A deployment recorded as None is being created or deleted: it may exist or not.
        """
        if routes is None and not deployments:
            return
        _, record = self._recorded(endpoint)
        record["routes"] = routes or record["routes"]
        record["deployments"] |= deployments or {}
        Record(self._workspace, endpoint).write(record)

    def _delete(self, endpoint: str, name: str) -> None:
        def delete() -> Any:
            self._check(endpoint)
            return self._client.online_deployments.begin_delete(name, endpoint)

        with as_user_errors():
            self._begun(endpoint, delete)()
        _, record = self._recorded(endpoint)
        record["deployments"].pop(name, None)
        Record(self._workspace, endpoint).write(record)

    def _begun(self, endpoint: str, begin: Callable[[], Any]) -> Callable[[], Any]:
        """Begin an operation on the endpoint; return a function that waits for its end.

        After a conflict (409) with another operation on the endpoint, wait and retry until the
        deadline. After a conflict without one, or a fault of the service, retry `_FAULTS` times.
        `begin` compares the endpoint with the record, since somebody else may have changed it.
        """
        from azure.core.exceptions import HttpResponseError

        deadline, faults = time.monotonic() + BUSY_S, 0

        def persist(act: Callable[[], Any]) -> Any:
            nonlocal faults
            while True:
                try:
                    with self._workspace.quiet():
                        return act()
                except HttpResponseError as error:
                    is_busy = error.status_code == 409 and self._is_changing(endpoint)
                    if not (is_busy or is_passing(error)) or time.monotonic() > deadline:
                        raise
                    faults += not is_busy
                    if faults > _FAULTS:
                        raise
                    why = str(error.message).splitlines()[0]
                self._check_lease(endpoint)
                self._say(f"{endpoint}: {why}; waiting")
                time.sleep(BUSY_POLL_S)

        pollers, began = [persist(begin)], time.monotonic()

        def has_ended() -> bool:
            poller = pollers.pop() if pollers else begin()
            poller.wait(QUIET_S)
            ended = bool(poller.done())
            if ended:
                poller.result()
            pollers.append(poller)
            return ended

        def wait() -> Any:
            while not persist(has_ended):
                self._say(f"{endpoint}: waiting for Azure, {time.monotonic() - began:.0f} s so far")
            return pollers[0].result()

        return wait

    def _is_changing(self, endpoint: str) -> bool:
        """Return whether an operation on the endpoint or a deployment of it is in progress."""
        every = [self._endpoint(endpoint), *self._deployments(endpoint).values()]
        return any(item is not None and item.provisioning_state not in _ENDED for item in every)

    def _await_routes(self, endpoint: str, before: Routes, after: Routes) -> None:
        """Wait until Azure returns the new routes (Azure/azure-dev#3881); UserError for others."""
        deadline = time.monotonic() + BUSY_S
        while (now := routes_of(self._recorded(endpoint)[0])) != after:
            if now != before or time.monotonic() > deadline:
                wanted: Written = {"created": "", "routes": [after], "deployments": {}}
                changes = list(changes_of(wanted, now, {}))
                raise refusal_of(endpoint, changes, after)
            time.sleep(BUSY_POLL_S)

    def _no_endpoint(self, name: str) -> UserError:
        stack = stack_of(name)
        declare = "" if stack else "name it under `platform:endpoints` in infra/Pulumi.ENV.yaml; "
        return UserError(
            Problem(
                "no-endpoint",
                f"the workspace {self._workspace.name} has no endpoint `{name}`"
                if stack
                else f"no stack declares the endpoint `{name}`",
                "the endpoint that infra makes, with its identity, diagnostics and alerts",
                f"{declare}make deploy ENV={stack or 'ENV'}, as infra.yml does after a merge",
            )
        )

    def _deployment(
        self, name: str, deployment: ModelDeployment, deployments: Iterable[Any]
    ) -> Any:
        from azure.ai.ml.entities import CodeConfiguration

        if not deployment.settings:
            for deployed in deployments:
                if deployed.name not in (*SLOTS, BASELINE):
                    continue  # not of a release, whatever its tags say
                tags = deployed.tags or {}
                if (tags.get(DIGEST), tags.get(DEPLOYMENT_DIGEST)) == (
                    deployment.digest,
                    deployment.deployment_digest,
                ):
                    deployed.name = name
                    if deployed.data_collector is not None:
                        for collection in deployed.data_collector.collections.values():
                            collection.data = None  # the copy collects into its own path
                    return deployed
            raise self.nothing_served(deployment.endpoint)
        file = deployment.code / Path(deployment.scoring_script).parent / "deployment.yml"
        document = documents.parse(yaml.safe_dump(dict(deployment.settings)), str(file))
        entity = load.from_document(document, file, {}).entity
        entity.name, entity.endpoint_name = name, deployment.endpoint
        entity.model = self._registry.reference(deployment.model, deployment.version)
        entity.code_configuration = CodeConfiguration(
            code=str(deployment.code), scoring_script=deployment.scoring_script
        )
        variables = {**deployment.environment_variables, MODEL_DIGEST: deployment.digest}
        variables.pop(_TIMEOUT, None)
        entity.environment_variables = variables
        entity.tags = {
            **(entity.tags or {}),
            **{MODEL: deployment.model, VERSION: deployment.version, DIGEST: deployment.digest},
            **{DEPLOYMENT_DIGEST: deployment.deployment_digest, COLLECT: str(deployment.collect)},
        }
        return entity

    def _wait(self, wait: Callable[[], Any], slot: Path) -> Server:
        from azure.core.exceptions import HttpResponseError

        endpoint = slot.parent.name
        try:
            with as_user_errors():
                try:
                    wait()
                except HttpResponseError as error:
                    if _NOT_READY not in str(error):
                        raise
                    what = f"the deployment did not start: {error.message.splitlines()[0]}"
                    raise self.failure(slot, "server-crashed", what) from None
        except BaseException:
            with suppress(UserError):
                self._delete(endpoint, slot.name)
            raise
        entity = self._deployments(endpoint).get(slot.name)
        if entity is None:
            gone = [f"the deployment {slot.name} is gone"]
            raise refusal_of(endpoint, gone, self._recorded(endpoint)[1]["routes"][-1])
        self._note(endpoint, {slot.name: content_of(entity)})
        return Server(slot, 0, 0)


def _server(endpoint: str, name: str) -> Server:
    return Server(Path(endpoint) / name, 0, 0)


def _timeout_ms(entity: Any) -> float:
    return float(getattr(entity.request_settings, "request_timeout_ms", None) or TIMEOUT_MS)


def _share(text: str | None) -> float:
    """Return the share in a tag; 0 if it is not a number."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _model_deployment(endpoint: str, entity: Any) -> ModelDeployment:
    """Return the model deployment from the tags; its code and settings are not on this machine."""
    tags = entity.tags or {}
    digest = tags.get(DIGEST, "")
    return ModelDeployment(
        endpoint=endpoint,
        model=tags.get(MODEL, ""),
        version=tags.get(VERSION, ""),
        digest=digest,
        code=Path(),
        scoring_script="",
        model_folder=model_folder(digest),
        environment_variables=entity.environment_variables or {},
        collect=_share(tags.get(COLLECT)),
        deployment_digest=tags.get(DEPLOYMENT_DIGEST, ""),
    )
