"""Sign in to Azure Managed Redis by Entra ID, without a password."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode
from typing import Any

import redis
from redis.credentials import CredentialProvider

SCOPE = "https://redis.azure.com/.default"
_MARGIN_S = 300  # before a token expires; azure-identity renews its tokens then, too


class EntraSignIn(CredentialProvider):
    """Provide the credentials of new connections: an identity's object id and its token.

    `identity` has the method `get_token` of azure-identity's credentials, which cache their tokens.
    """

    def __init__(self, identity: Any) -> None:
        """Set the identity; the first connection requests the first token."""
        self._identity = identity
        self._expires_on = float("inf")  # of the last token, in seconds since 1970

    @property
    def is_due(self) -> bool:
        """Whether connections need a new token: Redis closes them when their token expires."""
        return time.time() > self._expires_on - _MARGIN_S

    def get_credentials(self) -> tuple[str, str]:
        """Return user and password. Raises redis.AuthenticationError when there is no token."""
        try:
            token = self._identity.get_token(SCOPE)
            claims = json.loads(urlsafe_b64decode(token.token.split(".")[1] + "=="))
            user = claims["oid"]
        except Exception as error:  # each credential class raises its own
            message = f"no token for {SCOPE}: {type(error).__name__}: {error}"
            raise redis.AuthenticationError(message) from error
        self._expires_on = token.expires_on
        return user, token.token
