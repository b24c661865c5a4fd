"""Detect preemption of the node by SIGTERM and by Azure's Scheduled Events."""

from __future__ import annotations

import json
import math
import signal
import threading
import urllib.request
from types import FrameType
from typing import Any, Self

# The Instance Metadata Service of every Azure VM (learn.microsoft.com,
# virtual-machines/linux/scheduled-events). It announces the preemption of a spot node at least 30 s
# ahead. Whether a job's container can reach it is untested.
SCHEDULED_EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
_SHUTDOWN_EVENTS = {"Preempt", "Terminate", "Redeploy"}
_TRIES, _EVERY_S, _TIMEOUT_S = 3, 5.0, 2.0


class Preempted(SystemExit):
    """Exits with code 143 (SIGTERM) after the last checkpoint before a preemption is written."""

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step


class PreemptionMonitor:
    """Context manager that records preemption signals to this process.

    SIGTERM sets `shutting_down`: save a checkpoint and exit. A scheduled event sets `noticed`: save
    a checkpoint and continue. The event may concern another node, and a job that ends before its
    node is preempted is not restarted. `url` is polled every `every_s` seconds; None disables
    polling. Polling stops if the first three requests fail, as outside Azure.
    """

    def __init__(self, url: str | None = SCHEDULED_EVENTS, every_s: float = _EVERY_S) -> None:
        self.shutting_down = False
        self.noticed = ""  # types of the scheduled events, such as "Preempt"; "" without any
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
        # The address is link-local, so bypass proxies.
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
