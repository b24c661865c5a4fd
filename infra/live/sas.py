"""User-delegation SAS: signed by the user, for one path, for reading or writing, for a few hours.

Stored access policies and an account's SAS policy do not apply to user-delegation SAS
(learn.microsoft.com/azure/storage/common/sas-expiration-policy), so the limit is enforced here.
Shared keys are off on every account, so no other kind of SAS can be issued. Azure's own limit is
seven days from the start of the key (rest/api/storageservices/create-user-delegation-sas). The key
starts five minutes before now, so a SAS of seven days is five minutes shorter.
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

from infra.live.arm import credential
from ml.core.errors import Exit, Problem, UserError

Access = Literal["read", "write"]
# SAS permissions. Neither includes delete; write does not include read.
FILE: dict[Access, str] = {"read": "r", "write": "cw"}
FOLDER: dict[Access, str] = {"read": "rl", "write": "cw"}
BLOBS = "https://{account}.blob.core.windows.net"
AZURES_LIMIT = timedelta(days=7)
# The key starts this long before now, because clocks differ.
_SKEW = timedelta(minutes=5)
_SIGN_IN = "`az login`, and check the account's address and network rules"
_HINTS = {
    "AuthorizationFailure": "the account's network rules: run this in a network that they allow",
    "AuthorizationPermissionMismatch": "you need a role on the account that reads or writes blobs",
}


@dataclass(frozen=True)
class Scope:
    """A file or folder of a container; as text, a folder ends with a slash."""

    container: str
    path: str
    folder: bool

    def __str__(self) -> str:
        return f"{self.container}/{self.path}{'/' if self.folder else ''}"


@dataclass(frozen=True)
class Sas:
    """An issued SAS."""

    scope: Scope
    access: Access
    expires: datetime
    address: str
    token: str = field(repr=False)  # secret, so not in the repr

    @property
    def url(self) -> str:
        """The address with the token; a secret, since it grants access."""
        return f"{self.address}?{self.token}"


def scope(text: str) -> Scope:
    """Parse `container/folder/` or `container/folder/file`.

    Raise UserError for a whole container or an ambiguous path.
    """
    container, _, path = text.partition("/")
    parts = path.removesuffix("/").split("/")
    unclear = any(part in ("", ".", "..") for part in parts) or re.search(r"[\\\x00-\x1f?#]", text)
    if not re.fullmatch(r"[a-z0-9](-?[a-z0-9]){2,62}", container) or unclear:
        expected = "CONTAINER/PATH of a file, or of a folder with a slash at the end"
        hint = "a SAS never covers a whole container; for example: infra sas dev raw/2026/sales.csv"
        raise UserError(Problem("invalid-path", text, expected, hint))
    return Scope(container, path.removesuffix("/"), path.endswith("/"))


def lifetime(hours: float, limit: timedelta) -> timedelta:
    """Return the lifetime of a SAS; raise UserError if it is not positive or exceeds `limit`."""
    most = min(limit, AZURES_LIMIT) / timedelta(hours=1)
    # NaN compares as false.
    life = timedelta(hours=hours) if 0 < hours <= most else timedelta(0)
    if not life:
        code = "sas-too-long" if hours > most else "sas-too-short"
        expected = f"more than 0 and at most {most:g} h"
        hint = "the limit is storage.sas_hours of the environment's stack file"
        raise UserError(Problem(code, f"{hours:g} h", expected, hint))
    return life


def service(account: str) -> BlobServiceClient:
    """Return a client of a storage account's blob service, authenticated as the signed-in user."""
    return BlobServiceClient(
        BLOBS.format(account=account), credential=credential("https://storage.azure.com")
    )


def issue(
    service: BlobServiceClient, wanted: Scope, access: Access, life: timedelta, limit: timedelta
) -> Sas:
    """Return a SAS that is valid for `life`. Raise UserError if that exceeds `limit`.

    Also raise UserError, with exit 1, if Azure does not respond or denies the delegation key.
    """
    lifetime(life / timedelta(hours=1), limit)
    now = datetime.now(UTC).replace(microsecond=0)
    begins = now - _SKEW
    expires = min(now + life, begins + AZURES_LIMIT)
    key = _key(service, begins, expires)
    place = (str(service.account_name), wanted.container, wanted.path)
    if wanted.folder:
        token = generate_directory_sas(*place, key, FOLDER[access], expires, protocol="https")
    else:
        token = generate_blob_sas(
            *place,
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
    # The SDK raises these for a response that is not from Azure Storage.
    except (AttributeError, TypeError, ValueError):
        message, hint = "a response without a key", "check the account's address and any proxy"
        raise _no_key(message, hint) from None
    return key


def denied(error: AzureError) -> UserError:
    """Return a UserError with Azure's error code, without the body of the response."""
    status = getattr(error, "status_code", None)
    code = getattr(error, "error_code", None) or (status and f"status {status}")
    code = getattr(code, "value", code)  # the SDK's known codes are enum members
    return _no_key(str(code or type(error).__name__), _HINTS.get(str(code), _SIGN_IN))


def _no_key(message: str, hint: str) -> UserError:
    expected = "a user delegation key of the account"
    return UserError(
        Problem("no-delegation-key", message, expected, hint), exit_code=Exit.RUN_FAILED
    )
