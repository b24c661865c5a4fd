"""Replay: the project's sample requests, drawn at random, where real traffic is too little."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from ml.serving import processes

TIMEOUT_S = 30.0
# The rate of real requests is measured over at least this long.
NOTICE_S = 0.3
# Real traffic is enough from this rate on; below it the replay adds requests.
ENOUGH_PER_S = 20.0
_HEADERS = {"Content-Type": "application/json"}


class Replay:
    """Sends requests to the router until the block ends; one at a time, so that none waits.

    The router counts the errors, by deployment. `sent` counts the answers of any kind.
    """

    def __init__(self, port: int, samples: Sequence[Mapping[str, object]], seed: int = 0) -> None:
        self.sent = 0
        self._port = port
        self._bodies = [json.dumps(sample) for sample in samples]
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._going = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Replay:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._going.set()
        self._thread.join(TIMEOUT_S + 1)

    def go(self, going: bool) -> None:
        """Send requests, or pause while real traffic is enough."""
        if going:
            self._going.set()
        else:
            self._going.clear()

    @property
    def going(self) -> bool:
        """Whether it sends requests now."""
        return self._going.is_set()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(processes.HOST, self._port, timeout=TIMEOUT_S)
        while self._going.wait() and not self._stop.is_set():
            try:
                connection.request("POST", "/score", self._draw.choice(self._bodies), _HEADERS)
                connection.getresponse().read()
                self.sent += 1
            except (OSError, http.client.HTTPException):
                connection.close()
                self._stop.wait(0.05)  # the router is gone; the canary reports it
        connection.close()


class Traffic:
    """Runs the replay while green would wait too long for real requests.

    There may be too few, or too few may reach green: callers may name their deployment, or a few
    callers may each use one routing key.
    """

    def __init__(self, replay: Replay, green: str, tallies: Mapping[str, Any]) -> None:
        self._replay, self._green = replay, green
        self._marked = time.monotonic(), tallies, replay.sent
        self.begin(tallies, 0)

    def begin(self, tallies: Mapping[str, Any], percent: int) -> None:
        """From now on green should get `percent` % of the requests, or as many copies."""
        self._since, self._percent = tallies, percent

    def look(self, tallies: Mapping[str, Any]) -> None:
        """Run or pause the replay by the router's current tallies."""
        (then, before, sent), moment = self._marked, time.monotonic()
        if moment - then < NOTICE_S:
            return
        real = _requests(before, tallies) - (self._replay.sent - sent)
        # One sent request may not be counted yet.
        few = (real - 1) / (moment - then) < ENOUGH_PER_S
        self._replay.go(few or self._starves(tallies))
        self._marked = moment, tallies, self._replay.sent

    def _starves(self, tallies: Mapping[str, Any]) -> bool:
        """Whether green got less than a third of its share of this step, beyond chance."""
        due = _requests(self._since, tallies) * self._percent / 100
        had = tallies[self._green]["requests"] - self._since[self._green]["requests"]
        return bool(had + 5 < due / 3)


def _requests(before: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Requests of callers and of the replay, without mirrored copies."""
    counted = {
        name: tally["requests"]
        - tally["mirrored"]
        - before[name]["requests"]
        + before[name]["mirrored"]
        for name, tally in now.items()
    }
    return sum(counted.values())
