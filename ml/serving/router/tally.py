"""What the router remembers of each deployment: counters, a latency histogram, recent answers."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# Buckets of seconds grow by an eighth of an octave (9 %) from 50 microseconds to about 100 seconds.
FIRST_S = 50e-6
PER_OCTAVE = 8
BUCKETS = 168
# Recent answers are kept for whoever watches a canary, the oldest dropped first.
KEPT_ANSWERS = 4096
KEPT_BYTES = 16 * 2**20
LONGEST_ANSWER = 64 * 2**10
# What the router says in a deployment's place: no answer, too many at once, too late.
NO_ANSWER, TOO_MANY, TOO_LATE = 502, 429, 408


def bucket(seconds: float) -> int:
    """The histogram bucket: `k` holds times below FIRST_S * 2 ** (k / PER_OCTAVE), the last all."""
    if not seconds > FIRST_S:
        return 0
    return min(1 + int(math.log2(seconds / FIRST_S) * PER_OCTAVE), BUCKETS - 1)


@dataclass
class Tally:
    """One deployment since the router first heard of it.

    `errors` are answers of 500 and more, and those that the router had to give itself; `refused`
    are the deployment's own answers from 400 to 499. `mirrored` requests are in every figure.
    """

    requests: int = 0
    errors: int = 0
    refused: int = 0
    mirrored: int = 0
    in_flight: int = 0
    seconds: float = 0.0
    statuses: dict[int, int] = field(default_factory=dict)
    latency: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, status: int, seconds: float, own: bool) -> None:
        """Count one answer; `own` says that the deployment gave it, not the router."""
        self.requests += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500 or not own:
            self.errors += 1
        elif status >= 400:
            self.refused += 1
        self.seconds += seconds
        self.latency[bucket(seconds)] += 1


@dataclass(frozen=True, slots=True)
class Answered:
    """One recorded answer; `body` is None when it was longer than LONGEST_ANSWER."""

    number: int
    deployment: str
    status: int
    body: bytes | None


class Recent:
    """The latest answers of all deployments, numbered from 1, within a bound of memory."""

    def __init__(self) -> None:
        self._kept: deque[Answered] = deque()
        self._bytes = 0
        self._number = 0

    def add(self, deployment: str, status: int, body: bytes) -> None:
        """Remember an answer, and forget the oldest beyond the bound."""
        self._number += 1
        short = body if len(body) <= LONGEST_ANSWER else None
        self._kept.append(Answered(self._number, deployment, status, short))
        self._bytes += len(short or b"")
        while len(self._kept) > KEPT_ANSWERS or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().body or b"")

    def since(self, number: int) -> list[Answered]:
        """Those after `number`, the oldest first."""
        return [one for one in self._kept if one.number > number]

    @property
    def last(self) -> int:
        """The number of the latest."""
        return self._number
