"""Start the stand-in for a test session, and control it from tests."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from azure.ai.ml import _azure_environments

from ml.backends.azure import endpoints, following
from ml.backends.azure.workspace import VARIABLES
from tests.conftest import ROOT
from tests.stand_ins.azurite_server import PROGRAM, skip_without


@dataclass(frozen=True)
class StandIn:
    """A running stand-in, with the environment variables to use it."""

    variables: dict[str, str]

    def fail(self, *faults: dict[str, Any]) -> None:
        """Inject faults into the next requests; see `tests.stand_ins.azure.server.Fault`."""
        self._control("faults", list(faults))

    def faults_left(self) -> int:
        """Return the number of faults that have not occurred yet."""
        left: int = self._control("left", None)
        return left

    def requests(self) -> list[str]:
        """Return the requests since the last call, each as `METHOD path`."""
        answer: list[str] = self._control("requests", None)
        return answer

    def copy(self, job: str, times: int) -> None:
        """Add `times` copies of a completed job."""
        self._control("copies", {"job": job, "times": times})

    def enter(self, patch: pytest.MonkeyPatch, prefix: str = "mlw") -> str:
        """Make this process use a new workspace; return its name.

        With the prefix `idle`, its jobs stay queued. Also sets the cloud's addresses, like
        MLClient's `cloud_metadata`: azure-ai-ml requests those of an unknown cloud repeatedly, even
        for each job of a list.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        for key, value in {**self.variables, "AZUREML_WORKSPACE_NAME": name}.items():
            patch.setenv(key, value)
        assert set(VARIABLES) <= set(self.variables)
        # Poll faster: metrics are available at once, and jobs take seconds.
        patch.setattr(endpoints, "METRICS_S", 0.3)
        patch.setattr(endpoints, "TIMEOUT_MS", 1000)
        patch.setattr(following, "_FIRST_POLL_S", 0.2)
        patch.setattr(following, "_LAST_POLL_S", 0.5)
        addresses = _azure_environments._get_clouds_by_metadata_url(
            self.variables["ARM_CLOUD_METADATA_URL"]
        )
        for cloud, known in addresses.items():
            patch.setitem(_azure_environments._environments, cloud, known)
        return name

    def _control(self, what: str, body: Any) -> Any:
        host = self.variables["ARM_CLOUD_METADATA_URL"].partition("/metadata/")[0]
        request = Request(f"{host}/stand-in/{what}", json.dumps(body).encode(), method="POST")
        context = ssl.create_default_context(cafile=self.variables["REQUESTS_CA_BUNDLE"])
        with urlopen(request, context=context) as response:
            return json.load(response)


@contextmanager
def running(folder: Path) -> Iterator[StandIn]:
    """Run the stand-in as a process within the block, with its home in `folder`.

    Skips the test if Azurite is not installed.
    """
    skip_without(PROGRAM)
    command = [sys.executable, "-m", "tests.stand_ins.azure", "--home", str(folder), "--json"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the stand-in did not start"
        yield StandIn(json.loads(line))
    finally:
        # Closing its input may not end it, since forked processes may hold it open.
        process.terminate()
        process.wait(timeout=60)
        process.stdin.close()


def provision(client: Any, name: str) -> None:
    """Create an endpoint in an MLClient's workspace, as `infra` does, if it does not exist."""
    from azure.ai.ml.entities import ManagedOnlineEndpoint

    if name not in [each.name for each in client.online_endpoints.list()]:
        endpoint = ManagedOnlineEndpoint(name=name, auth_mode="aad_token")
        client.online_endpoints.begin_create_or_update(endpoint).result()


def register_environment(client: Any, name: str, version: str) -> None:
    """Register an environment in an MLClient's workspace."""
    from azure.ai.ml.entities import Environment

    image = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
    client.environments.create_or_update(Environment(name=name, version=version, image=image))
