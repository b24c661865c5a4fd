"""Answers of Azure, or of something in its place: read, named, or refused in a few lines."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from infra.live import arm as asking
from infra.live.arm import Arm, Denied
from ml.core.errors import UserError
from tests.infra.live.declared import GROUP, SUBSCRIPTION
from tests.stand_ins.arm_server import SignedIn, State

AT = f"/subscriptions/{SUBSCRIPTION}/things"
JSON = {"Content-Type": "application/json"}
PAGE = {"Content-Type": "text/html"}
SIGN_IN = {**JSON, "WWW-Authenticate": 'Bearer authorization_uri="https://login", error="invalid"'}


def error(code: str, message: str = "no") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def answered(state: State, status: int, headers: dict[str, str], body: bytes) -> None:
    state.raw.append((status, headers, body))


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, JSON, b'{"value": [{"id": "x"'),
        (200, {**JSON, "Content-Length": "500"}, b'{"value": []}'),
        (200, JSON, b"[]"),
        (200, JSON, b""),
        (200, JSON, b'{"value": "abc"}'),
        (200, JSON, b'{"value": [null]}'),
        (200, PAGE, b"<html>Sign in to the hotel</html>"),
        (404, PAGE, b"<html>not here</html>"),
        (403, PAGE, b"<html>the proxy says no</html>"),
        (503, {**PAGE, "Retry-After": "0"}, b"<html>busy</html>"),
        (429, {**JSON, "Retry-After": "0"}, error("SubscriptionRequestsThrottled")),
        (307, {"Location": "/round/and/round"}, b""),
        (302, {"Location": "http://127.0.0.1:9/sign-in"}, b""),
        (200, JSON, b'{"value": [], "nextLink": "https://elsewhere.example/next"}'),
        (200, JSON, b'{"value": [], "nextLink": "http://127.0.0.1/next"}'),
    ],
)
def test_an_invalid_answer_is_one_readable_error(
    arm: Arm, state: State, status: int, headers: dict[str, str], body: bytes
) -> None:
    """Exit 1 and a few short lines; never treated as an absent resource."""
    answered(state, status, headers, body)
    arm._client._config.retry_policy.backoff_factor = 0
    with pytest.raises(UserError, match="arm-request-failed") as refused:
        list(arm.all(AT, "1"))
    assert refused.value.exit_code == 1
    lines = str(refused.value).splitlines()
    assert len(lines) <= 4 and all(len(line) < 400 for line in lines)


@pytest.mark.parametrize("body", [b'{"value": null}', b"{}", b'{"value": [], "nextLink": null}'])
def test_an_empty_list(arm: Arm, state: State, body: bytes) -> None:
    answered(state, 200, JSON, body)
    assert list(arm.all(AT, "1")) == []


def test_an_absent_resource(arm: Arm, state: State) -> None:
    """With a body, with one in Azure Monitor's form, and without any."""
    for body in (error("ResourceNotFound"), b'{"code": "ResourceNotFound"}', b""):
        answered(state, 404, JSON, body)
    assert [arm.get(AT, "1") for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("code", ["InvalidAuthenticationTokenTenant", "ExpiredAuthenticationToken"])
def test_a_rejected_token_ends_the_command(arm: Arm, state: State, code: str) -> None:
    """Of another tenant, or expired: no other request would succeed."""
    answered(state, 401, SIGN_IN, error(code))
    with pytest.raises(UserError, match=code) as refused:
        arm.get(AT, "1")
    assert "az login --tenant" in str(refused.value)


def test_an_invisible_subscription_ends_the_command(arm: Arm, state: State) -> None:
    """Otherwise everything in it would be reported missing."""
    answered(state, 404, JSON, error("SubscriptionNotFound"))
    with pytest.raises(UserError, match="SubscriptionNotFound") as refused:
        arm.get(AT, "1")
    assert "az account show" in str(refused.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AuthorizationFailed"), (400, "NoRegisteredProviderFound"), (409, "Conflict")],
)
def test_a_refused_request_is_named_by_its_code(
    arm: Arm, state: State, status: int, code: str
) -> None:
    """Other requests may succeed."""
    answered(state, status, JSON, error(code))
    for _ in range(2):
        with pytest.raises(Denied, match=code):
            arm.get(AT, "1")


def test_no_request_registers_a_provider(arm: Arm, state: State) -> None:
    """The SDK would register it on that answer, and then wait indefinitely."""
    message = "The subscription is not registered to use namespace 'Microsoft.KeyVault'"
    answered(state, 409, JSON, error("MissingSubscriptionRegistration", message))
    with pytest.raises(Denied, match="MissingSubscriptionRegistration"):
        arm.query(AT, "1", {"name": "x"})
    assert [(method, path) for method, path, _ in state.asked] == [("POST", AT)]


def test_a_busy_service_is_retried_after_its_delay(arm: Arm, state: State) -> None:
    """429 with Retry-After, also for a POST."""
    busy = (429, {**JSON, "Retry-After": "0"}, error("TooManyRequests"))
    state.raw += [busy, (200, JSON, b'{"nameAvailable": true}')]
    assert arm.query(AT, "1", {})["nameAvailable"] is True
    state.raw[:] = [busy, busy, (200, JSON, b'{"id": "x"}')]
    assert arm.get(AT, "1") == {"id": "x"}


def test_the_next_page_may_name_the_port_of_https() -> None:
    """As some services do."""
    here = Arm(SignedIn(), SUBSCRIPTION, asking.PUBLIC)
    seen: list[str] = []
    pages: list[Any] = [{"value": [], "nextLink": f"{asking.PUBLIC}:443{GROUP}"}, {"value": [{}]}]

    def sent(request: Any) -> Any:
        seen.append(request.url)
        return pages.pop(0)

    here._sent = sent  # type: ignore[method-assign]
    assert list(here.all(AT, "1")) == [{}]
    assert seen[1] == f"{asking.PUBLIC}:443{GROUP}"


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection and never answers."""
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        here = Arm(SignedIn(), SUBSCRIPTION, f"https://127.0.0.1:{silent.getsockname()[1]}")
        here._client._config.retry_policy.total_retries = 0
        with pytest.raises(UserError, match="arm-request-failed"):
            here.get(AT, "1")


def test_an_unreachable_proxy_is_a_readable_error(
    arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    arm._client._config.retry_policy.total_retries = 0
    with pytest.raises(UserError, match="proxy"):
        arm.get(AT, "1")
