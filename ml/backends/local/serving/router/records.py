"""Record routing keys in memory, and requests with their responses in files."""

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

# Statuses of the router's own errors: no response, timeout; too many requests, too many bytes.
NO_ANSWER, TOO_LATE = 502, 408
TOO_MANY, TOO_FULL = 429, 503

# Folders of the collector's payloads and of an experiment's routing keys.
FOLDER, EXPOSED = "collected", "exposed"
MAX_FILE = 8 * 2**20
MAX_FILES = 8
FLUSH_S = 0.25
# Limit of tickets remembered as written; a forgotten one is written again, which is harmless.
MAX_KEYS = 200_000
# Bits of `Keys`: 8 MB.
KEY_BITS = 2**26
_NAME = re.compile(r"\d{8}\.jsonl")


class Keys:
    """The set of a canary's routing keys, as a bitmap indexed by ticket.

    A repeated key is never new. A new key rarely collides, whatever clients send, since the salt is
    secret: 15 in a thousand after a million keys.
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
    """Writes requests and responses to files in `folder`, for `ml watch` and `ml ab`.

    A deployment's `data_collector` enables it, as on a managed endpoint:
    learn.microsoft.com/azure/machine-learning/concept-data-collection. Bodies may contain names and
    secrets; headers are not recorded. Only the owner may read the files; above MAX_FILES the oldest
    is removed. Lines that cannot be written are counted as `lost`, and requests still get a
    response. SIGKILL loses the lines of the last FLUSH_S seconds.
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
        """Buffer a request and its response; they are written within FLUSH_S seconds."""
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
        """Write a ticket's deployment (`arm`) to the experiment's file, once per ticket."""
        if ticket in self._exposed:
            return
        line = {"at": time.time(), "event": "assigned", "id": ticket, "arm": arm}
        path = self._folder.parent / EXPOSED / f"{experiment}.jsonl"
        if self._write(lambda: path, orjson.dumps(line) + b"\n"):
            if len(self._exposed) >= MAX_KEYS:
                self._exposed.clear()
            self._exposed.add(ticket)

    def _file(self) -> Path:
        """Return the file to append to; remove the oldest files."""
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
    """Parse a body as JSON; return None if it is not JSON or longer than MAX_BODY."""
    if not isinstance(content, bytes) or not content or len(content) > MAX_BODY:
        return None
    try:
        return orjson.loads(content)
    except ValueError:
        return None
