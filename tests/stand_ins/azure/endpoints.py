"""Managed online endpoints: deployments, traffic, mirrors, scoring, and the request log."""

from __future__ import annotations

import json
import random
import re
import uuid
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import numpy as np

from ml.backends.traffic import DEPLOYMENT_HEADER, choose
from tests.stand_ins.azure.deployed import Deployed
from tests.stand_ins.azure.server import AGAIN, Answer, Refusal, Request
from tests.stand_ins.azure.service import INSTANCE_GIB, Workspace, route

_ENDPOINT = r"{ws}/onlineEndpoints/(?P<endpoint>[^/]+)"
_DEPLOYMENT = rf"{_ENDPOINT}/deployments/(?P<deployment>[^/]+)"
# Regular expressions of the supported conditions in a log query.
_CONDITIONS = {
    "endpoint": r'EndpointName == "([^"]+)"',
    "mark": r'XMSClientRequestId !startswith "([^"]+)"',
    "since": r"Ingested > datetime\(([^)]+)\)",
    "columns": r"project ([\w, ]+)",
}
# Types of columns; others are strings. docs
# azure-monitor/reference/tables/amlonlineendpointtrafficlog
_TYPES = {
    **dict.fromkeys(("ResponseCode", "ModelStatusCode", "TotalDurationMs"), "int"),
    "Ingested": "datetime",
}
_COLUMNS = re.compile(r"AmlOnlineEndpointTrafficLog \| take 0 \| project ([\w, ]+)")
MODEL_ERROR = 424
METRICS = ("CpuMemoryUtilizationPercentage", "RequestLatency_P95")


