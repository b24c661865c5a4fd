"""Count the requests of a managed endpoint, and read the payloads of its data collectors.

Sample requests are sent and timed here. Each names its deployment, drawn at random by the traffic
shares, since the response does not name it. The service splits clients' requests itself and logs
them. Collectors write requests and responses as separate collections, JSON lines in hourly files:
learn.microsoft.com/azure/machine-learning/how-to-collect-production-data
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Lock
from typing import Any
from uuid import uuid4

from ml.backends.azure.errors import as_user_errors
from ml.backends.azure.workspace import MODEL_ERROR, Workspace
from ml.backends.endpoints import Answer, Live
from ml.backends.traffic import DEPLOYMENT_HEADER, REQUEST_ID, SAMPLE, Counters, Recent, choose
from ml.core.errors import UserError

# The header with the client's id of a request: XMSClientRequestId in the log.
CLIENT_ID = "x-ms-client-request-id"
# Prefix of the ids of requests that a release sends itself.
MARK = "release-"
# Polling interval of the log in seconds; Azure adds a request after some minutes.
LOG_S = 10.0
_QUERY = """\
AmlOnlineEndpointTrafficLog
| where EndpointName == "{endpoint}" and XMSClientRequestId !startswith "{mark}"
| extend Ingested = ingestion_time()
| where Ingested > datetime({since})
| project Ingested, DeploymentName, ResponseCode, ModelStatusCode, TotalDurationMs
| order by Ingested asc"""
# Default folder of collections: azure-ai-ml's `DEFAULT_MDC_PATH`.
_FOLDER = "modelDataCollector"
_REQUEST, _RESPONSE = "request", "response"
_HOUR = "%Y/%m/%d/%H"


class AzureRouter:
    """Implements `ml.backends.endpoints.Router` for one endpoint."""

    def __init__(
        self, workspace: Workspace, endpoint: str, url: str, say: Callable[[str], None]
    ) -> None:
        """Create the router; `say` receives the reason if clients' requests cannot be counted."""
        self.url = url
        self._workspace, self._endpoint, self._say = workspace, endpoint, say
        self._is_blind = False
        self._counters: dict[str, Counters] = {}
        self._recent = Recent()
        self._shares: Mapping[str, int] = {}
        self._live = ""
        self._lock = Lock()
        self._draw = random.Random()
        self._mark = f"{MARK}{uuid4()}"
        self._since = datetime.now(UTC).isoformat()
        self._asked = time.monotonic()

    def follow(self, state: Live) -> None:
        """Draw samples by the state's mirror shares, or by its traffic without a mirror."""
        with self._lock:
            self._live, self._shares = state.server.slot.name, state.mirror or state.traffic
            for name in state.traffic:
                self._counters.setdefault(name, Counters())

    def renew(self) -> Mapping[str, Any]:
        if time.monotonic() - self._asked >= LOG_S:
            self._read_log()
        with self._lock:
            return {"tallies": {name: asdict(counter) for name, counter in self._counters.items()}}

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        with self._lock:
            return [answer.to_json() for answer in self._recent.since(since)]

    @contextmanager
    def sampling(self) -> Iterator[Callable[[str], None]]:
        yield self._sample

    def _sample(self, body: str) -> None:
        with self._lock:
            name = choose(self._draw.random() * 100, self._shares, self._live)
        began = time.monotonic()
        answer = self.post(body, name)
        seconds = time.monotonic() - began
        content = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        with self._lock:
            self._counters[name].sample.add(answer.status, seconds, True)
            self._recent.add(name, SAMPLE, answer.status, content.encode())

    def post(self, body: str, deployment: str = "") -> Answer:
        """Post one request, to that deployment if named; raise OSError without a response."""
        headers = {CLIENT_ID: f"{self._mark}-{uuid4()}"}
        if deployment:
            headers |= {DEPLOYMENT_HEADER: deployment, REQUEST_ID: headers[CLIENT_ID]}
        status, text, by_model = self._workspace.score(self.url, body, headers)
        try:
            return Answer(status, json.loads(text), deployment, by_model)
        except ValueError:
            return Answer(status, text, deployment, by_model)

    def _read_log(self) -> None:
        """Count the new entries of the request log.

        If it cannot be read, say so once: the canary then judges by sample requests alone.
        """
        query = _QUERY.format(endpoint=self._endpoint, mark=self._mark, since=self._since)
        rows: Sequence[Mapping[str, Any]] = ()
        try:
            with as_user_errors():
                rows = self._workspace.logs(query)
        except UserError as refused:
            if not self._is_blind:
                self._is_blind = True
                actual = refused.problems[0].actual
                self._say(
                    f"{self._endpoint}: Log Analytics cannot be read, samples alone are judged: "
                    f"{actual}; infra doctor lists missing roles, make deploy writes the logs"
                )
        with self._lock:
            for row in rows:
                self._since = row.get("Ingested") or self._since
                if not row.get("DeploymentName") or not row.get("ResponseCode"):
                    continue  # no deployment responded
                counters = self._counters.setdefault(row["DeploymentName"], Counters())
                status, by_model = int(row["ResponseCode"]), int(row.get("ModelStatusCode") or 0)
                by_deployment = bool(by_model) or status < 400
                if status == MODEL_ERROR:
                    status = by_model or status
                counters.client.add(
                    status, float(row.get("TotalDurationMs") or 0) / 1000, by_deployment
                )
        self._asked = time.monotonic()


