"""Which deployment a request goes to: weights, sticky keys, the explicit header, mirrors.

The routes are a file that the endpoint writes and the router reads; nothing else tells the router
where to send anything. What is done as managed online endpoints do it is described in
learn.microsoft.com/azure/machine-learning/how-to-safely-rollout-online-endpoints.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The header of managed online endpoints: this deployment, whatever its weight.
DEPLOYMENT_HEADER = "azureml-model-deployment"
# Requests with the same key go to the same deployment for as long as its weight does not shrink.
KEY_HEADER = "x-routing-key"
# Managed online endpoints mirror at most half of the traffic.
MOST_MIRRORED = 50
TIMEOUT_MS = 5000  # what a managed deployment has without `request_settings`


class RoutesError(Exception):
    """A routes file that cannot be followed."""


@dataclass(frozen=True)
class Routes:
    """Ports by deployment, and what share of the requests each gets.

    `traffic` is in percent and adds up to 100; its first deployments keep their sticky keys while
    their share grows. `live` takes everything once `lease_s` seconds have passed without a word
    from whoever watches the others (None: the traffic stands until it is changed).
    `salt` deals the keys out anew for an `experiment`. `collect` is the share of its requests that
    is written down of a deployment, `digests` what its model is.
    """

    live: str
    ports: Mapping[str, int]
    traffic: Mapping[str, int]
    mirror: Mapping[str, int]
    timeout_ms: int = TIMEOUT_MS
    lease_s: float | None = None
    experiment: str = ""
    salt: str = ""
    collect: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = {self.live, *self.traffic, *self.mirror} - set(self.ports)
        if unknown:
            raise RoutesError(f"no port for {', '.join(sorted(unknown))}")
        if any(share < 0 for share in self.traffic.values()) or sum(self.traffic.values()) != 100:
            raise RoutesError(f"traffic {dict(self.traffic)} does not add up to 100")
        if any(not 0 <= share <= MOST_MIRRORED for share in self.mirror.values()) or (
            sum(self.mirror.values()) > 100
        ):
            raise RoutesError(f"mirror {dict(self.mirror)}: 0 to {MOST_MIRRORED} percent")

    def pick(self, key: str | None, draw: random.Random, leased: bool = True) -> str:
        """The deployment for a request without the explicit header; `key` makes it sticky."""
        if not leased:
            return self.live
        point = place(ticket(key, self.salt)) if key is not None else draw.random() * 100
        return allotted(point, self.traffic, self.live)

    def shadow(self, served_by: str, draw: random.Random) -> str | None:
        """The deployment that gets a copy of a request that `served_by` answers, if any does.

        At most one: two that worked on the same request would slow each other down.
        """
        point = draw.random() * 100
        for name, share in self.mirror.items():
            if point < share:
                return name if name != served_by else None
            point -= share
        return None


def read(path: Path) -> Routes:
    """The routes in a file; raises RoutesError when it is not there or cannot be followed."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))["routes"]
        return Routes(
            live=str(document["live"]),
            ports={str(name): int(port) for name, port in document["ports"].items()},
            traffic={str(name): int(share) for name, share in document["traffic"].items()},
            mirror={str(name): int(share) for name, share in document["mirror"].items()},
            timeout_ms=int(document["timeout_ms"]),
            lease_s=document["lease_s"],
            experiment=str(document.get("experiment", "")),
            salt=str(document.get("salt", "")),
            collect={str(n): float(share) for n, share in document.get("collect", {}).items()},
            digests={str(name): str(of) for name, of in document.get("digests", {}).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RoutesError(f"{path}: {error!r}") from None


def ticket(key: str, salt: str = "") -> str:
    """16 hex digits for a key, the same in every process; each salt deals them out anew.

    Keyed BLAKE2 (RFC 7693): without the salt, of which the first 64 bytes count, nobody can tell
    whether a ticket is that of a key.
    """
    content, secret = (text.encode("utf-8", "surrogateescape") for text in (key, salt))
    return hashlib.blake2b(content, digest_size=8, key=secret[:64]).hexdigest()


def place(ticket: str) -> float:
    """Where a ticket lies between 0 and 100, evenly spread."""
    return int(ticket, 16) / 2**64 * 100


def allotted(point: float, shares: Mapping[str, int], rest: str) -> str:
    """Whose share of a hundred the point lies in; the first take the lowest points."""
    for name, share in shares.items():
        if point < share:
            return name
        point -= share
    return rest  # the last hundredth of a rounding error
