"""What the router records: counters and recent answers in memory, payloads in files."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from ml.backends.traffic import MAX_BODY
from ml.core import files

# The router's own statuses: no answer, too late; too many requests, too many bytes.
NO_ANSWER, TOO_LATE = 502, 408
TOO_MANY, TOO_FULL = 429, 503

# Folders of the collector's payloads and of an experiment's routing keys.
FOLDER, EXPOSED = "collected", "exposed"
MAX_FILE = 8 * 2**20
MAX_FILES = 8
FLUSH_S = 0.25
# Keys that are remembered as written. One that was forgotten is written again, which is harmless.
MAX_KEYS = 200_000
# Bits of `Keys`: 8 MB.
KEY_BITS = 2**26
_NAME = re.compile(r"\d{8}\.jsonl")


class Keys:
    """The routing keys of a canary: one bit each, at a position derived from its secret.

    No key ever counts as new twice. A new key rarely collides with another, whatever clients send:
    15 in a thousand after a million keys.
    """

    def __init__(self) -> None:
        self._bits = bytearray(KEY_BITS // 8)

    def add(self, ticket: str) -> bool:
        """Record the key with this ticket; return whether it is new."""
        index, bit = divmod(int(ticket, 16) % KEY_BITS, 8)
        is_new = not self._bits[index] >> bit & 1
        self._bits[index] |= 1 << bit
        return is_new


def numbered(folder: Path) -> list[Path]:
    """Return the files of the folder, the oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.name))


class Collector:
    """Writes requests and answers to files of `folder`, for `ml watch` and `ml ab`; off by default.

    A deployment's `data_collector` turns it on, as on a managed endpoint, whose collector records
    the payloads too: learn.microsoft.com/azure/machine-learning/concept-data-collection. The bodies
    hold all that a client sent, names and secrets included; headers are not recorded. Only the
    owner may read the files; the oldest is removed once there are MAX_FILES. Lines that cannot be
    written are counted as `lost`, and the requests are still answered. A kill loses the lines of
    the last FLUSH_S.
    """

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.written = self.lost = 0
        self.problem = ""
        self._folder = folder
        self._loop = loop
        self._buffer: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._exposed: set[str] = set()

    def add(
        self,
        deployment: str,
        digest: str,
        request: bytes,
        status: int,
        answer: object,
        request_id: str = "",
    ) -> None:
        """Record a request and its answer."""
        line = {
            "at": time.time(),
            "deployment": deployment,
            "digest": digest,
            "id": request_id,
            "status": status,
            "request": _json(request),
            "answer": _json(answer),
        }
        self._buffer.append(orjson.dumps(line))
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the buffered lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._buffer = self._buffer, []
        if lines and self._write(self._file, b"\n".join(lines) + b"\n"):
            self.written += len(lines)
        else:
            self.lost += len(lines)

    def expose(self, experiment: str, ticket: str, arm: str) -> None:
        """Write at once, and once per ticket, which deployment it was sent to."""
        if ticket in self._exposed:
            return
        line = {"at": time.time(), "event": "assigned", "id": ticket, "arm": arm}
        path = self._folder.parent / EXPOSED / f"{experiment}.jsonl"
        if self._write(lambda: path, orjson.dumps(line) + b"\n"):
            if len(self._exposed) >= MAX_KEYS:
                self._exposed.clear()
            self._exposed.add(ticket)

    def _file(self) -> Path:
        """Return the file to append to; removes the oldest files."""
        paths = numbered(self._folder)
        if not paths or paths[-1].stat().st_size >= MAX_FILE:
            number = int(paths[-1].stem) + 1 if paths else 1
            paths.append(self._folder / f"{number:08}.jsonl")
        for old in paths[:-MAX_FILES]:
            old.unlink(missing_ok=True)
        return paths[-1]

    def _write(self, choose: Callable[[], Path], content: bytes) -> bool:
        try:
            files.append(choose(), content)
        except OSError as error:
            self.problem = f"{error.strerror or error}"
            return False
        self.problem = ""
        return True


def _json(content: object) -> Any:
    """Return the JSON in a body; None for a body that is not JSON or too long."""
    if not isinstance(content, bytes) or not content or len(content) > MAX_BODY:
        return None
    try:
        return orjson.loads(content)
    except ValueError:
        return None
