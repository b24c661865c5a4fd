"""Detect that the node is preempted: by SIGTERM, and by Azure's Scheduled Events if it has them."""

from __future__ import annotations

import json
import math
import signal
import threading
import urllib.request
from types import FrameType
from typing import Any, Self

# Azure's Instance Metadata Service (learn.microsoft.com, virtual-machines/linux/scheduled-events):
# every machine of Azure has it at this address. Whether a job's container reaches it was never
# tested. It announces `Preempt` of a spot node at least 30 s before.
SCHEDULED_EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
_SHUTDOWN_EVENTS = {"Preempt", "Terminate", "Redeploy"}
_TRIES, _EVERY_S, _TIMEOUT_S = 3, 5.0, 2.0


class Preempted(SystemExit):
    """The node is preempted and the last checkpoint is written; the exit code is SIGTERM's, 143."""

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step


class PreemptionMonitor:
    """Records preemption signals to this process, inside a `with`.

    SIGTERM sets `shutting_down`: save and end. A scheduled event of Azure sets `noticed`: it may be
    about another node of the cluster, and a job that ends before its node goes is not started
    again, so it means: save, and go on. `url` is polled every few seconds. Polling stops if the
    first three requests fail, as on a machine outside Azure; with None there is no polling.
    """

    def __init__(self, url: str | None = SCHEDULED_EVENTS, every_s: float = _EVERY_S) -> None:
        self.shutting_down = False
        self.noticed = ""  # what the events say; empty until there is one
        self._url, self._every_s = url, every_s
        self._stop = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._url is not None:
            threading.Thread(target=self._poll, name="scheduled events", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.shutting_down = True

    def _poll(self) -> None:
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
                if announced := kinds & _SHUTDOWN_EVENTS:
                    self.noticed = ", ".join(sorted(announced))
                    return
            except (OSError, ValueError, KeyError, TypeError):
                tries -= 1
            self._stop.wait(self._every_s)
