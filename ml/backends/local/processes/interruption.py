"""Ctrl-C and SIGTERM as something to look at between two steps, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Collects the signals that ask this process to end, from entering to leaving the context.

    `name` is the first signal's ("SIGINT"), "" while there was none; `impatient` whether a second
    one followed. Outside of the main thread Python hands out no signals: nothing is collected.
    """

    def __init__(self) -> None:
        self.name = ""
        self.impatient = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.impatient = bool(self.name)
        self.name = self.name or signal.Signals(number).name