@route("PUT", _ENDPOINT)
def _put_endpoint(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Create or update an endpoint: spec OnlineEndpoint/createOrUpdate.

    The SDK polls `Azure-AsyncOperation`.
    """
    self.demand("onlineEndpoints", request.body)
    path, properties = self.path(match), dict(request.body["properties"])
    _check_traffic(self, path, properties.get("traffic") or {}, properties.get("mirrorTraffic"))
    score = f"{self.url}/score{self.id}/{match['endpoint']}"
    properties |= {"scoringUri": score, "swaggerUri": f"{score}/swagger.json"}
    properties["properties"] = properties.get("properties") or {}
    before = self.resources.get(path.lower())
    is_new = before is None
    resource = self.resource(path, {**properties, "provisioningState": "Succeeded"})
    if before is not None:
        resource["systemData"]["createdAt"] = before["systemData"]["createdAt"]
    resource |= {"location": request.body["location"], "tags": request.body.get("tags") or {}}
    self.resources[path.lower()] = resource
    return Answer(201 if is_new else 200, resource, _operation(self, path))


def _check_traffic(
    self: Workspace, path: str, traffic: dict[str, int], mirror: dict[str, int] | None
) -> None:
    """Raise Refusal for invalid traffic: docs how-to-safely-rollout-online-endpoints.

    Traffic adds up to 100 or 0; at most half of it is mirrored, to one deployment without live
    traffic.
    """
    problem, copies = "", {name: share for name, share in (mirror or {}).items() if share}
    for name in (*traffic, *copies):
        if f"{path}/deployments/{name}".lower() not in self.resources:
            problem = f"The deployment {name} does not exist."
    if sum(traffic.values()) not in (0, 100):
        problem = "The sum of traffic has to be 0 or 100."
    if len(copies) > 1 or sum(copies.values()) > 50:
        problem = "Traffic is mirrored to one deployment, and at most 50 per cent."
    if any(traffic.get(name) for name in copies):
        problem = "A deployment has either live or mirrored traffic."
    if problem:
        raise Refusal(400, "BadArgument", problem)


@route("GET", _ENDPOINT)
def _get_endpoint(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return an endpoint: spec OnlineEndpoint/get."""
    return Answer(200, _found(self, self.path(match)))


@route("GET", "{ws}/onlineEndpoints")
def _list_endpoints(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """List the endpoints: spec OnlineEndpoint/list."""
    every = [each for each in self.below(self.path(match)) if "/deployments/" not in each["id"]]
    return Answer(200, {"value": every})


@route("DELETE", _ENDPOINT)
def _delete_endpoint(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Delete an endpoint with its deployments: spec OnlineEndpoint/delete."""
    path = self.path(match)
    for each in self.below(path):
        _remove(self, each["id"])
    _remove(self, path)
    return Answer(202, None, _operation(self, path))


@route("POST", rf"{_ENDPOINT}/listKeys")
def _keys(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return an endpoint's keys: spec OnlineEndpoint/listKeys; only for `authMode: Key`."""
    endpoint = _found(self, f"{self.id}/onlineEndpoints/{match['endpoint']}")
    if endpoint["properties"]["authMode"] != "Key":
        raise Refusal(400, "UserError", "The endpoint does not use keys.")
    return Answer(200, {"primaryKey": "primary", "secondaryKey": "secondary"})


@route("PUT", _DEPLOYMENT)
def _put_deployment(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Create a deployment, ready once its server responds: spec OnlineDeployment/createOrUpdate."""
    self.demand("deployments", request.body)
    path, properties = self.path(match), dict(request.body["properties"])
    _found(self, path.partition("/deployments/")[0])
    code = self.kept(properties["codeConfiguration"]["codeId"])["properties"]["codeUri"]
    model = self.kept(properties["model"])
    self.kept(properties["environmentId"])
    name, version = properties["model"].split("/")[-3::2]
    before = self.deployed.pop(path.lower(), None)
    if before is not None:
        before.stop()
    slot = self.folder / "endpoints" / match["endpoint"] / match["deployment"]
    deployed = Deployed(slot, properties)
    self.deployed[path.lower()] = deployed
    properties["properties"] = properties.get("properties") or {}
    properties["scaleSettings"] = properties.get("scaleSettings") or {"scaleType": "Default"}
    for collection in ((properties.get("dataCollector") or {}).get("collections") or {}).values():
        # spec DataCollectionMode: the SDK sends lower case, but reads only capitalized values.
        collection["dataCollectionMode"] = collection["dataCollectionMode"].capitalize()
    resource = self.resource(path, properties)
    for key in ("location", "tags", "sku"):
        resource[key] = request.body.get(key)
    self.resources[path.lower()] = resource
    deployed.start(self.storage, (name, version, model["properties"]["modelUri"]), code)
    return Answer(201, _deployment(self, resource), _operation(self, path))


@route("GET", _DEPLOYMENT)
def _get_deployment(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return a deployment: spec OnlineDeployment/get."""
    return Answer(200, _deployment(self, _found(self, self.path(match))))


@route("GET", rf"{_ENDPOINT}/deployments")
def _list_deployments(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """List an endpoint's deployments: spec OnlineDeployment/list."""
    _found(self, self.path(match).rpartition("/")[0])
    every = self.below(self.path(match))
    return Answer(200, {"value": [_deployment(self, each) for each in every]})


@route("DELETE", _DEPLOYMENT)
def _delete_deployment(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Delete a deployment: spec OnlineDeployment/delete.

    docs how-to-safely-rollout-online-endpoints: its traffic must be 0.
    """
    path = self.path(match)
    if path.lower() not in self.resources:
        return Answer(204)
    endpoint = _found(self, path.partition("/deployments/")[0])["properties"]
    for shares in (endpoint.get("traffic"), endpoint.get("mirrorTraffic")):
        if (shares or {}).get(match["deployment"]):
            raise Refusal(400, "UserError", f"The deployment {match['deployment']} has traffic.")
    _remove(self, path)
    return Answer(202, None, _operation(self, path))


@route("POST", rf"{_DEPLOYMENT}/getLogs")
def _logs(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return a deployment's log: spec OnlineDeployment/getLogs."""
    path = self.path(match).removesuffix("/getLogs").lower()
    _found(self, path)
    return Answer(200, {"content": self.deployed[path].log(request.body.get("tail") or 100)})


@route("GET", "/operations{ws}/onlineEndpoints/(?P<path>.+)")
def _operation_status(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return an operation's status: docs azure-resource-manager/management/async-operations.

    Error of a container that does not start: docs how-to-troubleshoot-online-endpoints,
    ResourceNotReady.
    """
    deployed = self.deployed.get(f"{self.id}/onlineEndpoints/{match['path']}".lower())
    state = deployed.state if deployed else "Succeeded"
    body: dict[str, Any] = {"status": "InProgress" if state == "Creating" else state}
    if deployed and deployed.problem:
        why = f"User container has crashed or terminated: {deployed.problem}"
        body["error"] = {"code": "ResourceNotReady", "message": why}
    return Answer(200, body, AGAIN if state == "Creating" else {})


@route("POST", "/score{ws}/(?P<endpoint>[^/]+)")
def _score(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Route a scoring request: docs how-to-safely-rollout-online-endpoints.

    The deployment is in a header, or drawn by traffic; a mirror gets a copy of requests without the
    header. A model's response other than 200 becomes a 424 with the model's status in a header
    (docs how-to-troubleshoot-online-endpoints).
    """
    path = f"{self.id}/onlineEndpoints/{match['endpoint']}"
    properties = _found(self, path)["properties"]
    traffic = properties.get("traffic") or {}
    headers = {key.lower(): value for key, value in request.headers.items()}
    name = headers.get(DEPLOYMENT_HEADER) or choose(random.random() * 100, traffic, "")
    deployed = self.deployed.get(f"{path}/deployments/{name}".lower())
    if deployed is None or deployed.running is None:
        raise Refusal(404, "NotFound", f"The endpoint has no deployment {name!r} with traffic.")
    body = json.dumps(request.body).encode()
    for copy, share in (properties.get("mirrorTraffic") or {}).items():
        if DEPLOYMENT_HEADER not in headers and random.random() * 100 < share:
            mirrored = self.deployed[f"{path}/deployments/{copy}".lower()]
            Thread(target=mirrored.score, args=(body,), daemon=True).start()
    status, content, seconds = deployed.score(body)
    deployed.seconds.append(seconds)
    name_of_request = headers.get("x-request-id") or str(uuid.uuid4())
    if paths := _collections(self, deployed):
        deployed.collect(self.storage, paths, name_of_request, request.body, json.loads(content))
    code = 200 if status == 200 else MODEL_ERROR
    row = {
        "Ingested": datetime.now(UTC).isoformat(),
        **{"EndpointName": match["endpoint"], "DeploymentName": name},
        **{"ResponseCode": code, "ModelStatusCode": status, "TotalDurationMs": seconds * 1000},
        "XMSClientRequestId": headers.get("x-ms-client-request-id", ""),
    }
    self.requests.append(row)
    error = {"ms-azureml-model-error-statuscode": str(status)} if code == MODEL_ERROR else {}
    return Answer(code, content, {**error, "x-request-id": name_of_request})


def _collections(self: Workspace, deployed: Deployed) -> dict[str, str]:
    """Return the folders of the collections `request` and `response`; {} if not collected.

    A request is sampled by the collections' rate. SDK `_register_collection_data_assets`: each
    collection is a data asset.
    """
    collector = deployed.properties.get("dataCollector") or {}
    collections = {
        name: each
        for name, each in (collector.get("collections") or {}).items()
        if each["dataCollectionMode"].lower() == "enabled"
    }
    if not {"request", "response"} <= collections.keys():
        return {}
    if random.random() >= (collections["request"].get("samplingRate") or 1.0):
        return {}
    return {
        name: self.kept(each["dataId"])["properties"]["dataUri"]
        for name, each in collections.items()
    }


@route("POST", "/v1{ws}/query")
def _query(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Answer the backend's log query; others get only the columns.

    docs azure-monitor/logs/api/response-format
    """
    text = request.body["query"]
    if columns_alone := _COLUMNS.fullmatch(text):
        return _table(columns_alone[1].split(", "), [])
    found = {name: re.search(pattern, text) for name, pattern in _CONDITIONS.items()}
    if not text.startswith("AmlOnlineEndpointTrafficLog\n") or None in found.values():
        raise Refusal(400, "BadArgumentError", "the stand-in does not know this query")
    asked = {name: one[1] for name, one in found.items() if one}
    columns = asked["columns"].split(", ")
    rows = [
        [row[column] for column in columns]
        for row in self.requests
        if row["EndpointName"] == asked["endpoint"]
        and not row["XMSClientRequestId"].startswith(asked["mark"])
        and row["Ingested"] > asked["since"]
    ]
    return _table(columns, rows)


def _table(names: list[str], rows: list[list[Any]]) -> Answer:
    columns = [{"name": name, "type": _TYPES.get(name, "string")} for name in names]
    return Answer(200, {"tables": [{"name": "PrimaryResult", "columns": columns, "rows": rows}]})


@route("GET", rf"{_DEPLOYMENT}/providers/microsoft.insights/metrics")
def _metrics(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return the server's current memory and latency: docs rest/api/monitor/metrics/list.

    The service has a value per minute, some minutes later; here there is always one value.
    """
    path = self.path(match).partition("/providers/microsoft.insights")[0]
    _found(self, path)
    name, span = request.query["metricnames"], request.query["timespan"].split("/")
    if name not in METRICS or request.query["aggregation"] != "Average":
        raise Refusal(400, "BadRequest", f"the stand-in does not have the metric {name}")
    now = datetime.now(UTC).isoformat()
    deployed = self.deployed[path.lower()]
    points: list[dict[str, Any]] = []
    if deployed.running and span[0] < now < span[1]:
        memory = deployed.memory() / INSTANCE_GIB / 2**30 * 100
        latency = 1000 * float(np.quantile(deployed.seconds or [0.0], 0.95))
        points.append({"timeStamp": now, "average": (memory, latency)[METRICS.index(name)]})
    series = [{"metadatavalues": [], "data": [{"timeStamp": span[0]}, *points]}]
    metric = {"name": {"value": name}, "timeseries": series}
    return Answer(200, {"timespan": request.query["timespan"], "value": [metric]})


def _found(self: Workspace, path: str) -> dict[str, Any]:
    if (resource := self.resources.get(path.lower())) is None:
        raise Refusal(404, "ResourceNotFound", f"{path.rpartition('/')[2]} was not found.")
    return resource


def _deployment(self: Workspace, resource: dict[str, Any]) -> dict[str, Any]:
    state = self.deployed[resource["id"].lower()].state
    return {**resource, "properties": {**resource["properties"], "provisioningState": state}}


def _remove(self: Workspace, path: str) -> None:
    self.resources.pop(path.lower(), None)
    if (deployed := self.deployed.pop(path.lower(), None)) is not None:
        deployed.stop()


def _operation(self: Workspace, path: str) -> dict[str, str]:
    where = f"{self.url}/operations{path}"
    return {"Azure-AsyncOperation": where, "Location": where, **AGAIN}
