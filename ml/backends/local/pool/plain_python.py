"""Commands that are one start of Python and nothing else: `python [-u] train.py …`, `python -m …`.

Only these can be started without a shell and without a fresh interpreter; `read` says why another
cannot. It knows bash well enough to see what bash would leave as it is, and gives up on the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# What bash leaves as it is outside of quotes, at any place of a word.
_BARE = re.compile(r"[\w@%+:,./\-=^]+", re.ASCII)
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"([^"$`\\!]*)"')
_SPACE = re.compile(r"(?:[ \t]|\\\n)+")
# Flags that may stand before the script, and hold for every process that is started with them.
_FLAGS = frozenset({"-u", "-B", "-O", "-OO", "-s", "-q"})


@dataclass(frozen=True)
class Invocation:
    """`program flags script arguments`, or `program flags -m module arguments`."""

    program: str
    flags: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


def read(command: str) -> Invocation | str:
    """What the command starts, or why it takes a shell or a Python of its own."""
    words = _words(command.strip())
    if words is None:
        return "the command needs a shell"
    program, *rest = words or [""]
    if not _PYTHON.fullmatch(program):
        return "the command does not start with `python`"
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "-W" and len(rest) > 1:
            flags += [rest.pop(0), rest.pop(0)]
        elif rest[0] in _FLAGS:
            flags.append(rest.pop(0))
        else:
            return f"`python {rest[0]}` is started by itself"
    is_module = rest[:1] == ["-m"]
    if is_module:
        del rest[0]
    if not rest:
        return "the command names no script"
    target, *arguments = rest
    if not is_module and not target.endswith(".py"):
        return f"`{target}` is not a .py file"
    return Invocation(program, tuple(flags), target, is_module, tuple(arguments))


def _words(command: str) -> list[str] | None:
    """The words as bash would pass them; None when it would do more than split and unquote."""
    words: list[str] = []
    at, open_word = 0, False
    while at < len(command):
        if space := _SPACE.match(command, at):
            at, open_word = space.end(), False
            continue
        for pattern in (_BARE, _SINGLE, _DOUBLE):
            if found := pattern.match(command, at):
                break
        else:
            return None
        text = found.group(found.lastindex or 0)
        if open_word:
            words[-1] += text
        else:
            words.append(text)
        at, open_word = found.end(), True
    if words and "=" in words[0]:
        return None  # an assignment, not a program
    return words
