"""The sign-in to a workspace's storage: by a SAS where the datastore has credentials."""

from __future__ import annotations

from typing import Any

import pytest

from ml.backends.azure.workspace import configured
from tests.stand_ins.azure.running import StandIn

SAS = "sv=2024-08-04&sig=secret"
SECRETS = "POST .*/datastores/workspaceblobstore/listSecrets"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("credentials", "answer", "signed"),
    [
        ("Sas", {"body": {"secretsType": "Sas", "sasToken": SAS}}, True),
        ("Sas", {"status": 403}, False),
        ("None", {}, False),
    ],
)
def test_the_storage_is_signed_in_to_as_for_uploads(
    azure: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    credentials: str,
    answer: dict[str, Any],
    signed: bool,
) -> None:
    """As this client without credentials, and where it may not read them."""
    azure.enter(monkeypatch)
    properties = {"datastoreType": "AzureBlob", "accountName": "files", "containerName": "c"}
    store = {**properties, "credentials": {"credentialsType": credentials}}
    content = {"id": "store", "name": "workspaceblobstore", "properties": store}
    faults = [{"pattern": "GET .*/datastores/workspaceblobstore$", "body": content}]
    azure.fail(*faults, *([{"pattern": SECRETS, **answer}] if answer else []))
    url = configured().blobs.url
    assert url.startswith("https://files.blob.") and "/c" in url
    assert ("sig=secret" in url) == signed
    assert azure.faults_left() == 0
    assert any("listSecrets" in request for request in azure.requests()) == bool(answer)
