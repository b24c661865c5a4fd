"""The stand-in's state, and its responses to requests of the control plane."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml.core import home
from tests.stand_ins.azure import bodies
from tests.stand_ins.azure.deployed import Deployed
from tests.stand_ins.azure.jobs import BUILD_LOG, Job, output_path
from tests.stand_ins.azure.server import AGAIN, Answer, Refusal, Request
from tests.stand_ins.azure.storage import DATASTORES, Storage
from tests.stand_ins.azure.tracking import Tracked, Tracking, tracked

SUBSCRIPTION = "00000000-0000-0000-0000-00000000aa01"
GROUP, WORKSPACE = "rg-stand-in", "mlw-stand-in"
# A path with the ARM id of a workspace or a registry, which is case-insensitive.
_WORKSPACE = re.compile(
    rf"(?i)(/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
    r"/providers/Microsoft.MachineLearningServices/((?:workspaces|registries)/[^/]+))"
)
_DISCOVERY = re.compile(r"/registrymanagement/v1.0/registries/([^/]+)/discovery")
_REGION = re.compile(
    rf"(?i)/subscriptions/{SUBSCRIPTION}/providers/.*/locations/[^/]+/(vmSizes|usages)"
)
# Memory of a Standard_DS3_v2: learn.microsoft.com/azure/virtual-machines/dv2-dsv2-series
INSTANCE_GIB = 14
# SDK `MFE_PATH_PREFIX`: the prefix of a registry's requests.
_REGISTRY_PREFIX = "/mferp/managementfrontend"
CLOUD = "StandInCloud"
# Name prefix of workspaces whose jobs stay queued.
IDLE = "idle"
# Name prefix of workspaces that are feature stores.
FEATURES = "fs"
COMPUTES = ("cpu-cluster", "cpu-large", "gpu-cluster", "gpu-infiniband", "gpu-spot")
# docs concept-endpoints… and SDK `RunHistoryConstants.TERMINAL_STATUSES`.
ENDED = frozenset({"Completed", "Failed", "Canceled"})
_COUNTED = re.compile("[1-9][0-9]*")
_ASSETS = (
    *("data", "environments", "codes", "models", "components"),
    *("featurestoreEntities", "featuresets"),
)

Handler = Callable[["Workspace", Request, "re.Match[str]"], Answer]
_ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Return a decorator that registers a handler; `{ws}` in the path is a workspace's ARM id."""
    pattern = re.compile(path.replace("{ws}", re.escape("{ws}")))

    def register(handler: Handler) -> Handler:
        _ROUTES.append((method, pattern, handler))
        return handler

    return register


