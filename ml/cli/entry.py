"""The entry point of `ml`: from the first instruction on, Ctrl-C exits without a traceback.

Only the installed console script may import it, since the import replaces the handler of SIGINT.
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
    """Exit at once on SIGINT during the imports, when there is nothing to clean up.

    An exception does not work: during an import, some of Python's callbacks swallow it, and others
    print a traceback.
    """
    os.write(2, b"interrupted\n")
    os._exit(130)


# Keep SIGINT ignored, as in a background process of a shell.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)


def main() -> None:
    """Run the command line; after the imports, Ctrl-C raises KeyboardInterrupt again."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print `?` for `→` on an ASCII terminal
    from ml.cli import app

    app.main(begin=_listen)


def _listen() -> None:
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
