"""Print text so that foreign content cannot control the terminal.

A model's response, a log or a name in a registry may contain escape sequences, which move the
cursor, rename the window or hide text. All output passes through `shown`, which escapes control
characters (`\x1b`) and invisible characters such as direction marks. In a workflow GitHub's runner
also reads the output, so `shown` also escapes workflow commands.
"""

from __future__ import annotations

import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# GitHub's runner reads a line as a command if it starts with `::` or contains `##[`
# (actions/runner, src/Runner.Common/ActionCommand.cs). The last character is escaped as in JSON.
_COMMAND = re.compile(r"(?m)^([ \t]*:):|(##)\[")

# Invisible characters: fillers, joiners, variation selectors (but that of emoji), and the Braille
# pattern without dots. Python accepts some of them in identifiers.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e01ef]"
)
# Maximum of combining marks on one letter: more of them cover the lines above and below.
_MOST_MARKS = 4


def _spelt(match: re.Match[str]) -> str:
    return f"{match[1]}\\u003a" if match[1] else f"{match[2]}\\u005b"


def printable(text: str) -> str:
    """Return a text as one line, with control, invisible and overprinting characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    line, marks = "", 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
        is_plain = char.isprintable() and not INVISIBLE.match(char) and marks <= _MOST_MARKS
        line += char if is_plain else ascii(char)[1:-1]
    return line


def readable(text: str) -> str:
    """Escape control and invisible characters but tabs and newlines; a return becomes a newline."""
    if text.isprintable():
        return text
    lines = re.sub(r"\r+\n?", "\n", text)
    return "".join(char if char in "\n\t" else printable(char) for char in lines)


class Shown(io.TextIOBase):
    """A text stream that passes everything through `readable` before it writes to `raw`."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self._in_workflow = os.environ.get("GITHUB_ACTIONS") == "true"
        # The end of an unfinished line: together with the next text it may form a command.
        self._line = ""

    def write(self, text: str) -> int:
        """Write the text through `readable`; return the length of the original text."""
        lines = readable(text)
        if self._in_workflow:
            escaped = _COMMAND.sub(_spelt, self._line + lines)
            lines = escaped[len(self._line) :]
            line = escaped.rpartition("\n")[2].lstrip(" \t")
            self._line = line if len(line) <= 2 else f"x{line[-2:]}"
        self.raw.write(lines)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.raw.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.raw.isatty()

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self.raw.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of `raw`."""
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The encoding error handler of `raw`."""
        return self.raw.errors


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream that a `Shown` wraps, for a renderer that writes its own colours."""
    return stream.raw if isinstance(stream, Shown) else stream


@contextmanager
def shown() -> Iterator[None]:
    """Replace stdout and stderr by `Shown` streams inside the block."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        stream if isinstance(stream, Shown) else Shown(stream) for stream in streams
    )
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = streams