@dataclass
class Service:
    """The stand-in's root: checks tokens, and responds for all workspaces of a resource group.

    A workspace is created by the first request to it, so that each test can have its own.
    """

    storage: Storage
    token: Callable[[str], bool]
    url: str = ""
    workspaces: dict[str, Workspace] = field(default_factory=dict)

    def respond(self, request: Request) -> Answer:
        """Return the response to a request; raise Refusal for errors."""
        if request.path == "/metadata/endpoints":
            return self._metadata()
        if discovered := _DISCOVERY.fullmatch(request.path):
            return self._registry(discovered[1])
        if region := _REGION.fullmatch(request.path):
            return self._sizes() if region[1].lower() == "vmsizes" else self._usages()
        match = _WORKSPACE.search(request.path)
        is_open = request.path.startswith(("/discovery/", "/logs/"))
        if not is_open and not self.token(request.headers.get("Authorization", "")):
            raise Refusal(401, "AuthenticationFailed", "the token is missing or not valid")
        if match is None:
            raise Refusal(404, "ResourceNotFound", f"{request.path} was not found")
        name = match[2].lower()
        if name not in self.workspaces:
            storage = replace(self.storage, name=f"azureml-{name.rpartition('/')[2]}")
            storage.container()
            storage.container("releases")  # the Pulumi program creates it
            self.workspaces[name] = Workspace(match[1], storage, self.url, self.workspaces)
        return self.workspaces[name].respond(request)

    def copy(self, job: str, times: int) -> None:
        """Add `times` copies of a completed job."""
        for workspace in self.workspaces.values():
            if job in workspace.jobs:
                for number in range(times):
                    name = f"{job}-copy-{number}"
                    workspace.jobs[name] = replace(workspace.jobs[job], name=name)

    def _registry(self, name: str) -> Answer:
        """Return a registry's addresses: SDK `RegistryDiscovery._get_registry_details`."""
        known = {"subscriptionId": SUBSCRIPTION, "resourceGroup": GROUP, "registryName": name}
        return Answer(200, {**known, "primaryRegionResourceProviderUri": f"{self.url}/"})

    def _sizes(self) -> Answer:
        """List the VM sizes: spec VirtualMachineSize/list."""
        size = {"name": "Standard_DS3_v2", "vCPUs": 4, "memoryGB": INSTANCE_GIB}
        return Answer(200, {"value": [{**size, "supportedComputeTypes": ["AmlCompute"]}]})

    def _usages(self) -> Answer:
        """Return the quota of each VM family, then of all dedicated cores: spec Usage/list."""
        usages = [
            {
                **{"id": f"/subscriptions/{SUBSCRIPTION}", "unit": "Count", "limit": 100},
                **{"type": "Microsoft.MachineLearningServices/dedicatedCores/usages"},
                **{"name": {"value": name, "localizedValue": name}, "currentValue": 0},
            }
            for name in ("standardEDSv4Family", "TotalDedicatedCores")
        ]
        return Answer(200, {"value": usages})

    def _metadata(self) -> Answer:
        """Return the cloud's addresses: SDK `_azure_environments._convert_arm_to_cli`."""
        authentication = {"loginEndpoint": "https://login.localhost", "audiences": [self.url]}
        cloud = {
            "name": CLOUD,
            "portal": "https://portal.azure.com",
            "resourceManager": f"{self.url}/",
            "authentication": authentication,
            "logAnalyticsResourceId": self.url,
            "suffixes": {"storage": "core.localhost", "keyVaultDns": "vault.localhost"},
        }
        return Answer(200, [cloud])


