"""Azure Resource Manager as `infra` asks it: read a resource, a list, or a question about a name.

One client, azure-mgmt-resource's, carries every request: its sign-in, retries and redirects are
Azure's own. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline import PipelineResponse
from azure.core.rest import HttpRequest, HttpResponse
from azure.mgmt.resource.resources import ResourceManagementClient

from ml.core.errors import Exit, Problem, Refused

PUBLIC = "https://management.azure.com"
# Seconds until a connection that does not come, or an answer that does not, is given up; the SDK's
# own five minutes each, and again at every try, look like nothing at all.
PATIENCE = 30
# Azure's codes for a subscription that is not there for who is signed in.
_NO_SUBSCRIPTION = ("SubscriptionNotFound", "InvalidSubscriptionId")
_UNREGISTERED = "MissingSubscriptionRegistration"
_NETWORK = "check the network and the subscription"


class Denied(Exception):
    """Azure answered, and did not say what was asked; holds its error code."""


class Arm:
    """Reads one subscription; every method raises Refused when Azure cannot be asked at all."""

    def __init__(self, credential: TokenCredential, subscription: str, address: str) -> None:
        self.subscription = subscription
        self._address = address
        self._client = ResourceManagementClient(
            credential,
            subscription,
            base_url=address,
            credential_scopes=[f"{address}/.default"],
            connection_timeout=PATIENCE,
            read_timeout=PATIENCE,
            raw_response_hook=_unregistered,
        )

    def get(self, path: str, version: str) -> Mapping[str, Any] | None:
        """What is at `/subscriptions/…`; None where there is nothing (404)."""
        return self._sent(HttpRequest("GET", f"{self._address}{path}?api-version={version}"))

    def all(self, path: str, version: str) -> Iterator[Mapping[str, Any]]:
        """Every item of a list, page by page; none where there is no such list."""
        url = f"{self._address}{path}?api-version={version}"
        while url:
            page = self._sent(HttpRequest("GET", url)) or {}
            items = page.get("value") or []
            if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
                raise _unreachable("its list is none")
            yield from items
            url = page.get("nextLink") or ""
            if url and _host(url) != _host(self._address):
                raise _unreachable(f"the next page is said to be at {url[:100]}")

    def array(self, path: str, version: str) -> list[Any]:
        """A list that Azure sends bare, without pages: empty where there is none."""
        url = f"{self._address}{path}?api-version={version}"
        return (self._sent(HttpRequest("GET", url), bare=True) or {}).get("value") or []

    def asked(self, path: str, version: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a question that is a POST and changes nothing, such as of a free name."""
        url = f"{self._address}{path}?api-version={version}"
        return self._sent(HttpRequest("POST", url, json=dict(body))) or {}

    def _sent(self, request: HttpRequest, bare: bool = False) -> Mapping[str, Any] | None:
        try:
            answer = self._client.send_request(request)
        except ClientAuthenticationError as error:
            raise _unreachable(type(error).__name__, "`az login`, then try again") from None
        except AzureError as error:
            raise _unreachable(str(error.message)[:300]) from None
        status, body = answer.status_code, _json(answer, bare)
        code = _code(body or {})
        if status == 401:
            raise _unreachable(
                f"status 401: {code}", "`az login --tenant` with azure-native:tenantId"
            )
        if code in _NO_SUBSCRIPTION:
            hint = "`az account show` names who is signed in, and where; or azure-native:tenantId"
            raise _unreachable(f"{code}: {self.subscription}", hint)
        if status == 404 and (body is not None or not answer.content):
            return None
        if body is None:
            raise _unreachable(f"status {status} without JSON")
        if status == 429 or status >= 500:
            raise _unreachable(f"status {status}: {code}", "try again in a few minutes")
        if status >= 400:
            raise Denied(code or str(status))
        return body


def _unregistered(response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
    """Stop before the SDK sees that a provider is not registered: it would register it."""
    answer = response.http_response
    if answer.status_code == 409 and _UNREGISTERED in answer.text():
        raise Denied(_UNREGISTERED)


def _host(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else None)


def _json(answer: HttpResponse, bare: bool) -> Mapping[str, Any] | None:
    try:
        body = answer.json()
    except ValueError:
        return None
    if bare and isinstance(body, list):
        return {"value": body}
    return body if isinstance(body, dict) else None


def _code(body: Mapping[str, Any]) -> str:
    """The error code; Azure Monitor has it outside."""
    error = body.get("error", body)
    return str(error.get("code") or "") if isinstance(error, Mapping) else ""


def _unreachable(found: str, hint: str = _NETWORK) -> Refused:
    return Refused(
        Problem("azure-does-not-answer", found, "an answer of Azure Resource Manager", hint),
        exit_code=Exit.RUN_FAILED,
    )
