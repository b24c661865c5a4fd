"""Decide which deployment gets a request: weights, sticky keys, the explicit header, mirrors.

The endpoint writes the routes to a file, which is the router's only source of destinations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ml.backends.traffic import MAX_MIRRORED, TIMEOUT_MS, choose, position, ticket

# The header that marks a release's sample requests, with the secret in router.json. It is removed
# before forwarding.
SAMPLE_HEADER = "x-canary-sample"


class RoutesError(Exception):
    """The routes file is missing or invalid."""


@dataclass(frozen=True)
class RouteTable:
    """Each deployment's port and its share of the requests; mappings are by deployment."""

    live: str
    ports: Mapping[str, int]
    # Percentages that add up to 100; the first deployments keep their sticky keys while their share
    # grows.
    traffic: Mapping[str, int]
    mirror: Mapping[str, int]  # percentages of the requests that are copied
    timeout_ms: int = TIMEOUT_MS
    # Seconds after which `live` gets all traffic unless the canary's watcher renews the lease;
    # None: no lease.
    lease_s: float | None = None
    experiment: str = ""  # name of the A/B experiment; "" for none
    salt: str = ""  # secret that decides, with `traffic`, which routing keys lead where
    # Share of the requests that is recorded, from 0 to 1.
    collect: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)  # of the models
    # Of the servers; no request goes to another process that listens on the port.
    pids: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = {self.live, *self.traffic, *self.mirror, *self.pids} - set(self.ports)
        if unknown:
            raise RoutesError(f"no port for {', '.join(sorted(unknown))}")
        if any(share < 0 for share in self.traffic.values()) or sum(self.traffic.values()) != 100:
            raise RoutesError(f"traffic {dict(self.traffic)} does not add up to 100")
        if any(not 0 <= share <= MAX_MIRRORED for share in self.mirror.values()) or (
            sum(self.mirror.values()) > 100
        ):
            raise RoutesError(f"mirror {dict(self.mirror)}: 0 to {MAX_MIRRORED} percent")

    @property
    def is_whole(self) -> bool:
        """Whether the live deployment gets all requests."""
        return self.traffic.get(self.live) == 100

    def twin(self, name: str) -> str | None:
        """Return the baseline of a canary's deployment, or the reverse; None for other names."""
        others = [deployment for deployment in self.ports if deployment not in (self.live, name)]
        is_compared = self.lease_s is not None and name != self.live and len(others) == 1
        return others[0] if is_compared else None

    def pick(self, key: str | None, draw: random.Random, leased: bool = True) -> str:
        """Return the deployment for a request, by its routing key, else at random.

        If the lease has expired (not `leased`), it is the live one.
        """
        if not leased:
            return self.live
        point = position(ticket(key, self.salt)) if key is not None else draw.random() * 100
        return choose(point, self.traffic, self.live)

    def pick_mirror(self, served_by: str, draw: random.Random) -> str | None:
        """Return a random deployment for a copy of a request to `served_by`; None for no copy.

        There is at most one copy: two would slow each other down.
        """
        name = choose(draw.random() * 100, self.mirror, served_by)
        return name if name != served_by else None


def read(path: Path) -> RouteTable:
    """Return the routes in a file; raise RoutesError if it is missing or invalid."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))["routes"]
        return RouteTable(
            live=str(document["live"]),
            ports={str(name): int(port) for name, port in document["ports"].items()},
            traffic={str(name): int(share) for name, share in document["traffic"].items()},
            mirror={str(name): int(share) for name, share in document["mirror"].items()},
            timeout_ms=int(document["timeout_ms"]),
            lease_s=document["lease_s"],
            experiment=str(document.get("experiment", "")),
            salt=str(document.get("salt", "")),
            collect={str(n): float(share) for n, share in document.get("collect", {}).items()},
            digests={str(n): str(digest) for n, digest in document.get("digests", {}).items()},
            pids={str(name): int(pid) for name, pid in document.get("pids", {}).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RoutesError(f"{path}: {error!r}") from None
