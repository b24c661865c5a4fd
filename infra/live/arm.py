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
from azure.core.rest import HttpRequest
from azure.mgmt.resource.resources import ResourceManagementClient

from ml.specs.problems import Exit, Problem, Refused

PUBLIC = "https://management.azure.com"


class Denied(Exception):
    """Azure answered that this may not be read; holds its error code."""


class Arm:
    """Reads one subscription; every method raises Refused when Azure cannot be reached at all."""

    def __init__(self, credential: TokenCredential, subscription: str, address: str) -> None:
        self.subscription = subscription
        self._address = address
        self._client = ResourceManagementClient(
            credential,
            subscription,
            base_url=address,
            credential_scopes=[f"{address}/.default"],
        )

    def get(self, path: str, version: str) -> Mapping[str, Any] | None:
        """What is at `/subscriptions/…`; None where there is nothing (404)."""
        return self._sent(HttpRequest("GET", f"{self._address}{path}?api-version={version}"))

    def all(self, path: str, version: str) -> Iterator[Mapping[str, Any]]:
        """Every item of a list, page by page; none where there is no such list."""
        url = f"{self._address}{path}?api-version={version}"
        host = urlsplit(self._address).netloc
        while url:
            page = self._sent(HttpRequest("GET", url)) or {}
            yield from page.get("value", [])
            url = page.get("nextLink") or ""
            if url and urlsplit(url).netloc != host:
                raise _unreachable(f"the next page is said to be at {urlsplit(url).netloc}")

    def asked(self, path: str, version: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a question that is a POST and changes nothing, such as of a free name."""
        url = f"{self._address}{path}?api-version={version}"
        return self._sent(HttpRequest("POST", url, json=dict(body))) or {}

    def _sent(self, request: HttpRequest) -> Mapping[str, Any] | None:
        try:
            answer = self._client.send_request(request)
        except ClientAuthenticationError as error:
            raise _unreachable(type(error).__name__, "`az login`, then try again") from None
        except AzureError as error:
            raise _unreachable(str(error.message)) from None
        if answer.status_code == 404:
            return None
        try:
            body = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise _unreachable(f"status {answer.status_code} without JSON")
        if answer.status_code in (401, 403):
            raise Denied(_code(body) or str(answer.status_code))
        if answer.status_code >= 400:
            raise _unreachable(f"status {answer.status_code}: {_code(body)}")
        return body


def _code(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("code", "")) if isinstance(error, Mapping) else ""


def _unreachable(found: str, hint: str = "check the network and the subscription") -> Refused:
    return Refused(
        Problem("azure-does-not-answer", found, "an answer of Azure Resource Manager", hint),
        exit_code=Exit.RUN_FAILED,
    )