def collected(
    workspace: Workspace,
    endpoint: str,
    since: float | None = None,
    *,
    digests: Mapping[str, str],
) -> Iterator[Mapping[str, Any]]:
    """Yield the collected requests as `Endpoints.collected` does, without those of releases.

    A response names its model (`model_digest`), because deployments are reused. An error response
    names none: it is attributed to the model of the preceding response. If no response names a
    model, all are attributed to the deployment's current one (`digests`, by deployment).
    """
    first = datetime.fromtimestamp(since, UTC).strftime(_HOUR) if since else ""
    files: dict[str, set[str]] = defaultdict(set)
    with as_user_errors():
        for name in workspace.blobs.list_blob_names(name_starts_with=f"{_FOLDER}/{endpoint}/"):
            deployment, collection, file = (
                name.split("/", 4)[2:] if name.count("/") > 4 else [""] * 3
            )
            if collection in (_REQUEST, _RESPONSE) and file[: len(first)] >= first:
                files[deployment].add(file)
        for deployment in sorted(files):
            folder = f"{_FOLDER}/{endpoint}/{deployment}"
            names = sorted(files[deployment])
            yield from _pairs(workspace.blobs, folder, names, digests.get(deployment))


def _pairs(
    container: Any, folder: str, files: list[str], live_digest: str | None
) -> Iterator[Mapping[str, Any]]:
    """Yield a deployment's requests, joined with their responses by correlation id."""
    unanswered: dict[str, Mapping[str, Any]] = {}
    digest: str | None = None
    unknown: list[Mapping[str, Any]] = []  # before the first response with a digest
    for file in files:
        for event in _events(container, f"{folder}/{_REQUEST}/{file}"):
            if not {"correlationid", "data", "time"} <= event.keys():
                yield {}
            elif not str(event.get("xrequestid", "")).startswith(MARK):
                unanswered[str(event["correlationid"])] = event
        for event in _events(container, f"{folder}/{_RESPONSE}/{file}"):
            # Use responses to a release's requests too: they come first from a new version.
            answer = event.get("data")
            named = answer.get("model_digest") if isinstance(answer, dict) else None
            digest = str(named) if named else digest
            request = unanswered.pop(str(event.get("correlationid")), None)
            if request is not None and digest is None:
                unknown.append(_record(request, event, None))
            elif request is not None:
                yield _record(request, event, digest)
    for record in unknown:
        yield {**record, "digest": live_digest if digest is None else None} if record else record
    for request in unanswered.values():
        yield _record(request, {}, None)


def _events(container: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a blob: {} for an invalid line, and nothing if there is no blob."""
    from azure.core.exceptions import ResourceNotFoundError

    remainder = b""
    try:
        for chunk in container.download_blob(name).chunks():
            *lines, remainder = (remainder + chunk).split(b"\n")
            yield from map(_event, lines)
    except ResourceNotFoundError:
        return
    if remainder:
        yield _event(remainder)


def _event(text: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _record(
    request: Mapping[str, Any], response: Mapping[str, Any], digest: str | None
) -> Mapping[str, Any]:
    """Return request and response in the local router's format; {} for an invalid time."""
    try:
        timestamp = datetime.fromisoformat(str(request["time"])).timestamp()
    except ValueError:
        return {}
    return {
        "at": timestamp,
        "id": request.get("xrequestid") or request["correlationid"],
        "request": request["data"],
        "answer": response.get("data"),
        "status": int(response.get("statuscode", 200)),
        "digest": digest,
    }
