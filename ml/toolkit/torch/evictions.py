"""Notice that the node goes: SIGTERM, and Azure's Scheduled Events where they can be asked."""

from __future__ import annotations

import json
import math
import signal
import threading
import urllib.request
from types import FrameType
from typing import Any, Self

# Azure's Instance Metadata Service (learn.microsoft.com, virtual-machines/linux/scheduled-events):
# every machine of Azure has it at this address. Whether a job's container reaches it, nobody has
# tried here. A spot node is told of `Preempt` at least 30 s before.
SCHEDULED_EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
_LEAVES = {"Preempt", "Terminate", "Redeploy"}
_TRIES, _EVERY_S, _TIMEOUT_S = 3, 5.0, 2.0


class Evicted(SystemExit):
    """The node goes and the last checkpoint is written; the exit code is SIGTERM's, 143."""

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step


class Evictions:
    """Whether this process was told to leave; listens inside a `with`.

    SIGTERM means `leaving`: save and end. An event of Azure is `noticed`: it may be about another
    node of the cluster, and a job that ends before its node goes is not started again, so it means:
    save, and go on. `url` is asked every few seconds, and no more after it has failed three times
    at first, as on a machine that is not Azure's; None asks nothing.
    """

    def __init__(self, url: str | None = SCHEDULED_EVENTS, every_s: float = _EVERY_S) -> None:
        self.leaving = False
        self.noticed = ""  # what the events say; empty until there is one
        self._url, self._every_s = url, every_s
        self._stop = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._told)
        if self._url is not None:
            threading.Thread(target=self._ask, name="scheduled events", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.leaving = True

    def _ask(self) -> None:
        # The address is of this machine's own network: no proxy leads there.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(str(self._url), headers={"Metadata": "true"})
        tries: float = _TRIES
        while tries and not self._stop.is_set():
            try:
                with opener.open(request, timeout=_TIMEOUT_S) as answer:
                    events = json.load(answer)["Events"]
                kinds = {str(event["EventType"]) for event in events}
                tries = math.inf
                if leaving := kinds & _LEAVES:
                    self.noticed = ", ".join(sorted(leaving))
                    return
            except (OSError, ValueError, KeyError, TypeError):
                tries -= 1
            self._stop.wait(self._every_s)
