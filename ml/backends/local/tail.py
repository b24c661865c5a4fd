"""A log shown while it is written."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TextIO


class Tail:
    """Copies what a log has gained since the last `pump` to `sink`; does nothing without one."""

    def __init__(self, log: Path, sink: TextIO | None) -> None:
        self._log = log
        self._sink = sink
        self._at = 0
        # A character may be written in two halves.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def pump(self) -> None:
        """Copy the new bytes."""
        if self._sink is None or not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._at)
            gained = file.read()
        self._at += len(gained)
        if gained:
            self._sink.write(self._decoder.decode(gained))
            self._sink.flush()
