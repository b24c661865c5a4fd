"""The workspace: which one it is, its client, and the two data planes that the client lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from ml.core import home
from ml.core.errors import Exit, Problem, Refused
from ml.specs.sdk import load

# The variables that name the workspace, and the `az` command that prints the value of each.
VARIABLES = {
    "AZURE_SUBSCRIPTION_ID": "az account show --query id",
    "AZUREML_RESOURCE_GROUP": "az group list --query '[].name'",
    "AZUREML_WORKSPACE_NAME": "az ml workspace list --query '[].name'",
}
# MLflow's REST API: "runs/search … max_results: the maximum number of runs desired".
PAGE = 1000


@dataclass(frozen=True)
class Workspace:
    """An Azure Machine Learning workspace; nothing is sent before something is asked."""

    subscription: str
    group: str
    name: str

    @property
    def id(self) -> str:
        """The ARM id."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{self.name}"
        )

    @property
    def folder(self) -> Path:
        """What was brought from it to this machine: logs and outputs, a folder for each job."""
        return home.home() / "azure" / self.name

    @cached_property
    def client(self) -> Any:
        """azure-ai-ml's MLClient, signed in as `az login`, a managed identity or OIDC does.

        It shows progress, and `quiet` hides it: told to show none, azure-ai-ml 1.35 does not look
        at the result of an upload and waits for ever when a file has failed (`upload_directory`).
        """
        from azure.ai.ml import MLClient

        return MLClient(
            self._credential,
            self.subscription,
            self.group,
            self.name,
            enable_telemetry=False,
        )

    @cached_property
    def _credential(self) -> Any:
        from azure.identity import DefaultAzureCredential

        return DefaultAzureCredential()

    @cached_property
    def _resource(self) -> Any:
        return self.client.workspaces.get(self.name)

    @cached_property
    def _data_plane(self) -> Any:
        """An HTTP client with Azure's retries that signs in as the MLClient does."""
        from azure.ai.ml._azure_environments import _get_base_url_from_metadata
        from azure.core import PipelineClient
        from azure.core.configuration import Configuration
        from azure.core.pipeline import policies

        host = self._resource.mlflow_tracking_uri.partition("/mlflow/")[0]
        configuration = Configuration()
        configuration.headers_policy = policies.HeadersPolicy()
        configuration.user_agent_policy = policies.UserAgentPolicy("azureml-gitops-starter")
        configuration.retry_policy = policies.RetryPolicy()
        configuration.redirect_policy = policies.RedirectPolicy()
        configuration.authentication_policy = policies.BearerTokenCredentialPolicy(
            self._credential, f"{_get_base_url_from_metadata()}/.default"
        )
        return PipelineClient(host.replace("azureml://", "https://"), config=configuration)

    @cached_property
    def _storage(self) -> Any:
        """An HTTP client without a token: the addresses of logs contain a SAS."""
        from azure.core import PipelineClient
        from azure.core.configuration import Configuration
        from azure.core.pipeline import policies

        configuration = Configuration()
        configuration.retry_policy = policies.RetryPolicy()
        return PipelineClient("https://storage", config=configuration)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Silence the SDK, which writes warnings and the progress of uploads on stderr."""
        with load.quiet(), redirect_stderr(StringIO()):
            yield

    def history(self, run: str) -> dict[str, Any]:
        """Run history's details of a run: status, log files, error."""
        return self._call("GET", f"/history/v1.0{self.id}/runs/{run}/details")

    def tracking(self, call: str, **values: Any) -> dict[str, Any]:
        """One call of MLflow's REST API (`runs/get`, `runs/search` …)."""
        method = "POST" if call.endswith("search") else "GET"
        return self._call(method, f"/mlflow/v2.0{self.id}/api/2.0/mlflow/{call}", **values)

    def tracked_runs(self, condition: str, experiments: list[str]) -> Iterator[dict[str, Any]]:
        """The runs of experiments (ids) that MLflow's filter selects, page by page."""
        token = ""
        while experiments:
            values = {"filter": condition, "experiment_ids": experiments, "max_results": PAGE}
            page = self.tracking(
                "runs/search", **values, **({"page_token": token} if token else {})
            )
            yield from page.get("runs") or ()
            token = page.get("next_page_token") or ""
            if not token:
                return

    def read_from(self, url: str, offset: int) -> bytes:
        """What a file in storage has from a byte on; nothing when it is not that long."""
        from azure.core.rest import HttpRequest

        request = HttpRequest("GET", url, headers={"Range": f"bytes={offset}-"})
        response = self._storage.send_request(request)
        if response.status_code == 416:  # Range Not Satisfiable
            return b""
        response.raise_for_status()
        content: bytes = response.content
        return content if response.status_code == 206 else content[offset:]

    def _call(self, method: str, path: str, **values: Any) -> dict[str, Any]:
        from azure.core.rest import HttpRequest

        body = {"params": values} if method == "GET" else {"json": values}
        url = self._data_plane.format_url(path)
        response = self._data_plane.send_request(HttpRequest(method, url, **body))
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer


def configured(environment: Mapping[str, str] | None = None) -> Workspace:
    """The workspace that the environment variables name. Raises Refused for those not set."""
    values = os.environ if environment is None else environment
    missing = [name for name in VARIABLES if not values.get(name)]
    if missing:
        raise Refused(
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
    return Workspace(*(values[name] for name in VARIABLES))
