"""Starts the stand-in for a test session, and controls it from a test."""

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
    """A running stand-in: the environment variables that lead to it."""

    variables: dict[str, str]

    def fail(self, *faults: dict[str, Any]) -> None:
        """Faults to come: see `tests.stand_ins.azure.server.Fault`."""
        self._control("faults", list(faults))

    def faults_left(self) -> int:
        """How many are still to come."""
        left: int = self._control("left", None)
        return left

    def requests(self) -> list[str]:
        """The requests since the last call, each as `METHOD path`."""
        answer: list[str] = self._control("requests", None)
        return answer

    def copy(self, job: str, times: int) -> None:
        """Add that many jobs that have ended as this one did."""
        self._control("copies", {"job": job, "times": times})

    def enter(self, patch: pytest.MonkeyPatch, prefix: str = "mlw") -> str:
        """Lead this process to a workspace of its own; its name. With the prefix `idle` it starts
        no jobs: they stay queued.

        Of a cloud that azure-ai-ml does not know it asks for the addresses again and again, for
        each job of a list even. So it is told them, as with MLClient's `cloud_metadata`.
        """
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        for key, value in {**self.variables, "AZUREML_WORKSPACE_NAME": name}.items():
            patch.setenv(key, value)
        assert set(VARIABLES) <= set(self.variables)
        # Its metrics are there at once, its jobs take seconds, and its answers less than one.
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
    """The stand-in as a process of its own with its home in `folder`; it ends with the block.

    Skips the test where Azurite is not installed.
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
        # Forked processes may hold the other end of its input open.
        process.terminate()
        process.wait(timeout=60)
        process.stdin.close()


def provision(client: Any, name: str) -> None:
    """Make an endpoint in the workspace of an MLClient, as `infra` does, where there is none."""
    from azure.ai.ml.entities import ManagedOnlineEndpoint

    if name not in [each.name for each in client.online_endpoints.list()]:
        endpoint = ManagedOnlineEndpoint(name=name, auth_mode="aad_token")
        client.online_endpoints.begin_create_or_update(endpoint).result()


def register_environment(client: Any, name: str, version: str) -> None:
    """Register an environment in the workspace of an MLClient."""
    from azure.ai.ml.entities import Environment

    image = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
    client.environments.create_or_update(Environment(name=name, version=version, image=image))
