"""What a command prints: foreign text cannot control the terminal.

An answer of a model, a log or a name in a registry may hold escape sequences, which move the
cursor, rename the window or hide text. Everything that is printed goes through `shown`. It spells
out control characters (`\\x1b`) and formats that are not visible, such as marks of direction. In a
workflow, GitHub's runner reads the output too: nothing that is printed is a command to it.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# What makes a line a command of GitHub's runner: `::` at its start, `##[` anywhere
# (actions/runner, src/Runner.Common/ActionCommand.cs). The last character is spelt out, as JSON
# spells it.
_COMMAND = re.compile(r"(?m)^([ \t]*:):|(##)\[")


def _spelt(match: re.Match[str]) -> str:
    return f"{match[1]}\\u003a" if match[1] else f"{match[2]}\\u005b"


def printable(text: str) -> str:
    """One line of text with its control characters and line ends spelt out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def readable(text: str) -> str:
    """Lines of text with other control characters spelt out; a return ends a line as well."""
    if text.isprintable():
        return text
    lines = re.sub(r"\r+\n?", "\n", text)
    return "".join(char if char in "\n\t" else printable(char) for char in lines)


class Shown(io.TextIOBase):
    """A stream that writes to `raw` what is readable."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self._in_workflow = os.environ.get("GITHUB_ACTIONS") == "true"
        # The end of an unfinished line: the next text may make a command of it.
        self._line = ""

    def write(self, text: str) -> int:
        """Write it, readable; the length of what was given."""
        lines = readable(text)
        if self._in_workflow:
            whole = _COMMAND.sub(_spelt, self._line + lines)
            lines = whole[len(self._line) :]
            line = whole.rpartition("\n")[2].lstrip(" \t")
            self._line = line if len(line) <= 2 else f"x{line[-2:]}"
        self.raw.write(lines)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.raw.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.raw.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self.raw.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's."""
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The stream's."""
        return self.raw.errors


def unfiltered(stream: TextIO) -> TextIO:
    """The stream below, for a renderer with colours of its own."""
    return stream.raw if isinstance(stream, Shown) else stream


@contextmanager
def shown() -> Iterator[None]:
    """Everything that is printed to stdout and stderr meanwhile is readable."""
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
