"""What an endpoint was asked and answered, written down for whoever watches it; off by default.

`data_collector` of a deployment turns it on, as for a managed endpoint, whose collector keeps the
payloads too: learn.microsoft.com/azure/machine-learning/concept-data-collection. Kept are the time,
the deployment and the digest of its model, the id of the request, its status, and both bodies where
they are JSON: all that a caller sent, names and secrets in it included, and nothing of the headers.
The files are their owner's alone, and the oldest go once there are KEPT_FILES.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from ml.core import files

FOLDER, EXPOSED = "collected", "exposed"
# What Azure ML's inference server calls a request in its answer: the caller's name for it, or one
# that it made up.
REQUEST_ID = "x-request-id"
LARGEST_FILE = 8 * 2**20
KEPT_FILES = 8
# A longer body is left out, and its line says so.
LONGEST_BODY = 64 * 2**10
FLUSH_S = 0.25
# Keys that are remembered as written; more are written a second time, which does no harm.
MOST_KEYS = 200_000
_NAME = re.compile(r"\d{8}\.jsonl")


def numbered(folder: Path) -> list[Path]:
    """The files of the folder, the oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.name))


class Collector:
    """Lines on their way to files of `folder`; the only writer there.

    What cannot be written is counted as lost, and requests are answered as ever. A kill loses what
    came within the last FLUSH_S.
    """

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.written = self.lost = 0
        self.problem = ""
        self._folder = folder
        self._loop = loop
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._exposed: set[str] = set()

    def add(
        self,
        deployment: str,
        digest: str,
        request: bytes,
        status: int,
        headers: Mapping[str, str],
        answer: Any,
    ) -> None:
        """Record a request and its answer, with the id that the answer's headers give it."""
        line = {
            "at": time.time(),
            "deployment": deployment,
            "digest": digest,
            "id": headers.get(REQUEST_ID, ""),
            "status": status,
            "request": _body(request),
            "answer": _body(answer),
        }
        self._waiting.append(orjson.dumps(line))
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._waiting = self._waiting, []
        if lines and self._write(self._file, b"\n".join(lines) + b"\n"):
            self.written += len(lines)
        else:
            self.lost += len(lines)

    def expose(self, experiment: str, ticket: str, arm: str) -> None:
        """Write at once, once a key, that whoever has the ticket was sent to that deployment."""
        if ticket in self._exposed:
            return
        line = {"at": time.time(), "event": "assigned", "id": ticket, "arm": arm}
        if self._write(
            lambda: self._folder.parent / EXPOSED / f"{experiment}.jsonl",
            orjson.dumps(line) + b"\n",
        ):
            if len(self._exposed) >= MOST_KEYS:
                self._exposed.clear()
            self._exposed.add(ticket)

    def _file(self) -> Path:
        """The file that has room; too many make the oldest go."""
        found = numbered(self._folder)
        if not found or found[-1].stat().st_size >= LARGEST_FILE:
            number = int(found[-1].stem) + 1 if found else 1
            found.append(self._folder / f"{number:08}.jsonl")
        for old in found[:-KEPT_FILES]:
            old.unlink(missing_ok=True)
        return found[-1]

    def _write(self, where: Callable[[], Path], content: bytes) -> bool:
        try:
            files.append(where(), content)
        except OSError as error:
            self.problem = f"{error.strerror or error}"
            return False
        self.problem = ""
        return True


def _body(content: bytes) -> Any:
    """The JSON in a body; None where there is none or too much."""
    if not content or len(content) > LONGEST_BODY:
        return None
    try:
        return orjson.loads(content)
    except ValueError:
        return None
