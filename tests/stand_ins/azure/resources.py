"""Implement schedules, batch endpoints and batch deployments, which start jobs."""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any

from tests.stand_ins.azure.jobs import BATCH, Job
from tests.stand_ins.azure.server import Answer, Refusal, Request
from tests.stand_ins.azure.service import Workspace, route

_SCHEDULE = r"{ws}/schedules/(?P<name>[^/]+)"
_ENDPOINT = r"{ws}/batchEndpoints/(?P<endpoint>[^/]+)"
_DEPLOYMENT = rf"{_ENDPOINT}/deployments/(?P<deployment>[^/]+)"


@route("PUT", _SCHEDULE)
def _put_schedule(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Create a schedule of pipeline jobs: spec Schedule/createOrUpdate; SDK `JobSchedule`."""
    self.demand("schedules", request.body)
    job = request.body["properties"]["action"].get("jobDefinition") or {}
    if job.get("jobType") != "Pipeline":
        raise Refusal(400, "UserError", f"Schedules do not create {job.get('jobType')} jobs.")
    self.files(job)
    return _put(self, request, match, {"isEnabled": True})


@route("GET", _SCHEDULE)
def _get_schedule(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return a schedule: spec Schedule/get."""
    return Answer(200, _found(self, self.path(match)))


@route("POST", rf"{_SCHEDULE}/trigger")
def _trigger(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Run a schedule once, now: SDK `ScheduleOperations.trigger`."""
    schedule = _found(self, f"{self.id}/schedules/{match['name']}")
    definition = schedule["properties"]["action"]["jobDefinition"]
    name = f"{match['name']}-{uuid.uuid4().hex[:8]}"
    _start(self, name, definition, self.files(definition))
    return Answer(200, {"scheduleActionType": "CreateJob", "submissionId": name})


@route("PUT", _ENDPOINT)
def _put_endpoint(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Create or update a batch endpoint: spec BatchEndpoint/createOrUpdate."""
    self.demand("batchEndpoints", request.body)
    default = (request.body["properties"].get("defaults") or {}).get("deploymentName")
    if default and f"{self.path(match)}/deployments/{default}".lower() not in self.resources:
        raise Refusal(400, "UserError", f"The deployment {default} does not exist.")
    return _put(
        self, request, match, {"scoringUri": f"{self.url}/batch{self.id}/{match['endpoint']}/jobs"}
    )


@route("PUT", _DEPLOYMENT)
def _put_deployment(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Create or update a batch deployment: spec BatchDeployment/createOrUpdate."""
    self.demand("batchDeployments", request.body)
    _found(self, self.path(match).partition("/deployments/")[0])
    self.files(request.body["properties"])
    return _put(self, request, match, {})


@route("GET", rf"{_ENDPOINT}(/deployments/[^/]+)?")
def _get_endpoint(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Return a batch endpoint or deployment: spec BatchEndpoint/get, BatchDeployment/get."""
    return Answer(200, _found(self, self.path(match)))


@route("GET", rf"{_ENDPOINT}/deployments")
def _list_deployments(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """List a batch endpoint's deployments: spec BatchDeployment/list."""
    return Answer(200, {"value": self.below(self.path(match))})


@route("POST", "/batch{ws}/(?P<endpoint>[^/]+)/jobs")
def _score(self: Workspace, request: Request, match: re.Match[str]) -> Answer:
    """Start a pipeline job with the body's inputs: SDK `BatchEndpointOperations.invoke`."""
    path = f"{self.id}/batchEndpoints/{match['endpoint']}"
    defaults = _found(self, path)["properties"].get("defaults") or {}
    headers = {key.lower(): value for key, value in request.headers.items()}
    name = headers.get("azureml-model-deployment") or defaults.get("deploymentName")
    deployment = _found(self, f"{path}/deployments/{name}")["properties"]
    (given,) = request.body["properties"]["inputData"].values()
    job = f"batchjob-{uuid.uuid4()}"
    files = {**self.files(deployment), **self.files(given)}
    definition: dict[str, Any] = {
        "jobType": "Pipeline",
        "displayName": job,
        "experimentName": match["endpoint"],
        "settings": {},
        "jobs": {},
    }
    if configuration := deployment.get("deploymentConfiguration"):
        component = configuration["componentId"]["assetId"]
        definition |= _of_component(self, component, request.body["properties"])
        files |= self.files(definition)
    else:
        scoring = {"deployment": deployment, "input": given, "name": name}
        files[BATCH] = json.dumps({**scoring, "endpoint": match["endpoint"]})
    _start(self, job, definition, files)
    return Answer(201, {"id": f"{self.id}/jobs/{job}", "name": job, "properties": {}})


def _of_component(self: Workspace, component: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline with the component's steps: docs how-to-use-batch-pipeline-deployments."""
    body = self.kept(component)["properties"]["componentSpec"]
    inputs = {
        name: {**data, "jobInputType": _snake(data["jobInputType"])}
        for name, data in asked["inputData"].items()
    }
    outputs = {
        name: {"jobOutputType": port["type"], "mode": "ReadWriteMount"}
        for name, port in (body.get("outputs") or {}).items()
    }
    return {"jobs": body["jobs"], "inputs": inputs, "outputs": outputs}


def _snake(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def _start(self: Workspace, name: str, definition: dict[str, Any], files: dict[str, str]) -> None:
    self.jobs[name] = Job(name, definition, self.folder / name, files, time.time())
    self.jobs[name].start(self.storage)


def _put(self: Workspace, request: Request, match: re.Match[str], more: dict[str, Any]) -> Answer:
    path = self.path(match)
    properties = {**request.body["properties"], **more, "provisioningState": "Succeeded"}
    properties["properties"] = properties.get("properties") or {}
    resource = self.resource(path, properties)
    resource |= {key: request.body[key] for key in ("location", "tags") if key in request.body}
    is_new = path.lower() not in self.resources
    self.resources[path.lower()] = resource
    return Answer(201 if is_new else 200, resource)


def _found(self: Workspace, path: str) -> dict[str, Any]:
    if (resource := self.resources.get(path.lower())) is None:
        raise Refusal(404, "ResourceNotFound", f"{path.rpartition('/')[2]} was not found.")
    return resource
