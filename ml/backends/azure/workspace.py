"""The workspace: its names, azure-ai-ml's client, and HTTP clients for what that lacks."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from http.client import HTTPException
from io import StringIO
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from ml.backends.azure.errors import as_user_errors, or_none
from ml.core import home
from ml.core.azure import AUDIENCE
from ml.core.errors import Exit, Problem, UserError
from ml.specs.sdk import load, patches

# Environment variables that name the workspace → the `az` command that prints the value.
VARIABLES = {
    "AZURE_SUBSCRIPTION_ID": "az account show --query id",
    "AZUREML_RESOURCE_GROUP": "az group list --query '[].name'",
    "AZUREML_WORKSPACE_NAME": "az ml workspace list --query '[].name'",
}
# The environment variable with the name of the registry that the environments share.
REGISTRY = "AZUREML_REGISTRY_NAME"
# The environment variable with the feature store's name; it is in the workspace's resource group.
FEATURE_STORE = "AZUREML_FEATURE_STORE_NAME"
# azure-ai-ml's environment variables that choose the cloud: its name, and the URL of the clouds'
# metadata. The default is the public cloud.
CLOUD, METADATA = "AZUREML_CURRENT_CLOUD", "ARM_CLOUD_METADATA_URL"
_METADATA_PATH = "metadata/endpoints?api-version=2019-05-01"
PUBLIC: Mapping[str, Any] = {
    "name": "AzureCloud",
    "resourceManager": "https://management.azure.com/",
    "suffixes": {"storage": "core.windows.net"},
    "logAnalyticsResourceId": "https://api.loganalytics.io",
}
# The default datastore of every workspace.
DATASTORE = "workspaceblobstore"
# The API version that azure-ai-ml uses for datastore secrets; it supports expiring ones.
_SECRETS_API = "2024-10-01-preview"
# Releases store their state in a separate container of the account, in a folder per workspace:
# jobs may not write there (infra/program/storage.py).
RELEASES = "releases"
# GitHub Actions sets these for a job: the URL for OIDC tokens, and the token to request them with:
# docs.github.com/actions/reference/security/oidc, "Methods for requesting the OIDC token".
WORKFLOW_URL, WORKFLOW_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
# "If your model container returns a non-200 response, Azure returns a 424": learn.microsoft.com/
# azure/machine-learning/how-to-troubleshoot-online-endpoints#http-status-codes
MODEL_ERROR = 424
# 408: "The model execution took longer than the timeout". The service sets all other statuses.
BY_MODEL = frozenset({200, 408, MODEL_ERROR})
# MLflow's REST API: "runs/search … max_results: the maximum number of runs desired".
PAGE = 1000
# Upper limit of a response's Retry-After, in seconds: azure-core would sleep for any duration, but
# following a run and waiting for an operation have their own timeouts.
LONGEST_S = 60.0
# The ARM id of an offline store, as azure-ai-ml's `STORE_REGEX_PATTERN` has it.
_CONTAINER = re.compile(
    r"/storageAccounts/(?P<account>[^/]+)/blobServices/default/containers/(?P<name>[^/]+)$", re.I
)


@dataclass(frozen=True)
class Workspace:
    """An Azure Machine Learning workspace; clients are created at the first access."""

    subscription: str
    group: str
    name: str
    registry: str = ""
    feature_store: str = ""

    @property
    def id(self) -> str:
        """The ARM id."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.name}"
        )

    @property
    def folder(self) -> Path:
        """The local folder for logs and outputs, with one folder per job."""
        return home.home() / "azure" / self.name

    @cached_property
    def client(self) -> Any:
        """azure-ai-ml's MLClient, signed in by `az login`, a managed identity or OIDC.

        Progress stays enabled, and `quiet` hides it: with `show_progress=False`, azure-ai-ml 1.35
        ignores failed uploads and hangs (`upload_directory`). See also `ml.specs.sdk.patches`.
        """
        client = self._client(self.subscription, self.group, self.name)
        patches.skip_unreadable_jobs(client.jobs)
        return client

    @cached_property
    def models(self) -> Any:
        """azure-ai-ml's model operations, of the shared registry if set, else of the workspace."""
        if not self.registry:
            return self.client.models
        return self._client(registry_name=self.registry).models

    @cached_property
    def features(self) -> Any:
        """azure-ai-ml's client of the feature store."""
        return self._client(self.subscription, self.group, self.feature_store)

    @cached_property
    def offline_store(self) -> str:
        """The `abfss://` URL of the feature store's offline store.

        Raise UserError if the feature store does not exist or has no offline store.
        """
        with self.quiet():
            store = or_none(lambda: self.features.feature_stores.get(self.feature_store))
        target = store.offline_store.target if store and store.offline_store else ""
        container = _CONTAINER.search(target)
        if container is None:
            actual = f"{FEATURE_STORE}: the feature store {self.feature_store} has no offline store"
            hint = "set `platform:feature_store` in the stack file, then make deploy ENV=STACK"
            raise UserError.with_code(
                "no-offline-store", actual, "a feature store that has one", hint
            )
        host = f"{container['account']}.dfs.{self._cloud['suffixes']['storage']}"
        return f"abfss://{container['name']}@{host}"

    def _client(self, *names: str, **registry: str) -> Any:
        from azure.ai.ml import MLClient

        settings = {**registry, "enable_telemetry": False, "transport": _transport()}
        with as_user_errors(), load.quiet():
            return MLClient(self._credential, *names, **settings)

    @cached_property
    def blobs(self) -> Any:
        """azure-storage-blob's client of the default datastore's container.

        It signs in as azure-ai-ml does for uploads: by a SAS if the datastore has credentials, else
        as `client`.
        """
        return self._storage_account.get_container_client(self._datastore.container_name)

    def release_blob(self, name: str) -> Any:
        """Return azure-storage-blob's client of a blob with state of this workspace's releases."""
        return self._storage_account.get_blob_client(RELEASES, f"{self.name}/{name}")

    @cached_property
    def _datastore(self) -> Any:
        with as_user_errors(), self.quiet():
            return self.client.datastores.get(DATASTORE)

    @cached_property
    def _storage_account(self) -> Any:
        from azure.storage.blob import BlobServiceClient

        host = f"{self._datastore.account_name}.blob.{self._cloud['suffixes']['storage']}"
        # The default is to wait 15 seconds before a retry.
        return BlobServiceClient(
            f"https://{host}", credential=self._storage_credential, initial_backoff=1
        )

    @property
    def _storage_credential(self) -> Any:
        """A SAS valid for an hour, as azure-ai-ml uses, or the credential of `client`.

        MLClient's public `get(include_secrets=True)` returns the account key instead.
        learn.microsoft.com/rest/api/azureml/datastores/list-secrets
        """
        from azure.ai.ml.entities import NoneCredentialConfiguration
        from azure.core.exceptions import HttpResponseError

        if isinstance(self._datastore.credentials, NoneCredentialConfiguration):
            return self._credential
        path = f"{self.id}/datastores/{DATASTORE}/listSecrets?api-version={_SECRETS_API}"
        expiry = {"expirableSecret": True, "expireAfterHours": 1}
        with as_user_errors():
            try:
                secrets = self._send(self._resource_manager, "POST", path, "secretsType", **expiry)
            except HttpResponseError:
                return self._credential
        return secrets.get("sasToken") or secrets.get("key")

    @cached_property
    def _credential(self) -> Any:
        from azure.identity import ClientAssertionCredential, DefaultAzureCredential

        who = [os.environ.get(name) for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID")]
        if os.environ.get(WORKFLOW_URL) and all(who):
            # A workflow's `az login` token expires after an hour; training may take longer.
            return ClientAssertionCredential(*who, _workflow_token)
        return DefaultAzureCredential()

    @cached_property
    def _resource(self) -> Any:
        return self.client.workspaces.get(self.name)

    @cached_property
    def _data_plane(self) -> Any:
        """The HTTP client of MLflow tracking and run history, with retries and a token."""
        from azure.core.exceptions import DecodeError

        uri = self._resource.mlflow_tracking_uri
        if not uri:
            raise DecodeError(f"the response for the workspace {self.name} has no tracking URI")
        host = uri.partition("/mlflow/")[0]
        return self._signed_in(self.address, host.replace("azureml:", "https:"))

    def _signed_in(self, audience: str, host: str = "", retries: bool = True) -> Any:
        """Return an azure-core HTTP client that sends a token for that audience."""
        from azure.core import PipelineClient
        from azure.core.configuration import Configuration
        from azure.core.pipeline import policies

        configuration = Configuration()
        configuration.headers_policy = policies.HeadersPolicy()
        configuration.user_agent_policy = policies.UserAgentPolicy("azureml-gitops-starter")
        configuration.redirect_policy = policies.RedirectPolicy()
        if retries:
            configuration.retry_policy = policies.RetryPolicy()
        configuration.authentication_policy = policies.BearerTokenCredentialPolicy(
            self._credential, f"{audience}/.default"
        )
        return PipelineClient(host or audience, config=configuration, transport=_transport())

    @cached_property
    def _storage(self) -> Any:
        """The HTTP client for log files. It sends no token, since their URLs contain a SAS."""
        from azure.core import PipelineClient
        from azure.core.configuration import Configuration
        from azure.core.pipeline import policies

        configuration = Configuration()
        configuration.retry_policy = policies.RetryPolicy()
        return PipelineClient("https://storage", config=configuration, transport=_transport())

    @cached_property
    def _endpoints(self) -> Any:
        """The HTTP client for endpoints, without retries: the first status and time count."""
        return self._signed_in("https://ml.azure.com", retries=False)

    @cached_property
    def address(self) -> str:
        """The URL of Azure Resource Manager in the chosen cloud, without a final slash."""
        return str(self._cloud["resourceManager"]).rstrip("/")

    @cached_property
    def _cloud(self) -> Mapping[str, Any]:
        """The metadata of the cloud that `CLOUD` and `METADATA` choose, in the form of `PUBLIC`.

        Raise UserError if the metadata cannot be read or lacks that cloud.
        """
        from azure.core import PipelineClient
        from azure.core.rest import HttpRequest

        name = os.environ.get(CLOUD)
        if METADATA not in os.environ and name in (None, PUBLIC["name"]):
            return PUBLIC
        url = os.environ.get(METADATA, f"{PUBLIC['resourceManager']}{_METADATA_PATH}")
        with as_user_errors():
            answer = PipelineClient(url).send_request(HttpRequest("GET", url)).json()
        clouds = answer if isinstance(answer, list) else [answer]
        for cloud in clouds:
            if cloud["name"] == name or (name is None and cloud["resourceManager"] in url):
                return cast(Mapping[str, Any], cloud)
        names = ", ".join(str(cloud["name"]) for cloud in clouds)
        raise UserError.with_code(
            "unknown-cloud", f"{CLOUD}: {name}", f"one of {names}", f"export {CLOUD}=NAME"
        )

    @cached_property
    def _resource_manager(self) -> Any:
        return self._signed_in(self.address)

    @cached_property
    def _logs(self) -> Any:
        # learn.microsoft.com/azure/azure-monitor/logs/api/azure-resource-queries
        return self._signed_in(str(self._cloud["logAnalyticsResourceId"]))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Silence the SDK, which writes warnings and upload progress to stderr."""
        with load.quiet(), redirect_stderr(StringIO()):
            yield

    def history(self, run: str) -> dict[str, Any]:
        """Return run history's details of a run: status, log files, error; {} if unknown."""
        from azure.core.exceptions import ResourceNotFoundError

        try:
            path = f"/history/v1.0{self.id}/runs/{run}/details"
            return self._send(self._data_plane, "GET", path, "status")
        except ResourceNotFoundError:
            return {}

    def tracking(self, call: str, **values: Any) -> dict[str, Any]:
        """Send a request to MLflow's REST API (`runs/get`, `runs/search` …); return its JSON."""
        method = "POST" if call.endswith("search") else "GET"
        demanded = "run" if call == "runs/get" else ""
        path = f"/mlflow/v2.0{self.id}/api/2.0/mlflow/{call}"
        return self._send(self._data_plane, method, path, demanded, **values)

    def tracked_runs(self, condition: str, experiments: list[str]) -> Iterator[dict[str, Any]]:
        """Yield the runs in these experiments (ids) that match MLflow's filter, newest first."""
        token = ""
        while experiments:
            values = {
                **{"filter": condition, "experiment_ids": experiments, "max_results": PAGE},
                "order_by": ["start_time DESC"],
            }
            page = self.tracking(
                "runs/search", **values, **({"page_token": token} if token else {})
            )
            yield from (
                run for run in page.get("runs") or () if (run.get("info") or {}).get("run_id")
            )
            token = page.get("next_page_token") or ""
            if not token:
                return

    def read_from(self, url: str, offset: int) -> bytes:
        """Return the bytes of a file in storage from `offset` on; b"" if it ends before that."""
        from azure.core.rest import HttpRequest

        request = HttpRequest("GET", url, headers={"Range": f"bytes={offset}-"})
        response = self._storage.send_request(request)
        if response.status_code == 416:  # Range Not Satisfiable
            return b""
        content: bytes = _checked(response).content
        return content if response.status_code == 206 else content[offset:]

    def score(self, url: str, body: str, headers: Mapping[str, str]) -> tuple[int, str, bool]:
        """Post a request to an endpoint; return the status, the body, and `by_model`.

        `by_model` is True if the model responded or timed out, False if the service responded.
        Raise OSError without a response, and UserError if the endpoint rejects the caller.
        """
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.core.rest import HttpRequest

        request = HttpRequest(
            "POST", url, content=body, headers={"Content-Type": "application/json", **headers}
        )
        try:
            response = self._endpoints.send_request(request)
        except AzureError as error:
            if isinstance(error, ClientAuthenticationError):
                raise
            raise OSError(str(error)) from error
        status = response.status_code
        if status in (401, 403):  # by the service: a model's error is MODEL_ERROR
            raise UserError(
                Problem(
                    "no-permission",
                    f"{url} rejected the sign-in: status {status}",
                    "a role with onlineEndpoints/score/action",
                    'az role assignment create --role "AzureML Data Scientist" --assignee YOU '
                    f"--scope {self.id}",
                )
            )
        by_model = status in BY_MODEL
        if status == MODEL_ERROR:
            status = response.headers.get("ms-azureml-model-error-statuscode") or status
        return int(status), str(response.text()), by_model

    def answer(self, plane: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return the response's status and its JSON, None if it is not JSON.

        `plane` is `resource_manager`, `data_plane` or `logs`.
        """
        from azure.core.rest import HttpRequest

        client = getattr(self, f"_{plane}")
        response = client.send_request(HttpRequest(method, client.format_url(path), json=body))
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

    def logs(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query (KQL) of the workspace's logs, each as column → value."""
        path = f"/v1{self.id}/query"
        tables = self._send(self._logs, "POST", path, "tables", query=query)["tables"]
        return [
            dict(zip(columns, row, strict=False))
            for table in tables or ()
            for columns in [[column.get("name") for column in table.get("columns") or ()]]
            for row in table.get("rows") or ()
        ]

    def metric(self, resource: str, name: str, since: float) -> list[tuple[float, float]]:
        """Return (epoch seconds, average) per minute of a resource's metric, the oldest first.

        `resource` is a path below the workspace. Minutes without a value are left out.
        learn.microsoft.com/rest/api/monitor/metrics/list
        """
        span = "/".join(
            datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for moment in (since, time.time() + 60)
        )
        path = f"{self.id}/{resource}/providers/microsoft.insights/metrics"
        values = {"metricnames": name, "timespan": span, "interval": "PT1M"}
        query = {"api-version": "2018-01-01", "aggregation": "Average", **values}
        answer = self._send(self._resource_manager, "GET", path, "value", **query)
        return [
            (datetime.fromisoformat(point["timeStamp"]).timestamp(), point["average"])
            for metric in answer["value"] or ()
            for series in metric.get("timeseries") or ()
            for point in series.get("data") or ()
            if point.get("average") is not None
        ]

    def _send(
        self, client: Any, method: str, path: str, demanded: str, **values: Any
    ) -> dict[str, Any]:
        from azure.core.rest import HttpRequest

        body = {"params": values} if method == "GET" else {"json": values}
        response = client.send_request(HttpRequest(method, client.format_url(path), **body))
        return _document(response, demanded)


def _transport() -> Any:
    """Return an HTTP transport that waits no longer than `LONGEST_S` at a time.

    azure-core calls the transport's `sleep` between retries and between polls of an operation.
    """
    from azure.core.pipeline.transport import RequestsTransport

    transport = RequestsTransport()
    wait = transport.sleep
    transport.sleep = lambda duration: wait(min(duration, LONGEST_S))
    return transport


def _checked(response: Any) -> Any:
    """Return the response; raise the same error classes as azure-ai-ml's clients.

    azure-core's `raise_for_status` has one class for every status.
    """
    from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError, map_error

    classes = {401: ClientAuthenticationError, 404: ResourceNotFoundError}
    map_error(response.status_code, response, classes)
    response.raise_for_status()
    return response


def _document(response: Any, demanded: str = "") -> dict[str, Any]:
    """Return the response's JSON object, with the field `demanded`.

    Raise DecodeError for other content, such as a gateway's HTML page.
    """
    from azure.core.exceptions import DecodeError

    try:
        answer = _checked(response).json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or (demanded and demanded not in answer):
        what = f"an object with `{demanded}`" if demanded else "an object"
        path = urlsplit(str(response.request.url)).path
        raise DecodeError(f"the response of {path} is not {what} as JSON", response=response)
    return answer


def configured(environment: Mapping[str, str] | None = None) -> Workspace:
    """Return the workspace that the environment variables name; UserError if some are not set."""
    values = os.environ if environment is None else environment
    missing = [name for name in VARIABLES if not values.get(name)]
    if missing:
        raise UserError(
            *(
                Problem(
                    "no-workspace-named",
                    f"--on azure: the variable {name} is not set",
                    "the subscription, the resource group and the workspace to run in",
                    f'export {name}="$({VARIABLES[name]} -o tsv)"',
                )
                for name in missing
            ),
            exit_code=Exit.WRONG_CALL,
        )
    subscription, group, name = (values[variable] for variable in VARIABLES)
    shared = (values.get(variable, "") for variable in (REGISTRY, FEATURE_STORE))
    return Workspace(subscription, group, name, *shared)


def _workflow_token() -> str:
    """Return a new OIDC token of the GitHub Actions job, which Azure exchanges for its own.

    Raise ClientAuthenticationError, as azure-identity does, if GitHub returns none.
    """
    from azure.core.exceptions import ClientAuthenticationError

    query = urlencode({"audience": AUDIENCE})
    request = Request(f"{os.environ[WORKFLOW_URL]}&{query}")
    request.add_header("Authorization", f"Bearer {os.environ[WORKFLOW_TOKEN]}")
    try:
        with urlopen(request, timeout=30) as response:
            return str(json.load(response)["value"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise ClientAuthenticationError(f"GitHub returned no OIDC token: {error}") from error
