"""The addresses of the cloud that azure-ai-ml's variables choose."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ml.backends.azure.workspace import CLOUD, METADATA, PUBLIC, Workspace
from ml.core.errors import UserError

WORKSPACE = ("s", "g", "w")
GOVERNMENT = {
    "name": "AzureUSGovernment",
    "resourceManager": "https://management.usgovcloudapi.net/",
    "suffixes": {"storage": "core.usgovcloudapi.net"},
    "logAnalyticsResourceId": "https://api.loganalytics.us",
}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL at which Azure Resource Manager lists two clouds."""
    (tmp_path / "endpoints.json").write_text(json.dumps([PUBLIC, GOVERNMENT]))
    files = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), files)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/endpoints.json"
    monkeypatch.setenv(METADATA, url)
    yield url
    server.shutdown()
    server.server_close()


def test_the_public_cloud_needs_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers in this test."""
    for name in (CLOUD, METADATA):
        monkeypatch.delenv(name, raising=False)
    assert Workspace(*WORKSPACE).address == "https://management.azure.com"
    monkeypatch.setenv(CLOUD, "AzureCloud")
    assert Workspace(*WORKSPACE).address == "https://management.azure.com"


def test_a_named_cloud_has_its_own_addresses(
    metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure Resource Manager, storage and logs are of one cloud."""
    monkeypatch.setenv(CLOUD, "AzureUSGovernment")
    workspace = Workspace(*WORKSPACE)
    assert workspace.address == "https://management.usgovcloudapi.net"
    assert workspace._cloud == GOVERNMENT


def test_without_a_name_the_address_of_the_list_decides(
    metadata: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As azure-ai-ml chooses: the cloud whose Resource Manager answered."""
    monkeypatch.delenv(CLOUD, raising=False)
    monkeypatch.setenv(METADATA, f"{metadata}?{GOVERNMENT['resourceManager']}")
    assert Workspace(*WORKSPACE).address == "https://management.usgovcloudapi.net"


def test_an_unknown_cloud_is_refused(metadata: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the clouds that there are."""
    monkeypatch.setenv(CLOUD, "AzureMoon")
    with pytest.raises(UserError) as refused:
        Workspace(*WORKSPACE).address  # noqa: B018
    (problem,) = refused.value.problems
    assert problem.code == "unknown-cloud" and problem.actual == f"{CLOUD}: AzureMoon"
    assert "AzureCloud, AzureUSGovernment" in problem.expected


def test_a_cloud_that_describes_itself_alone(
    metadata: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of one cloud is no list."""
    (tmp_path / "endpoints.json").write_text(json.dumps(GOVERNMENT))
    monkeypatch.setenv(CLOUD, "AzureUSGovernment")
    assert Workspace(*WORKSPACE).address == "https://management.usgovcloudapi.net"
    monkeypatch.setenv(CLOUD, "AzureMoon")
    with pytest.raises(UserError, match="one of AzureUSGovernment"):
        Workspace(*WORKSPACE).address  # noqa: B018


def test_a_list_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback where nobody answers."""
    monkeypatch.setenv(METADATA, "http://127.0.0.1:1/metadata")
    monkeypatch.setenv(CLOUD, "AzureUSGovernment")
    with pytest.raises(UserError):
        Workspace(*WORKSPACE).address  # noqa: B018
