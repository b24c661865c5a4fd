"""How a shell quotes each place of a command: enough of bash's rules to be on the safe side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Quoting = Literal["none", "single", "double", "code"]

# Text before a quote after which its content is code or is read with backslashes:
# `bash -c '`, `python -c '`, `perl -e '`, `eval '`, `trap '`, `ssh host '`, `$'`.
_CODE_FOLLOWS = re.compile(
    r"(\s-[A-Za-z]*[ceE]\s*|\s--(eval|command|exec)[\s=]\s*|\beval\s+|\btrap\s+|\bssh\s[^;|&]*|\$)$"
)


def quoting_at(command: str, spans: Sequence[tuple[int, int]]) -> list[Quoting]:
    """The quoting in force at each of `spans` (placeholders, in order, read as plain words).

    "code" is where no quoting protects: in an argument that a program runs as code, in a comment,
    after a here-document begins, in `$'…'`. Where in doubt (`$(…)` in double quotes) the weaker.
    """
    states: dict[int, Quoting] = {}
    ends = dict(spans)
    heredoc = re.search(r"<<(?!<)", command)
    quote, code, index = "", False, 0
    while index < len(command):
        char = command[index]
        if index in ends:
            unsafe = code or (heredoc is not None and heredoc.start() < index)
            states[index] = "code" if unsafe else _NAMES[quote]
            index = ends[index]
            continue
        if quote:
            if char == quote:
                quote, code = "", False
            elif char == "\\" and quote == '"':
                index += 1
        elif char == "\\":
            index += 1
        elif char in "'\"":
            quote, code = char, bool(_CODE_FOLLOWS.search(command[:index]))
        elif char == "#" and (index == 0 or command[index - 1] in " \t\n;|&("):
            end = command.find("\n", index)
            end = len(command) if end < 0 else end
            states.update((start, "code") for start, _ in spans if index < start < end)
            index = end
            continue
        index += 1
    return [states.get(start, "none") for start, _ in spans]


_NAMES: dict[str, Quoting] = {"": "none", "'": "single", '"': "double"}