@dataclass
class Workspace:
    """The state of a workspace; resources and deployments have their lower-case ARM id as key.

    `requests` has the rows of the endpoints' request log.
    """

    id: str
    storage: Storage
    url: str
    others: dict[str, Workspace]
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    deployed: dict[str, Deployed] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Return the workspace's local folder."""
        return home.home() / "azure" / self.storage.name

    def respond(self, request: Request) -> Answer:
        """Return the response to a request; raise Refusal for errors."""
        path = _WORKSPACE.sub("{ws}", request.path.removeprefix(_REGISTRY_PREFIX))
        for method, pattern, handler in _ROUTES:
            match = pattern.fullmatch(path) if method == request.method else None
            if match is not None:
                return handler(self, request, match)
        raise Refusal(404, "ResourceNotFound", f"{request.method} {request.path} is not known")

    # The workspace

    @route("GET", "/discovery{ws}")
    def _discovery(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the workspace's address in `api`: SDK `JobOperations._get_workspace_url`."""
        return Answer(200, {"api": self.url, "history": self.url})

    @route("GET", "{ws}")
    def _workspace(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the workspace: spec Workspace/get."""
        tracking = f"{self.url.replace('https', 'azureml')}/mlflow/v1.0{self.id}"
        account = (
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Storage"
        )
        properties = {
            "workspaceId": str(uuid.uuid5(uuid.NAMESPACE_URL, self.id)),
            "discoveryUrl": f"{self.url}/discovery{self.id}",
            "mlFlowTrackingUri": tracking,
            "storageAccount": f"{account}/storageAccounts/standin",
            "provisioningState": "Succeeded",
        }
        kind = "FeatureStore" if self.id.rpartition("/")[2].startswith(FEATURES) else "Default"
        if kind == "FeatureStore":
            properties["featureStoreSettings"] = {"offlineStoreConnectionName": "offline"}
        resource = self.resource(self.id, properties)
        return Answer(200, {**resource, "location": "westeurope", "kind": kind})

    @route("GET", "{ws}/connections/offline")
    def _offline_store(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the ARM id of the offline store's container: SDK `FeatureStoreOperations.get`."""
        group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
        account = f"{group}/providers/Microsoft.Storage/storageAccounts/standin"
        target = f"{account}/blobServices/default/containers/offline-store"
        properties = {"category": "ADLSGen2", "authType": "ManagedIdentity", "target": target}
        return Answer(200, self.resource(self.path(match), properties))

    @route("GET", "{ws}/computes/(?P<name>[^/]+)")
    def _compute(self, request: Request, match: re.Match[str]) -> Answer:
        """Return a compute cluster: spec Compute/get/AmlCompute."""
        if match["name"] not in COMPUTES:
            raise Refusal(404, "ResourceNotFound", f"The compute {match['name']} was not found.")
        return Answer(200, self._cluster(match["name"]))

    @route("GET", "{ws}/computes")
    def _computes(self, request: Request, match: re.Match[str]) -> Answer:
        return Answer(200, {"value": [self._cluster(name) for name in COMPUTES]})

    def _cluster(self, name: str) -> dict[str, Any]:
        scale = {"minNodeCount": 0, "maxNodeCount": 2, "nodeIdleTimeBeforeScaleDown": "PT2M"}
        cluster = {"vmSize": "STANDARD_E4DS_V4", "vmPriority": "Dedicated", "scaleSettings": scale}
        properties = {
            "computeType": "AmlCompute",
            "provisioningState": "Succeeded",
            "disableLocalAuth": True,
            "properties": {**cluster, "allocationState": "Steady", "currentNodeCount": 0},
        }
        resource = self.resource(f"{self.id}/computes/{name}", properties)
        return {**resource, "location": "westeurope"}

    # Storage

    @route("GET", "{ws}/datastores/(?P<name>[^/]+)")
    def _datastore(self, request: Request, match: re.Match[str]) -> Answer:
        """Return a datastore: spec Datastore/get."""
        if match["name"] not in DATASTORES:
            raise Refusal(404, "UserError", f"Datastore {match['name']} does not exist.")
        return Answer(200, self._store(match["name"]))

    @route("GET", "{ws}/datastores")
    def _datastores(self, request: Request, match: re.Match[str]) -> Answer:
        """List the datastores: spec Datastore/list. The SDK requests the default (`isDefault`)."""
        return Answer(200, {"value": [self._store(name) for name in DATASTORES]})

    def _store(self, name: str) -> dict[str, Any]:
        properties = {
            "datastoreType": "AzureBlob",
            "accountName": self.storage.account,
            "containerName": self.storage.name,
            "endpoint": "core.localhost",
            "protocol": "https",
            "isDefault": name == DATASTORES[0],
            "credentials": {"credentialsType": "None"},
            **{"tags": {}, "properties": {}},
        }
        return self.resource(f"{self.id}/datastores/{name}", properties)

    @route("POST", "{ws}/codes/(?P<name>[^/]+)/versions/[^/]+/startPendingUpload")
    def _pending_upload(self, request: Request, match: re.Match[str]) -> Answer:
        """Return a new container for code: spec CodeVersion/createOrGetStartPendingUpload."""
        container = f"code-{match['name'].lower()}"
        self.storage.container(container)
        uri = f"{self.storage.url}/{container}"
        credential = {"credentialType": "SAS", "sasUri": f"{uri}?{self.storage.sas()}"}
        reference = {"blobUri": uri, "storageAccountArmId": "standin", "credential": credential}
        body = {"pendingUploadType": "TemporaryBlobReference"}
        return Answer(200, {**body, "blobReferenceForConsumption": reference})

    @route("PUT", "{ws}/tempdatarefs/(?P<name>[^/]+)/versions/(?P<version>[^/]+)")
    def _temporary_reference(self, request: Request, match: re.Match[str]) -> Answer:
        """Return an upload URI, or 409 if it exists: SDK `get_sas_uri_for_registry_asset`."""
        path = f"{self.id}/models/{match['name']}/versions/{match['version']}"
        if path.lower() in self.resources:
            raise Refusal(409, "Conflict", "The asset exists already.")
        return self._reference(f"asset-{uuid.uuid4().hex}")

    @route("POST", "{ws}/datarefs/(?P<name>[^/]+)/versions/(?P<version>[^/]+)")
    def _data_reference(self, request: Request, match: re.Match[str]) -> Answer:
        """Return an asset's storage URI: SDK `get_storage_details_for_registry_assets`."""
        return self._reference(self.storage.container_of(request.body["blobUri"]))

    def _reference(self, container: str) -> Answer:
        self.storage.container(container)
        uri = f"{self.storage.url}/{container}"
        credential = {"credentialType": "SAS", "sasUri": f"{uri}?{self.storage.sas()}"}
        reference = {"blobUri": uri, "credential": credential}
        return Answer(200, {"blobReferenceForConsumption": reference})

    # Assets

    @route(
        "PUT", rf"{{ws}}/(?P<kind>{'|'.join(_ASSETS)})/(?P<name>[^/]+)/versions/(?P<version>[^/]+)"
    )
    def _put_asset(self, request: Request, match: re.Match[str]) -> Answer:
        """Create an asset's immutable version: spec Workspace/*Version/createOrUpdate.

        A model's version is a positive integer: issue Azure/azureml-examples#2725.
        """
        self.demand(match["kind"], request.body)
        if match["kind"] == "models" and not _COUNTED.fullmatch(match["version"]):
            raise Refusal(400, "UserError", f"Model version {match['version']} is not an integer.")
        properties = {"isAnonymous": False, "isArchived": False, **request.body["properties"]}
        properties |= {key: properties.get(key) or {} for key in ("properties", "tags")}
        if "/registries/" in self.id and "modelUri" in properties:
            properties["modelUri"] = self.storage.without_account(properties["modelUri"])
        if match["kind"] == "models":
            properties.setdefault("flavors", {})
        before = self.resources.get(self.path(match).lower())
        for key in (
            *("dataUri", "modelUri", "codeUri", "image", "condaFile"),
            *("indexColumns", "specification"),
        ):
            # docs concept-data: "once you create a data asset version, it's immutable".
            if before and before["properties"].get(key) != properties.get(key):
                raise Refusal(
                    400,
                    "UserError",
                    f"A {match['kind']} version with this name and version is already registered, "
                    f"and its {key} cannot be changed.",
                )
        resource = self.resource(self.path(match), {**properties, "provisioningState": "Succeeded"})
        self.resources[self.path(match).lower()] = resource
        return Answer(200 if before else 201, resource)

    @route("GET", rf"{{ws}}/(?P<kind>{'|'.join(_ASSETS)})/(?P<name>[^/]+)/versions/[^/]+")
    def _get_asset(self, request: Request, match: re.Match[str]) -> Answer:
        return Answer(200, self.kept(self.path(match)))

    @route("GET", rf"{{ws}}/(?P<kind>{'|'.join(_ASSETS)})/(?P<name>[^/]+)/versions")
    def _versions(self, request: Request, match: re.Match[str]) -> Answer:
        """List an asset's versions, newest first, with `$top`.

        Code is looked up by its `hash` under all names: the SDK sends a new name and uses the one
        in the response (`CodeOperations.create_or_update`).
        """
        values = self.below(self.path(match))
        if "hash" in request.query:
            wanted = request.query["hash"]
            values = [
                value
                for value in self.below(self.path(match).rsplit("/", 2)[0])
                if value["properties"]["properties"].get("hash_sha256") == wanted
            ]
        newest = values[::-1][: int(request.query.get("$top") or len(values) or 1)]
        return Answer(200, {"value": newest})

    @route("GET", rf"{{ws}}/(?P<kind>{'|'.join(_ASSETS)})/(?P<name>[^/]+)")
    def _container(self, request: Request, match: re.Match[str]) -> Answer:
        """Return `nextVersion` of an asset: SDK `_get_next_version_from_container`."""
        versions = [value["name"] for value in self.below(f"{self.path(match)}/versions")]
        if not versions:
            raise Refusal(404, "UserError", f"{match['kind']} {match['name']} was not found.")
        numbers = [int(version) for version in versions if version.isdigit()]
        properties = {
            "latestVersion": versions[-1],
            "nextVersion": str(max(numbers, default=0) + 1),
        }
        return Answer(
            200,
            self.resource(
                self.path(match), {**properties, "isArchived": False, "tags": {}, "properties": {}}
            ),
        )

    @route("GET", rf"{{ws}}/(?P<kind>{'|'.join(_ASSETS)})")
    def _containers(self, request: Request, match: re.Match[str]) -> Answer:
        path = self.path(match)
        names = {f"{path}/{value['id'].split('/')[-3]}" for value in self.below(path)}
        properties = {"isArchived": False, "tags": {}, "properties": {}}
        return Answer(200, {"value": [self.resource(name, properties) for name in sorted(names)]})

    # Jobs

    @route("PUT", "{ws}/jobs/(?P<name>[^/]+)")
    def _put_job(self, request: Request, match: re.Match[str]) -> Answer:
        """Start a job: spec CommandJob/createOrUpdate.

        A job cannot be changed (SDK `JobOperations`: "MFE does not allow existing properties to be
        updated").
        """
        self.demand("jobs", request.body)
        name, properties = match["name"], request.body["properties"]
        compute = str(properties.get("computeId") or COMPUTES[0]).rpartition("/")[2]
        if compute not in COMPUTES:
            raise Refusal(400, "UserError", f"The compute {compute} was not found.")
        if job := self.jobs.get(name):
            if job.properties != properties:
                raise Refusal(409, "Conflict", f"A job with the name {name} already exists.")
            return Answer(200, self._job(job))
        job = Job(name, properties, self.folder / name, self.files(properties), time.time())
        self.jobs[name] = job
        if not self.storage.name.startswith(f"azureml-{IDLE}"):
            job.start(self.storage)
        return Answer(201, self._job(job))

    def files(self, properties: dict[str, Any]) -> dict[str, str]:
        """Return the URIs of the assets that a job uses; raise Refusal for an unknown asset."""
        files: dict[str, str] = {}
        reference = re.compile(rf'"(?:azureml:)?({re.escape(self.id)}/[^"]+)"', re.I)
        for text in reference.findall(json.dumps(properties)):
            kind = text[len(self.id) + 1 :].partition("/")[0]
            if kind not in _ASSETS:
                continue
            asset = self.kept(text)["properties"]
            if kind == "environments" and (asset.get("condaFile") or asset.get("build")):
                files[text] = str(asset.get("condaFile") or "")
            if "componentSpec" in asset:
                specification = json.dumps(asset["componentSpec"])
                files |= {text: specification, **self.files(asset["componentSpec"])}
            uri = asset.get("dataUri") or asset.get("codeUri") or asset.get("modelUri")
            if uri:
                files[text] = str(uri)
        return files

    @route("GET", "{ws}/jobs/(?P<name>[^/]+)")
    def _get_job(self, request: Request, match: re.Match[str]) -> Answer:
        """Return a job or a trial, as a command job: spec CommandJob/get."""
        each = self._tracked(match["name"])
        if not each.parent:
            return Answer(200, self._job(each.job))
        if "trial" not in each.job.properties:
            # SDK `_is_pipeline_child_job`: "Child jobs are no longer available through MFE".
            return Answer(200, {**self.resource(self.path(match), {}), "properties": None})
        shared = ("computeId", "experimentName", "inputs", "outputs")
        properties = {
            **{key: each.job.properties.get(key) for key in shared},
            **each.job.properties["trial"],
            **{"jobType": "Command", "displayName": each.id, "status": each.status},
            **{"services": self._services(each.id), "tags": {}, "properties": {}},
        }
        return Answer(200, self.resource(f"{self.id}/jobs/{each.id}", properties))

    @route("GET", "{ws}/jobs")
    def _list_jobs(self, request: Request, match: re.Match[str]) -> Answer:
        """List the jobs in pages, newest first: spec CommandJob/list."""
        size, start = 100, int(request.query.get("$skip") or 0)
        jobs = [*self.jobs.values()][::-1]
        body: dict[str, Any] = {"value": [self._job(job) for job in jobs[start : start + size]]}
        if start + size < len(jobs):
            version = request.query.get("api-version")
            here = f"{self.url}{request.path}?api-version={version}"
            body["nextLink"] = f"{here}&$skip={start + size}"
        return Answer(200, body)

    @route("POST", "{ws}/jobs/(?P<name>[^/]+)/cancel")
    def _cancel(self, request: Request, match: re.Match[str]) -> Answer:
        """Cancel a job; respond with 202 and a location to poll: spec Job/cancel."""
        job = self._tracked(match["name"]).job
        if job.status in ENDED:
            raise Refusal(400, "UserError", f"The job {job.name} has ended; it is {job.status}.")
        job.end()
        location = f"{self.url}/operations{self.id}/{job.name}"
        return Answer(202, None, {"Location": location, **AGAIN})

    @route("GET", "/operations{ws}/(?P<name>[^/]+)")
    def _operation(self, request: Request, match: re.Match[str]) -> Answer:
        """Return 202 until an operation is done.

        docs azure-resource-manager/management/async-operations
        """
        done = self._tracked(match["name"]).job.status in ENDED
        return Answer(
            200 if done else 202,
            None,
            {} if done else {"Location": f"{self.url}{self.path(match)}", **AGAIN},
        )

    def _job(self, job: Job) -> dict[str, Any]:
        properties = {**job.properties, "status": job.status, "services": self._services(job.name)}
        for key in ("tags", "properties", "inputs", "outputs"):
            properties[key] = properties.get(key) or {}
        run = job.run()
        if run is not None and run.best and properties["jobType"] == "Sweep":
            # SDK `SWEEP_JOB_BEST_CHILD_RUN_ID_PROPERTY_NAME`.
            best = f"{job.name}_{run.best.rpartition('_')[2]}"
            properties["properties"] = {**properties["properties"], "best_child_run_id": best}
        resource = self.resource(f"{self.id}/jobs/{job.name}", properties)
        created = datetime.fromtimestamp(job.created, UTC).isoformat()
        return {**resource, "systemData": {**resource["systemData"], "createdAt": created}}

    def _services(self, name: str) -> dict[str, Any]:
        """Return the link to a job's studio page: docs how-to-train-model."""
        studio = f"https://ml.azure.com/runs/{name}?wsid={self.id}"
        return {"Studio": {"jobServiceType": "Studio", "endpoint": studio}}

    def _tracked(self, name: str, code: str = "NotFound") -> Tracked:
        for job in self.jobs.values():
            for each in tracked(job):
                if each.id == name:
                    return each
        raise Refusal(404, code, f"The job {name} was not found.")

    # Run history and the data plane: undocumented, so they implement only what the SDK reads.

    @route("GET", "/history/v1.0{ws}/runs/(?P<name>[^/]+)")
    def _run(self, request: Request, match: re.Match[str]) -> Answer:
        """Return a step, which the control plane lacks: SDK `_BaseJob._load_from_rest`."""
        each = self._tracked(match["name"], "UserError")
        body = {"runId": each.id, "status": each.status, "displayName": each.label}
        return Answer(200, {**body, "tags": {}, "properties": {}, "parentRunId": each.parent})

    @route("GET", "/history/v1.0{ws}/runs/(?P<name>[^/]+)/details")
    def _details(self, request: Request, match: re.Match[str]) -> Answer:
        """Return status, log files, warnings and error: SDK `stream_logs_until_completion`.

        Error for an unknown run: issue Azure/AutoML-vNext-Preview#3.
        """
        each = self._tracked(match["name"], "UserError")
        status = each.status
        body: dict[str, Any] = {"runId": each.id, "status": status, "logFiles": {}}
        log = f"{self.url}/logs{self.id}/runs/{each.id}/user_logs/std_log.txt"
        if _log(each) is not None:
            body["logFiles"] = {"user_logs/std_log.txt": log}
        if (each.job.folder / BUILD_LOG).is_file():
            # docs how-to-log-view-metrics: a run has a build log if its environment is new.
            name = f"azureml-logs/{BUILD_LOG}"
            body["logFiles"][name] = f"{self.url}/logs{self.id}/runs/{each.id}/{name}"
        if status == "Failed":
            body["error"] = {"error": {"code": "UserError", "message": _failure(each)}}
        return Answer(200, body)

    @route("GET", "/history/v1.0{ws}/runs/(?P<name>[^/]+)/serviceinstances/(?P<node>[0-9]+)")
    def _service_instances(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the spec's services with node addresses: SDK `JobOperations.show_services`."""
        each = self._tracked(match["name"], "UserError")
        instances = {
            name: {
                "type": service["jobServiceType"],
                "status": "Running",
                "endpoint": f"https://{name}-<nodeIndex>.example.org",
            }
            for name, service in (each.job.properties.get("services") or {}).items()
        }
        return Answer(200, {"instances": instances})

    @route("GET", "/logs{ws}/runs/(?P<name>[^/]+)/(?:user_logs|azureml-logs)/(?P<file>[^/]+)")
    def _log_file(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the local run's log; on Azure, it is a blob with a SAS and `Range` support."""
        each = self._tracked(match["name"])
        log = each.job.folder / BUILD_LOG if match["file"] == BUILD_LOG else _log(each)
        content = log.read_bytes() if log else b""
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        if start and start >= len(content):
            return Answer(416)
        headers = {"Content-Type": "text/plain"}
        return Answer(206 if "Range" in request.headers else 200, content[start:], headers)

    @route("POST", "/history/v1.0{ws}/rundata")
    def _run_data(self, request: Request, match: re.Match[str]) -> Answer:
        """Return outputs as asset ids with types: SDK `get_job_output_uris_from_dataplane`."""
        each = self._tracked(request.body["runId"])
        outputs = {
            # Models are typed as folders, since their URIs are resolved in the same way.
            name: {"assetId": f"{each.id}:{name}:{_end(path)}", "type": "uri_folder"}
            for name, path in (each.run.outputs if each.run else {}).items()
        }
        return Answer(200, {"runMetadata": {"runId": each.id, "outputs": outputs}})

    @route("POST", "/data/v1.0{ws}/dataversion/batchGetResolvedUris")
    def _resolved(self, request: Request, match: re.Match[str]) -> Answer:
        """Return the URIs of asset ids: SDK `DatasetDataplaneOperations.get_batch_dataset_uris`."""
        store = f"azureml:/{self.id.replace('/providers/Microsoft.MachineLearningServices', '')}"
        values = {}
        for asset in request.body["values"]:
            run, output, end = asset.split(":")
            path = f"{store}/datastores/{DATASTORES[0]}/paths/{output_path(run, output)}{end}"
            values[asset] = {"uri": path, "type": "uri_folder"}
        return Answer(200, {"values": values})

    @route("PATCH", "/history/v1.0{ws}/experiments/(?P<experiment>[^/]+)/runs/(?P<name>[^/]+)")
    def _patch_run(self, request: Request, match: re.Match[str]) -> Answer:
        """Merge tags and properties into a job: SDK `JobOperations.update`."""
        job = self._tracked(match["name"]).job
        for key in ("tags", "properties"):
            job.properties[key] = {
                **(job.properties.get(key) or {}),
                **(request.body.get(key) or {}),
            }
        return Answer(200, {"runId": job.name})

    @route("GET", "/mlflow/v[12].0{ws}/api/2.0/mlflow/(?P<call>.+)")
    def _tracking_get(self, request: Request, match: re.Match[str]) -> Answer:
        return Tracking(lambda: [*self.jobs.values()]).answer(match["call"], request)

    @route("POST", "/mlflow/v[12].0{ws}/api/2.0/mlflow/(?P<call>.+)")
    def _tracking_post(self, request: Request, match: re.Match[str]) -> Answer:
        return Tracking(lambda: [*self.jobs.values()]).answer(match["call"], request)

    # Resources

    def resource(self, path: str, properties: dict[str, Any]) -> dict[str, Any]:
        kind = "/".join(path[len(self.id) + 1 :].split("/")[::2])
        now = datetime.now(UTC).isoformat()
        made = {"createdAt": now, "createdBy": "somebody", "createdByType": "User"}
        return {
            # The ids of a registry's assets: SDK `AMLVersionedArmId`.
            "id": re.sub(r"^/subscriptions/.*/registries/", "azureml://registries/", path),
            "name": path.rpartition("/")[2],
            "type": f"Microsoft.MachineLearningServices/workspaces/{kind}".rstrip("/"),
            "systemData": {**made, "lastModifiedAt": now},
            "properties": properties,
        }

    def path(self, match: re.Match[str]) -> str:
        return match[0].replace("{ws}", self.id)

    def kept(self, path: str) -> dict[str, Any]:
        """Return an asset by its ARM id, or by `azureml://registries/NAME/…`."""
        if shared := re.match("azureml://(registries/[^/]+)(/.*)", path):
            registry = self.others.get(shared[1].lower())
            return registry.kept(f"{registry.id}{shared[2]}") if registry else self.kept(shared[2])
        resource = self.resources.get(path.lower())
        if resource is None:
            kind, name, _, version = path[len(self.id) + 1 :].split("/")
            raise Refusal(404, "UserError", f"{kind} {name} with version {version} was not found.")
        return resource

    def below(self, path: str) -> list[dict[str, Any]]:
        return [each for key, each in self.resources.items() if key.startswith(f"{path.lower()}/")]

    def demand(self, kind: str, body: Any) -> None:
        """Raise Refusal for a body that does not match the service's models."""
        found = bodies.problems(kind, body)
        if found:
            raise Refusal(400, "ValidationError", f"The request is invalid: {'; '.join(found)}")


def _end(output: Path) -> str:
    """Return the end of an output's URI: a slash for a folder."""
    return "" if output.is_file() else "/"


def _log(each: Tracked) -> Path | None:
    path = each.run.folder / "logs" / "std_log.txt" if each.run else None
    return path if path and path.is_file() else None


def _failure(each: Tracked) -> str:
    """Return the service's text for a failed run: issue Azure/azureml-examples#2614."""
    run = each.run
    if run is None or run.error is None:
        return str(each.job.state.get("problem") or "The node was lost.")
    exited = re.search(r"exited with (\d+)", run.error.actual)
    if not exited:
        return run.error.actual
    return (
        f"Execution failed. User process 'python' exited with status code {exited[1]}. "
        "Please check log file 'user_logs/std_log.txt' for error details."
    )
