"""Split requests between the deployments of an endpoint, and count the responses.

The split follows managed online endpoints:
learn.microsoft.com/azure/machine-learning/how-to-safely-rollout-online-endpoints.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal

# The header of managed online endpoints that selects a deployment, whatever its weight.
DEPLOYMENT_HEADER = "azureml-model-deployment"
# Requests with the same key go to the same deployment until its weight decreases.
KEY_HEADER = "x-routing-key"
# Azure ML's inference server returns the client's request id in it, or generates one.
REQUEST_ID = "x-request-id"
# Managed online endpoints mirror at most half of the traffic.
MAX_MIRRORED = 50
TIMEOUT_MS = 5000  # the default of a managed deployment without `request_settings`
# Histogram buckets of response times: each is 9 % (2 ** (1 / 8)) wider, from 50 µs to 100 s.
FIRST_S = 50e-6
PER_OCTAVE = 8
BUCKETS = 168
# Limits of the recent responses per request kind; the oldest are dropped first.
MAX_ANSWERS = 4096
MAX_BYTES = 8 * 2**20
# A longer body is recorded as null.
MAX_BODY = 64 * 2**10


def ticket(key: str, salt: str = "") -> str:
    """Return the ticket of a routing key: its hash with the salt, 16 hex digits.

    It is keyed BLAKE2 (RFC 7693) with the first 64 bytes of the salt: nobody can match a ticket to
    a key without the salt.
    """
    content, secret = (text.encode("utf-8", "surrogateescape") for text in (key, salt))
    return hashlib.blake2b(content, digest_size=8, key=secret[:64]).hexdigest()


def position(ticket: str) -> float:
    """Return a ticket's position from 0 to 100, uniformly distributed."""
    return int(ticket, 16) / 2**64 * 100


def choose(point: float, shares: Mapping[str, int], fallback: str) -> str:
    """Return the name at `point` (0 to 100) of the cumulative shares; `fallback` beyond them."""
    for name, share in shares.items():
        if point < share:
            return name
        point -= share
    return fallback


def bucket(seconds: float) -> int:
    """Return the histogram bucket: `k` holds times below FIRST_S * 2 ** (k / PER_OCTAVE).

    The last bucket holds all longer times.
    """
    if not seconds > FIRST_S:
        return 0
    return min(1 + int(math.log2(seconds / FIRST_S) * PER_OCTAVE), BUCKETS - 1)


RequestKind = Literal["client", "sample", "excluded"]
# A client's request that the router assigned at random. It can only end a canary.
CLIENT: Final = "client"
# A sample request of the project, sent by the release; clients cannot forge it. Samples decide
# whether a canary continues.
SAMPLE: Final = "sample"
# The client chose the deployment by header or by a repeated routing key, or the router was too busy
# to forward the request. A canary ignores it.
EXCLUDED: Final = "excluded"
# The kinds that a canary compares.
REQUEST_KINDS: tuple[RequestKind, ...] = (SAMPLE, CLIENT)


@dataclass
class Tally:
    """Counts and response times of requests."""

    requests: int = 0
    errors: int = 0  # with a status of 500 or more, or from the router itself
    refused: int = 0  # from the deployment, with a status from 400 to 499
    mirrored: int = 0  # every other field counts these requests too
    seconds: float = 0.0  # sum of the response times
    statuses: dict[int, int] = field(default_factory=dict)
    # Histogram of response times; see `bucket`.
    latency: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, status: int, seconds: float, by_deployment: bool) -> None:
        """Count one response; `by_deployment` is False if the router responded with an error."""
        self.requests += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500 or not by_deployment:
            self.errors += 1
        elif status >= 400:
            self.refused += 1
        self.seconds += seconds
        self.latency[bucket(seconds)] += 1


@dataclass
class Counters:
    """The counters of one deployment since it was added to the routes, by kind of request."""

    client: Tally = field(default_factory=Tally)
    sample: Tally = field(default_factory=Tally)
    excluded: Tally = field(default_factory=Tally)

    def tally(self, kind: RequestKind) -> Tally:
        """Return the tally of that kind of request."""
        tally: Tally = getattr(self, kind)
        return tally


@dataclass(frozen=True, slots=True)
class Answered:
    """One recorded response of a deployment."""

    number: int
    deployment: str
    kind: RequestKind
    status: int
    body: bytes | None  # None if it was longer than MAX_BODY

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, with the body as text."""
        text = None if self.body is None else self.body.decode("utf-8", "replace")
        return {**asdict(self), "body": text}


class Recent:
    """The latest responses that a canary judges, numbered from 1, within a memory limit.

    The limit applies to each kind, so that clients cannot displace the samples.
    """

    def __init__(self) -> None:
        self._answers: dict[RequestKind, deque[Answered]] = {CLIENT: deque(), SAMPLE: deque()}
        self._bytes: dict[RequestKind, int] = {CLIENT: 0, SAMPLE: 0}
        self.last = 0

    def add(self, deployment: str, kind: RequestKind, status: int, body: bytes) -> None:
        """Record a response, and drop the oldest of its kind above the limits."""
        self.last += 1
        short = body if len(body) <= MAX_BODY else None
        answers = self._answers[kind]
        answers.append(Answered(self.last, deployment, kind, status, short))
        self._bytes[kind] += len(short or b"")
        while len(answers) > MAX_ANSWERS or self._bytes[kind] > MAX_BYTES:
            self._bytes[kind] -= len(answers.popleft().body or b"")

    def since(self, number: int) -> list[Answered]:
        """Return the responses numbered above `number`, the oldest first."""
        answers = chain.from_iterable(self._answers.values())
        return sorted(
            (answer for answer in answers if answer.number > number), key=attrgetter("number")
        )
