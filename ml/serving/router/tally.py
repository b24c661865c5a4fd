"""The router's statistics of each deployment: counters, a latency histogram, recent answers."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# Buckets of seconds grow by an eighth of an octave (9 %) from 50 microseconds to about 100 seconds.
FIRST_S = 50e-6
PER_OCTAVE = 8
BUCKETS = 168
# Limits on the recent answers that a canary's watcher can read; the oldest are dropped first.
MAX_ANSWERS = 4096
MAX_BYTES = 16 * 2**20
MAX_ANSWER = 64 * 2**10
# The router's own statuses: no answer, too many requests, too late.
NO_ANSWER, TOO_MANY, TOO_LATE = 502, 429, 408


def bucket(seconds: float) -> int:
    """The histogram bucket: `k` holds times below FIRST_S * 2 ** (k / PER_OCTAVE), the last the
    rest.
    """
    if not seconds > FIRST_S:
        return 0
    return min(1 + int(math.log2(seconds / FIRST_S) * PER_OCTAVE), BUCKETS - 1)


@dataclass
class Tally:
    """The counters of one deployment since it was added to the routes.

    `errors` are answers of 500 and more, and those of the router itself; `refused` are the
    deployment's own answers from 400 to 499. `mirrored` requests count in every figure.
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
        """Count one answer; `own` means that the deployment gave it, not the router."""
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
    """One recorded answer; `body` is None when it was longer than MAX_ANSWER."""

    number: int
    deployment: str
    status: int
    body: bytes | None


class Recent:
    """The latest answers of all deployments, numbered from 1, within a bound of memory."""

    def __init__(self) -> None:
        self._answers: deque[Answered] = deque()
        self._bytes = 0
        self.last = 0

    def add(self, deployment: str, status: int, body: bytes) -> None:
        """Record an answer, and drop the oldest beyond the bound."""
        self.last += 1
        short = body if len(body) <= MAX_ANSWER else None
        self._answers.append(Answered(self.last, deployment, status, short))
        self._bytes += len(short or b"")
        while len(self._answers) > MAX_ANSWERS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._answers.popleft().body or b"")

    def since(self, number: int) -> list[Answered]:
        """Those after `number`, the oldest first."""
        return [answer for answer in self._answers if answer.number > number]
