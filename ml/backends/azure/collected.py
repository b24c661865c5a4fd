"""What the data collectors of an endpoint's deployments wrote into the workspace's storage.

Requests and answers are collections of their own, files of an hour with JSON lines:
learn.microsoft.com/azure/machine-learning/how-to-collect-production-data
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ml.backends.azure.errors import as_refusals
from ml.backends.azure.traffic import MARK
from ml.backends.azure.workspace import Workspace

# Where a collection without a path of its own is: azure-ai-ml's `DEFAULT_MDC_PATH`.
_FOLDER = "modelDataCollector"
_REQUEST, _RESPONSE = "request", "response"
_HOUR = "%Y/%m/%d/%H"


def collected(
    workspace: Workspace,
    endpoint: str,
    since: float | None = None,
    *,
    serving: Mapping[str, str],
) -> Iterator[Mapping[str, Any]]:
    """See `Endpoints.collected`; requests sent by releases are excluded.

    A response names its model (`model_digest`), because deployments are reused. An error response
    names none: it is attributed to the model of the preceding response, else to the deployment's
    present model (`serving`, digests by deployment).
    """
    first = datetime.fromtimestamp(since, UTC).strftime(_HOUR) if since else ""
    files: dict[str, set[str]] = defaultdict(set)
    with as_refusals():
        for name in workspace.blobs.list_blob_names(name_starts_with=f"{_FOLDER}/{endpoint}/"):
            deployment, collection, file = (
                name.split("/", 4)[2:] if name.count("/") > 4 else [""] * 3
            )
            if collection in (_REQUEST, _RESPONSE) and file[: len(first)] >= first:
                files[deployment].add(file)
        for deployment in sorted(files):
            folder = f"{_FOLDER}/{endpoint}/{deployment}"
            names = sorted(files[deployment])
            yield from _pairs(workspace.blobs, folder, names, serving.get(deployment))


def _pairs(
    container: Any, folder: str, files: list[str], serving: str | None
) -> Iterator[Mapping[str, Any]]:
    """The requests of a deployment, each with its answer: they have an id in common."""
    unanswered: dict[str, Mapping[str, Any]] = {}
    digest: str | None = None
    unknown: list[Mapping[str, Any]] = []  # answered before any answer had a digest
    for file in files:
        for event in _events(container, f"{folder}/{_REQUEST}/{file}"):
            if not {"correlationid", "data", "time"} <= event.keys():
                yield {}
            elif not str(event.get("xrequestid", "")).startswith(MARK):
                unanswered[str(event["correlationid"])] = event
        for event in _events(container, f"{folder}/{_RESPONSE}/{file}"):
            # Answers to a release's own requests count here: they show a new version first.
            answer = event.get("data")
            named = answer.get("model_digest") if isinstance(answer, dict) else None
            digest = str(named) if named else digest
            request = unanswered.pop(str(event.get("correlationid")), None)
            if request is not None and digest is None:
                unknown.append(_record(request, event, None))
            elif request is not None:
                yield _record(request, event, digest)
    for record in unknown:
        yield {**record, "digest": serving if digest is None else None} if record else record
    for request in unanswered.values():
        yield _record(request, {}, None)


def _events(container: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """The lines of a blob; {} for one that is none, and none where there is no blob."""
    from azure.core.exceptions import ResourceNotFoundError

    rest = b""
    try:
        for chunk in container.download_blob(name).chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(_event, lines)
    except ResourceNotFoundError:
        return
    if rest:
        yield _event(rest)


def _event(text: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _record(
    request: Mapping[str, Any], response: Mapping[str, Any], digest: str | None
) -> Mapping[str, Any]:
    """The pair as the router of this machine records one."""
    try:
        at = datetime.fromisoformat(str(request["time"])).timestamp()
    except ValueError:
        return {}
    return {
        "at": at,
        "id": request.get("xrequestid") or request["correlationid"],
        "request": request["data"],
        "answer": response.get("data"),
        "status": int(response.get("statuscode", 200)),
        "digest": digest,
    }
