"""Traffic where there is none: the project's sample requests, drawn at random, one by one."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from ml.serving import ports

TIMEOUT_S = 30.0
_HEADERS = {"Content-Type": "application/json"}


class Replay:
    """Asks the router until the block ends; one caller, so that no request waits for another.

    What goes wrong is the router's to count: it names the deployment. `sent` is how many answers
    came, of whatever kind.
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
        """Ask, or be silent while real traffic is enough."""
        if going:
            self._going.set()
        else:
            self._going.clear()

    @property
    def going(self) -> bool:
        """Whether it asks now."""
        return self._going.is_set()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(ports.HOST, self._port, timeout=TIMEOUT_S)
        while self._going.wait() and not self._stop.is_set():
            try:
                connection.request("POST", "/score", self._draw.choice(self._bodies), _HEADERS)
                connection.getresponse().read()
                self.sent += 1
            except (OSError, http.client.HTTPException):
                connection.close()
                self._stop.wait(0.05)  # the router is gone: whoever leads the canary finds out
        connection.close()
