"""Read-only client of Azure Resource Manager: GET a resource or a list, POST a query.

Requests go through azure-mgmt-resource's client, which signs in, retries and follows redirects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline import PipelineResponse
from azure.core.rest import HttpRequest, HttpResponse
from azure.identity import DefaultAzureCredential
from azure.mgmt.resource.resources import ResourceManagementClient

from infra.live.addresses import version
from ml.core.errors import Exit, Problem, UserError

PUBLIC = "https://management.azure.com"
# Timeout to connect and to read a response; the SDK's default is five minutes per attempt.
TIMEOUT_S = 30
# Azure's codes for a subscription that the user cannot see.
_NO_SUBSCRIPTION = ("SubscriptionNotFound", "InvalidSubscriptionId")
_UNREGISTERED = "MissingSubscriptionRegistration"
_NETWORK = "check the network and the subscription"


class Denied(Exception):
    """Azure rejected a request with a status 4xx; the message is Azure's error code."""


class Arm:
    """Client of a subscription; raises UserError if Azure is unreachable, Denied if it rejects."""

    def __init__(self, credential: TokenCredential, subscription: str, address: str) -> None:
        self.subscription = subscription
        self._address = address
        self._client = ResourceManagementClient(
            credential,
            subscription,
            base_url=address,
            credential_scopes=[f"{address}/.default"],
            connection_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            raw_response_hook=_unregistered,
        )

    def get(self, path: str, version: str) -> Mapping[str, Any] | None:
        """Return the resource at `/subscriptions/…`; None if there is none (404)."""
        return self._sent(HttpRequest("GET", f"{self._address}{path}?api-version={version}"))

    def all(self, path: str, version: str) -> Iterator[Mapping[str, Any]]:
        """Yield every item of a list, page by page; nothing if the list does not exist (404)."""
        url = f"{self._address}{path}?api-version={version}"
        while url:
            page = self._sent(HttpRequest("GET", url)) or {}
            items = page.get("value") or []
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise _unreachable("the response is not a list")
            yield from items
            url = page.get("nextLink") or ""
            if url and _host(url) != _host(self._address):
                raise _unreachable(f"the address of the next page is {url[:100]}")

    def query(self, path: str, version: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the response to a POST that only reads, such as whether a name is free."""
        url = f"{self._address}{path}?api-version={version}"
        return self._sent(HttpRequest("POST", url, json=dict(body))) or {}

    def _sent(self, request: HttpRequest) -> Mapping[str, Any] | None:
        try:
            answer = self._client.send_request(request)
        except ClientAuthenticationError as error:
            raise _unreachable(type(error).__name__, "`az login`, then try again") from None
        except AzureError as error:
            raise _unreachable(str(error.message)[:300]) from None
        status, body = answer.status_code, _json(answer)
        code = _code(body or {})
        if status == 401:
            raise _unreachable(
                f"status 401: {code}", "`az login --tenant` with azure-native:tenantId"
            )
        if code in _NO_SUBSCRIPTION:
            hint = "`az account show` prints the user and tenant; compare azure-native:tenantId"
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


def asset_registry(arm: Arm, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `properties` of an asset registry with its accounts; {} before it exists.

    `arguments` are the arguments of the program's invoke `getRegistry`.
    """
    group, name = arguments["resourceGroupName"], arguments["registryName"]
    subscription = arguments.get("subscriptionId", arm.subscription)
    path = f"/subscriptions/{subscription}/resourceGroups/{group}"
    id = f"{path}/providers/Microsoft.MachineLearningServices/registries/{name}"
    answer = arm.get(id, version("machinelearningservices:Registry")) or {}
    return answer.get("properties") or {}


def _unregistered(response: PipelineResponse[HttpRequest, HttpResponse]) -> None:
    """Raise Denied for an unregistered resource provider, which the SDK would register."""
    answer = response.http_response
    if answer.status_code == 409 and _UNREGISTERED in answer.text():
        raise Denied(_UNREGISTERED)


def _host(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else None)


def _json(answer: HttpResponse) -> Mapping[str, Any] | None:
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _code(body: Mapping[str, Any]) -> str:
    """Return the error code; Azure Monitor sends it at the top level."""
    error = body.get("error", body)
    return str(error.get("code") or "") if isinstance(error, Mapping) else ""


def _unreachable(message: str, hint: str = _NETWORK) -> UserError:
    return UserError(
        Problem("arm-request-failed", message, "a response of Azure Resource Manager", hint),
        exit_code=Exit.RUN_FAILED,
    )


def credential(audience: str) -> TokenCredential:
    """Return the credential of the signed-in user; raise UserError if nobody is signed in."""
    # The SDKs log a paragraph for each sign-in method that fails.
    logging.getLogger("azure").setLevel(logging.CRITICAL + 1)
    message, hint = "no sign-in to Azure", "az login"
    try:
        user = DefaultAzureCredential()
        user.get_token(f"{audience}/.default")
    except ClientAuthenticationError:
        pass
    except (ValueError, OSError) as error:  # an invalid environment variable
        message, hint = str(error)[:300], "correct or unset the variables AZURE_…"
    else:
        return user
    problem = Problem("not-signed-in", message, "a user who is signed in to Azure", hint)
    raise UserError(problem, exit_code=Exit.RUN_FAILED)
