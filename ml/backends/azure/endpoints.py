"""Managed online endpoints, as the port `Endpoints` offers them.

The service keeps the state: an endpoint's traffic, and tags that say which deployment is live and
which are a canary's. One request changes both, so a killed release leaves no half of a switch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from ml.backends.azure.blobs import Lease
from ml.backends.azure.collected import collected
from ml.backends.azure.errors import as_refusals
from ml.backends.azure.registry import AzureRegistry
from ml.backends.azure.traffic import AzureRouter
from ml.backends.azure.workspace import Workspace
from ml.backends.registry import model_folder
from ml.core import documents, files
from ml.core.errors import Exit, Problem, Refused
from ml.serving import endpoint as local
from ml.serving.endpoint import BASELINE, SLOTS, Canary, Live
from ml.serving.router.routes import TIMEOUT_MS
from ml.serving.scoring.model import MODEL_DIGEST
from ml.serving.server import Answer, Launch, Server
from ml.specs.sdk import load

# Tags of an endpoint, each with the name of a deployment.
LIVE, CANARY = "live", "canary"
# Tags of a deployment.
MODEL, VERSION, DIGEST, SERVING, COLLECT = "model", "version", "digest", "serving", "collect"
# The error of a deployment whose container does not start: learn.microsoft.com/azure/
# machine-learning/how-to-troubleshoot-online-endpoints#error-resourcenotready
_NOT_READY = "ResourceNotReady"
# Set by the service from `request_settings`.
_TIMEOUT = "SCORING_TIMEOUT_MS"
_LOG_LINES = 15
# For how long a deployment that ran is taken to run.
_STATUS_S = 10.0
_UP = "Succeeded"
# Of a deployment: learn.microsoft.com/azure/azure-monitor/reference/supported-metrics/
# microsoft-machinelearningservices-workspaces-onlineendpoints-deployments-metrics
_MEMORY, _LATENCY = "CpuMemoryUtilizationPercentage", "RequestLatency_P95"
# Azure Monitor has a value for each minute, some minutes later; it is asked this often.
METRICS_S, _RECENT_S = 20.0, 900.0


class AzureEndpoints:
    """Implements `ml.backends.endpoints.Endpoints`. A `Server.slot` is ENDPOINT/DEPLOYMENT."""

    def __init__(self, workspace: Workspace, registry: AzureRegistry) -> None:
        self._workspace, self._registry = workspace, registry
        self._routers: dict[str, AzureRouter] = {}
        self._seen_up: dict[Path, float] = {}
        self._leases: dict[str, Lease] = {}
        self._metrics: dict[tuple[Server, str], tuple[float, list[tuple[float, float]]]] = {}
        self._sizes: dict[str, float] = {}

    def live(self, endpoint: str) -> Live | None:
        """By the endpoint's tags; of an endpoint without them, what has the most traffic."""
        resource = self._endpoint(endpoint)
        if resource is None:
            return None
        deployments = self._deployments(endpoint)
        traffic = resource.traffic or {}
        tags = resource.tags or {}
        name = tags.get(LIVE) or max(traffic, key=lambda each: traffic[each], default="")
        if name not in deployments or not (tags.get(LIVE) or traffic[name]):
            return None
        state = Live(_server(endpoint, name), _launch(endpoint, deployments[name]))
        if (green := deployments.get(tags.get(CANARY, ""))) is None:
            return state
        canary = Canary(
            _server(endpoint, green.name),
            _launch(endpoint, green),
            traffic.get(green.name, 0),
            (resource.mirror_traffic or {}).get(green.name, 0),
            _server(endpoint, BASELINE) if BASELINE in deployments else None,
        )
        return replace(state, canary=canary)

    def url(self, endpoint: str) -> str | None:
        resource = self._endpoint(endpoint)
        return str(resource.scoring_uri) if resource is not None and resource.traffic else None

    @contextmanager
    def locked(self, endpoint: str) -> Iterator[None]:
        """Among the processes of this machine; `reserve` is for other machines.

        azure-ai-ml prints a dot on stdout whenever it polls: nothing else is printed meanwhile.
        """
        lock = self._workspace.folder / "endpoints" / f"{endpoint}.lock"
        with files.locked(lock), redirect_stdout(StringIO()):
            yield

    @contextmanager
    def reserve(self, endpoint: str, waiting: Callable[[str], None]) -> Iterator[None]:
        with Lease(self._workspace, endpoint).hold(waiting) as lease:
            self._leases[endpoint] = lease
            try:
                yield
            finally:
                del self._leases[endpoint]

    def check_launch(self, launch: Launch) -> None:
        """Nothing is checked of what is deployed already: the service keeps it as it was."""
        if launch.settings:
            self._registry.bring(self._registry.find(launch.model, launch.version))
            local.check_launch(launch)

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
            self._routers[endpoint] = AzureRouter(self._workspace, endpoint, resource.scoring_uri)
            if (state := self.live(endpoint)) is not None:
                self._routers[endpoint].follow(state)
        return self._routers[endpoint]

    def start_router(self, endpoint: str, port: int | None = None) -> AzureRouter:
        router = self.router(endpoint)
        if router is None:
            raise self.nothing_served(endpoint)
        return router

    def other_slot(self, endpoint: str) -> Path:
        state = self.live(endpoint)
        occupied = state.server.slot.name if state else SLOTS[1]
        return Path(endpoint) / next(name for name in SLOTS if name != occupied)

    def begin(self, slot: Path, launch: Launch) -> Callable[[], Server]:
        """A second deployment of what is deployed is a copy of the first."""
        self._check_lease(launch.endpoint)
        deployment = self._deployment(slot, launch)
        self._make_endpoint(launch.endpoint)
        with as_refusals(), self._workspace.quiet():
            poller = self._client.online_deployments.begin_create_or_update(deployment)
        return lambda: self._wait(poller, slot)

    def switch(self, endpoint: str, to: Live | None) -> None:
        """With the same shares as on this machine, but a mirror for green alone.

        learn.microsoft.com/azure/machine-learning/how-to-safely-rollout-online-endpoints: "You can
        mirror traffic to only one deployment".
        """
        self._check_lease(endpoint)
        resource = self._endpoint(endpoint)
        if resource is None:
            return
        traffic: dict[str, int] = {}
        mirror: dict[str, int] = {}
        tags = {key: of for key, of in (resource.tags or {}).items() if key not in (LIVE, CANARY)}
        if to is not None:
            traffic = {name: of for name, of in local.routes(to)["traffic"].items() if of}
            tags[LIVE] = to.server.slot.name
        if to is not None and to.canary is not None:
            tags[CANARY] = to.canary.server.slot.name
            mirror = {tags[CANARY]: to.canary.mirror} if to.canary.mirror else {}
        resource.traffic, resource.mirror_traffic, resource.tags = traffic, mirror, tags
        with as_refusals(), self._workspace.quiet():
            self._client.online_endpoints.begin_create_or_update(resource).result()
        if to is not None and endpoint in self._routers:
            self._routers[endpoint].follow(to)

    def drain(self, endpoint: str) -> None:
        """The service does not say which requests are in flight: as long as one may take."""
        if idle := self._idle(endpoint).values():
            time.sleep(max(map(_timeout_ms, idle)) / 1000)

    def stop_idle(self, endpoint: str) -> None:
        self._check_lease(endpoint)
        for name in self._idle(endpoint):
            with as_refusals(), self._workspace.quiet():
                self._client.online_deployments.begin_delete(name, endpoint).result()

    def is_up(self, server: Server) -> bool:
        """As it was at most ten seconds ago."""
        now = time.monotonic()
        if now - self._seen_up.get(server.slot, -_STATUS_S) >= _STATUS_S:
            deployment = self._deployments(server.slot.parent.name).get(server.slot.name)
            if deployment is None or deployment.provisioning_state != _UP:
                self._seen_up.pop(server.slot, None)
                return False
            self._seen_up[server.slot] = now
        return True

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        router = self.start_router(server.slot.parent.name)
        return router.post(json.dumps(body), server.slot.name)

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """The answer's digest tells which deployment it was."""
        answer = self.start_router(endpoint).post(json.dumps(body))
        state = self.live(endpoint)
        digest = answer.body.get("model_digest") if isinstance(answer.body, dict) else None
        if state and state.canary and digest == state.canary.launch.digest != state.launch.digest:
            return replace(answer, deployment=state.canary.server.slot.name)
        return answer

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        return collected(self._workspace, endpoint, since)

    def nothing_served(self, endpoint: str) -> Refused:
        return Refused(
            Problem(
                "nothing-served",
                f"nothing serves on `{endpoint}` in the workspace {self._workspace.name}",
                "an endpoint that a model was released to",
                "ml release status --on azure",
            )
        )

    def resident(self, server: Server) -> tuple[float, float] | None:
        """As Azure Monitor has it: the average of its instances over the latest minute."""
        minutes = self._minutes(server, _MEMORY, time.time() - _RECENT_S)
        if not minutes:
            return None
        at, percent = minutes[-1]
        return at, percent / 100 * self._instance_bytes(server)

    def p95_ms(self, server: Server, since: float, until: float) -> float | None:
        """As Azure Monitor has it: the largest of the minutes; None until it has the last one."""
        minutes = self._minutes(server, _LATENCY, since - since % 60)
        if not minutes or minutes[-1][0] < until - until % 60:
            return None
        return max(value for _, value in minutes)

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> Refused:
        command = f"az ml online-deployment get-logs -e {slot.parent.name} -n {slot.name}"
        text = ""
        with suppress(Refused), as_refusals():
            text = self._client.online_deployments.get_logs(
                slot.name, slot.parent.name, lines=_LOG_LINES
            )
        end = "\n".join(f"    {line}" for line in text.splitlines())
        hint = f"{hint}; its log: {command}" if hint else f"its log: {command}"
        problem = Problem(code, f"{what}; its log ends:\n{end}", expected, hint)
        return Refused(problem, exit_code=Exit.RUN_FAILED)

    @property
    def _client(self) -> Any:
        return self._workspace.client

    def _endpoint(self, name: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        with as_refusals():
            try:
                return self._client.online_endpoints.get(name)
            except ResourceNotFoundError:
                return None

    def _minutes(self, server: Server, metric: str, since: float) -> list[tuple[float, float]]:
        """The minutes since then (epoch seconds) of a metric of the server's deployment."""
        now = time.monotonic()
        asked, minutes = self._metrics.get((server, metric), (-METRICS_S, []))
        if now - asked >= METRICS_S:
            name = server.slot.as_posix().replace("/", "/deployments/")
            with as_refusals():
                minutes = self._workspace.metric(f"onlineEndpoints/{name}", metric, since)
            self._metrics[server, metric] = now, minutes
        return minutes

    def _instance_bytes(self, server: Server) -> float:
        """The memory of one instance of the server's deployment."""
        with as_refusals():
            deployment = self._client.online_deployments.get(
                server.slot.name, server.slot.parent.name
            )
            if not self._sizes:
                # azure-ai-ml 1.35 leaves `memory_gb` empty and sets the service's own name.
                self._sizes = {
                    size.name.lower(): vars(size)["memoryGB"] * 2.0**30
                    for size in self._client.compute.list_sizes()
                }
        if (size := self._sizes.get(deployment.instance_type.lower())) is None:
            raise Refused(
                Problem(
                    "no-such-size",
                    f"how much memory a {deployment.instance_type} has is not known: a canary "
                    "cannot judge it",
                    "a size of the workspace's region",
                    "az ml compute list-sizes",
                )
            )
        return size

    def _check_lease(self, endpoint: str) -> None:
        if endpoint in self._leases:
            self._leases[endpoint].check()

    def _deployments(self, endpoint: str) -> dict[str, Any]:
        """The endpoint's deployments by name; none without an endpoint."""
        from azure.core.exceptions import ResourceNotFoundError

        with as_refusals():
            try:
                return {each.name: each for each in self._client.online_deployments.list(endpoint)}
            except ResourceNotFoundError:
                return {}

    def _idle(self, endpoint: str) -> dict[str, Any]:
        """The deployments of releases that have no part in the state; others are not ours."""
        state = self.live(endpoint)
        named = {each.slot.name for each in (state.server, *state.beside)} if state else set()
        return {
            name: each
            for name, each in self._deployments(endpoint).items()
            if name in (*SLOTS, BASELINE) and name not in named
        }

    def _make_endpoint(self, name: str) -> None:
        from azure.ai.ml.entities import ManagedOnlineEndpoint

        if self._endpoint(name) is None:
            resource = ManagedOnlineEndpoint(name=name, auth_mode="aad_token")
            with as_refusals(), self._workspace.quiet():
                self._client.online_endpoints.begin_create_or_update(resource).result()

    def _deployment(self, slot: Path, launch: Launch) -> Any:
        from azure.ai.ml.entities import CodeConfiguration

        if not launch.settings:
            for deployed in self._deployments(launch.endpoint).values():
                tags = deployed.tags or {}
                if (tags.get(DIGEST), tags.get(SERVING)) == (launch.digest, launch.serving):
                    deployed.name = slot.name
                    if deployed.data_collector is not None:
                        for collection in deployed.data_collector.collections.values():
                            collection.data = None  # that of the copy has a place of its own
                    return deployed
            raise self.nothing_served(launch.endpoint)
        file = launch.code / Path(launch.scoring_script).parent / "deployment.yml"
        document = documents.parse(yaml.safe_dump(dict(launch.settings)), str(file))
        deployment = load.from_document(document, file, {}).entity
        deployment.name, deployment.endpoint_name = slot.name, launch.endpoint
        deployment.model = self._registry.reference(launch.model, launch.version)
        deployment.code_configuration = CodeConfiguration(
            code=str(launch.code), scoring_script=launch.scoring_script
        )
        variables = {**launch.environment_variables, MODEL_DIGEST: launch.digest}
        variables.pop(_TIMEOUT, None)
        deployment.environment_variables = variables
        deployment.tags = {
            **{MODEL: launch.model, VERSION: launch.version, DIGEST: launch.digest},
            **{SERVING: launch.serving, COLLECT: str(launch.collect)},
        }
        return deployment

    def _wait(self, poller: Any, slot: Path) -> Server:
        from azure.core.exceptions import HttpResponseError

        try:
            with as_refusals():
                try:
                    poller.result()
                except HttpResponseError as error:
                    if _NOT_READY not in str(error):
                        raise
                    what = f"the deployment did not start: {error.message.splitlines()[0]}"
                    raise self.failure(slot, "server-crashed", what) from None
        except BaseException:
            with suppress(Refused), as_refusals():
                self._client.online_deployments.begin_delete(slot.name, slot.parent.name).result()
            raise
        return Server(slot, 0, 0)


def _server(endpoint: str, name: str) -> Server:
    return Server(Path(endpoint) / name, 0, 0)


def _timeout_ms(deployment: Any) -> float:
    return float(getattr(deployment.request_settings, "request_timeout_ms", None) or TIMEOUT_MS)


def _launch(endpoint: str, deployment: Any) -> Launch:
    """What is deployed; it has no code and settings on this machine."""
    tags = deployment.tags or {}
    digest = tags.get(DIGEST, "")
    return Launch(
        endpoint=endpoint,
        model=tags.get(MODEL, ""),
        version=tags.get(VERSION, ""),
        digest=digest,
        code=Path(),
        scoring_script="",
        model_folder=model_folder(digest),
        environment_variables=deployment.environment_variables or {},
        collect=float(tags.get(COLLECT, 0)),
        serving=tags.get(SERVING, ""),
    )
