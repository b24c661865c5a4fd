"""A caller's connection without the event loop between, as long as it is the only one.

An event loop asks the kernel which sockets have something, reads, and writes at the end of its
round: for a small model that is as long as the model takes. One caller's socket is asked itself.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import perf_counter
from typing import Any

from ml.serving.router.front import Front, Handler

# Whoever else wants something, a new caller or a signal, waits no longer.
ALONE_S = 0.0005
_LARGEST_READ = 64 * 2**10


class Direct(Front):
    """Answers at once, then looks whether the caller has asked again, for up to `spin_s`."""

    def __init__(
        self,
        handler: Handler,
        open_now: set[Front],
        clock: asyncio.AbstractEventLoop,
        spin_s: float,
    ) -> None:
        super().__init__(handler, open_now, clock)
        self._spin_s = spin_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: somebody connected."""
        self._file = transport.get_extra_info("socket").fileno()
        super().connection_made(_Unbuffered(transport, self._file))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes; and those that follow soon."""
        super().data_received(data)
        now = perf_counter()
        until = now + self._spin_s
        end = now + ALONE_S
        while now < until and now < end and self.idle and len(self._open) == 1:
            try:
                data = os.read(self._file, _LARGEST_READ)
            except BlockingIOError:
                now = perf_counter()
                continue
            except OSError:
                return
            if not data:
                return  # the loop reads the end again
            super().data_received(data)
            now = perf_counter()
            until = now + self._spin_s


class _Unbuffered:
    """A transport that writes at once where nothing waits to be written."""

    def __init__(self, transport: Any, file: int) -> None:
        self._transport, self._file = transport, file
        self.is_closing = transport.is_closing
        self.close = transport.close
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        """All of it, now or as soon as the caller reads."""
        if not self._transport.get_write_buffer_size():
            with suppress(OSError):  # full, or nobody listens: the transport finds out
                data = data[os.write(self._file, data) :]
        if data:
            self._transport.write(data)
