"""User-delegation SAS: signed by who asks, for one path, to read or to write, for a few hours.

Stored access policies and an account's SAS policy do not apply to user-delegation SAS
(learn.microsoft.com/azure/storage/common/sas-expiration-policy): the limit is held here. Shared
keys are off on every account, so that no other kind of SAS can be issued. Azure's own limit is
seven days (rest/api/storageservices/create-user-delegation-sas).
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote

from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient, UserDelegationKey, generate_blob_sas
from azure.storage.filedatalake import generate_directory_sas

from ml.core.errors import Exit, Problem, Refused

Access = Literal["read", "write"]
# What a holder may do. Neither may delete; who writes may not read what others wrote.
FILE: dict[Access, str] = {"read": "r", "write": "cw"}
FOLDER: dict[Access, str] = {"read": "rl", "write": "cw"}
BLOBS = "https://{account}.blob.core.windows.net"
AZURES_LIMIT = timedelta(days=7)
# Clocks differ: the key is valid from a little before now.
_SKEW = timedelta(minutes=5)
_SIGN_IN = "`az login`, and check the address of the account and its network rules"
_HINTS = {
    "AuthorizationFailure": "the network rules of the account: ask from a network that it lets in",
    "AuthorizationPermissionMismatch": "it takes a role on the account that reads or writes blobs",
}


@dataclass(frozen=True)
class Scope:
    """A file or, with a slash at its end, a folder of a container."""

    container: str
    path: str
    folder: bool

    def __str__(self) -> str:
        return f"{self.container}/{self.path}{'/' if self.folder else ''}"


@dataclass(frozen=True)
class Sas:
    """What was issued; `token` is a secret and not shown with the rest."""

    scope: Scope
    access: Access
    expires: datetime
    address: str
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """The address with the token: whoever has it has the access."""
        return f"{self.address}?{self.token}"


def scope(text: str) -> Scope:
    """`container/folder/` or `container/folder/file`; Refused for anything wider or unclear."""
    container, _, path = text.partition("/")
    parts = path.removesuffix("/").split("/")
    unclear = any(part in ("", ".", "..") for part in parts) or re.search(r"[\\\x00-\x1f?#]", text)
    if not re.fullmatch(r"[a-z0-9](-?[a-z0-9]){2,62}", container) or unclear:
        raise Refused(
            Problem(
                "no-path",
                text,
                "CONTAINER/PATH of a file, or of a folder with a slash at its end",
                "a whole container is never given: infra sas dev raw/2026/sales.csv",
            )
        )
    return Scope(container, path.removesuffix("/"), path.endswith("/"))


def lifetime(hours: float, limit: timedelta) -> timedelta:
    """How long a SAS of so many hours lives; Refused for none, and for more than `limit`."""
    most = min(limit, AZURES_LIMIT) / timedelta(hours=1)
    # NaN is neither more nor less than anything.
    life = timedelta(hours=hours) if 0 < hours <= most else timedelta(0)
    if not life:
        raise Refused(
            Problem(
                "sas-too-long" if hours > most else "sas-without-life",
                f"{hours:g} h",
                f"more than 0 and at most {most:g} h",
                "the limit is storage.sas_hours of the environment's stack file",
            )
        )
    return life


def issue(
    service: BlobServiceClient, wanted: Scope, access: Access, life: timedelta, limit: timedelta
) -> Sas:
    """A SAS for `life`, which may not exceed the environment's `limit`; Refused otherwise.

    Refused too, with exit 1, when Azure does not answer or denies the delegation key.
    """
    lifetime(life / timedelta(hours=1), limit)
    now = datetime.now(UTC).replace(microsecond=0)
    expires = now + life
    key = _key(service, now - _SKEW, expires)
    account = str(service.account_name)
    if wanted.folder:
        token = generate_directory_sas(
            account,
            wanted.container,
            wanted.path,
            key,
            FOLDER[access],
            expires,
            protocol="https",
        )
    else:
        token = generate_blob_sas(
            account,
            wanted.container,
            wanted.path,
            user_delegation_key=key,
            permission=FILE[access],
            expiry=expires,
            protocol="https",
        )
    address = f"{service.url.rstrip('/')}/{wanted.container}/{quote(wanted.path)}"
    return Sas(wanted, access, expires, address, token)


def _key(service: BlobServiceClient, begins: datetime, ends: datetime) -> UserDelegationKey:
    try:
        key = service.get_user_delegation_key(begins, ends)
        if not base64.b64decode(str(key.value or ""), validate=True):
            raise ValueError("empty")
    except AzureError as error:
        raise denied(error) from None
    # The SDK takes an answer to be the service's, and trips over any other.
    except (AttributeError, TypeError, ValueError):
        found, hint = "an answer that holds none", "check the address of the account and any proxy"
        raise _no_key(found, hint) from None
    return key


def denied(error: AzureError) -> Refused:
    """Why there is no key, in the words of Azure's own error code: nothing of the answer's body."""
    status = getattr(error, "status_code", None)
    code = getattr(error, "error_code", None) or (status and f"status {status}")
    code = getattr(code, "value", code)  # an enum, of the codes that the SDK knows
    return _no_key(str(code or type(error).__name__), _HINTS.get(str(code), _SIGN_IN))


def _no_key(found: str, hint: str) -> Refused:
    expected = "a user delegation key of the account"
    return Refused(Problem("no-delegation-key", found, expected, hint), exit_code=Exit.RUN_FAILED)
