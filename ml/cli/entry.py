"""The entry point of `ml`: from its first instruction on, Ctrl-C ends it with one line.

Only the console script that the installer makes may import it: the import replaces the handler
of SIGINT.
"""

from __future__ import annotations

import io
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit at once on a signal during the imports, when there is nothing to clean up.

    An exception would not do: some of Python's callbacks swallow it in the middle of an import, and
    others print a traceback.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


# Processes that a shell starts in the background ignore SIGINT, and keep ignoring it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def main() -> None:
    """Run the command line; Ctrl-C raises KeyboardInterrupt once the imports are done."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without `→` has a `?`
    from ml.cli import app

    app.main(begin=_listen)


def _listen() -> None:
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
