"""A job of GitHub's signs in to Azure with tokens that it asks for anew."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import azure.identity
import pytest

from ml.backends.azure.errors import as_user_errors
from ml.backends.azure.workspace import (
    WORKFLOW_TOKEN,
    WORKFLOW_URL,
    Workspace,
    _workflow_token,
)
from ml.core.errors import UserError

WHO = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The questions to GitHub, which answers each with another token."""
    questions: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            questions.append(f"{self.path} {self.headers['Authorization']}")
            body = json.dumps({"value": f"token-{len(questions)}"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/token?api-version=2.0"
    for name, value in {WORKFLOW_URL: address, WORKFLOW_TOKEN: "of-the-job", **WHO}.items():
        monkeypatch.setenv(name, value)
    yield questions
    server.shutdown()
    server.server_close()


def test_a_long_job_stays_signed_in(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exchange with Azure has a new token, for Azure's audience, of the identity named."""
    made: list[tuple[str, str, Callable[[], str]]] = []

    class Recorded:
        def __init__(self, tenant: str, client: str, token: Callable[[], str]) -> None:
            made.append((tenant, client, token))

    monkeypatch.setattr(azure.identity, "ClientAssertionCredential", Recorded)
    credential: Any = Workspace("s", "g", "w")._credential
    assert isinstance(credential, Recorded)
    ((tenant, client, token),) = made
    assert (tenant, client) == ("tenant", "client")
    assert (token(), token()) == ("token-1", "token-2")
    audience = "audience=api%3A%2F%2FAzureADTokenExchange"
    assert asked == [f"/token?api-version=2.0&{audience} Bearer of-the-job"] * 2


@pytest.mark.parametrize("missing", [WORKFLOW_URL, *WHO])
def test_others_sign_in_as_before(
    missing: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `az login` or as a machine."""
    monkeypatch.delenv(missing)
    credential = Workspace("s", "g", "w")._credential
    assert isinstance(credential, azure.identity.DefaultAzureCredential) and asked == []


def test_no_token_is_no_sign_in(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GitHub answers instead, it is an error of the sign-in, which may pass."""
    for body in (b"", b"<html>", b"[]", b"{}", b'{"value"'):
        monkeypatch.setattr(
            "ml.backends.azure.workspace.urlopen", lambda *_, timeout, body=body: BytesIO(body)
        )
        with pytest.raises(UserError) as refused, as_user_errors():
            _workflow_token()
        assert refused.value.problems[0].code == "not-signed-in"
    monkeypatch.undo()
    monkeypatch.setenv(WORKFLOW_URL, "http://127.0.0.1:9/token?")
    monkeypatch.setenv(WORKFLOW_TOKEN, "of-the-job")
    with pytest.raises(UserError, match="GitHub returned no OIDC token"), as_user_errors():
        _workflow_token()
