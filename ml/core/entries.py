"""Entries of a YAML file told by its lines, for jobs of workflows, which install no package.

Each key begins a line, and what is below it is indented by more. A file that says it otherwise (by
anchors, a key that is no word, a text that goes on at the height of its key) has no entries here.
A test compares with PyYAML: a text must not pass for an entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = r"(?:\w[^\s\"'#]*?|\"[^\"\\]*\"|'[^']*')"
_KEY = re.compile(rf" *({_WORD})[ \t]*:(?=\s)", re.ASCII)
# A key with nothing but a comment beside it.
_ABOVE = re.compile(rf"{_KEY.pattern}[ \t\r]*(?:#.*)?\n", re.ASCII)
# What refers to another entry; where YAML alone ends a line; the line that begins a document.
REFERENCE = re.compile(r"(?<!\w)[&*]\w|<<\s*:")
_HIDDEN_LINE = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
_DOCUMENT = re.compile(r"---[ \t\r]*\n")
# What comes before a value: marks of lists and keys, tags, a key of any form.
_MARKS = r"(?:[-?:] +|!\S*\s+)*"
_LEAD = re.compile(rf" *{_MARKS}(?:(?:\"[^\"\\]*\" *|'[^']*' *|[^\s\"'#\[{{!].*?):\s+)?{_MARKS}")
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'"
_QUOTED_OR_COMMENT = re.compile(rf"{_QUOTED}|(?:(?<=\s)|^)#[^\n]*", re.S | re.M)
# In a mapping in braces.
_PAIR = re.compile(rf"({_WORD})\s*:\s+({_QUOTED}|[^\s,{{}}\[\]]*)")


def split(text: str, *keys: str) -> tuple[str, str, str] | None:
    """What comes before the entry at the keys, its lines, "" without one, and what comes after.

    Blank lines and comments below an entry are not part of it. The last line gets its end.
    """
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    if _HIDDEN_LINE.search(text) or not _are_told_apart(lines):
        return None
    first, last = 0, len(lines)
    for depth, key in enumerate(keys, 1):
        if depth > 1:  # below the key before
            if not _ABOVE.fullmatch(lines[first]):
                return None
            first += 1
        entries = _entries(lines, first, last)
        if entries is None or (key not in entries and depth < len(keys)):
            return None
        end = max((end for _, end in entries.values()), default=first)
        first, last = entries.get(key, (end, end))
    before, entry, after = (lines[:first], lines[first:last], lines[last:])
    if any(map(REFERENCE.search, entry)):
        return None
    return "".join(before), "".join(entry), "".join(after)


def value(text: str, *keys: str) -> str:
    """What is written at the keys, without comments and quotes; "" where there is nothing.

    The last key may be one of a mapping in braces.
    """
    *above, name = keys
    for parts in (split(text, *keys), split(text, *above)):
        if parts and (match := _KEY.match(parts[1])):
            written = _QUOTED_OR_COMMENT.sub(_without_comment, parts[1][match.end() :]).strip()
            if match[1].strip("\"'") == name:
                return written.strip("\"'")
            if written.startswith("{"):
                pairs = {
                    key.strip("\"'"): word.strip("\"'") for key, word in _PAIR.findall(written)
                }
                return str(pairs.get(name, ""))
    return ""


def _without_comment(match: re.Match[str]) -> str:
    return "" if match[0].startswith("#") else match[0]


def _entries(lines: Sequence[str], first: int, last: int) -> dict[str, tuple[int, int]] | None:
    """The first line of each entry, and the one after its last; None where they are not told."""
    entries: dict[str, tuple[int, int]] = {}
    level, name = -1, ""
    for at in range(first, last):
        line = lines[at]
        content = line.lstrip(" ")
        if not content.strip() or content.startswith("#"):
            continue
        if not entries and first == 0 and _DOCUMENT.fullmatch(line):
            continue
        indent = len(line) - len(content)
        level = indent if level < 0 else level
        match = _KEY.match(line)
        if indent == level and match:
            name = match[1].strip("\"'")
            if name in entries:
                return None
            entries[name] = (at, at + 1)
        elif name and (indent > level or (indent == level and content[:2] in ("- ", "-\n"))):
            entries[name] = (entries[name][0], at + 1)
        else:
            return None
    return entries


def _are_told_apart(lines: Sequence[str]) -> bool:
    """Whether a text in quotes, a list or a mapping in brackets ends on the line that it begins on,
    or on one below it, and all until there are indented by more.
    """
    written, above = "", 0
    for line in lines:
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        if written:
            if content.strip() and indent <= above:
                return False
            written += line
        elif not content.startswith("#"):
            written, above = _LEAD.sub("", line, count=1), indent
            if written[:1] not in ("'", '"', "[", "{"):
                written = ""
        rest = _QUOTED_OR_COMMENT.sub("", written)
        closed = rest.count("[") == rest.count("]") and rest.count("{") == rest.count("}")
        if closed and not {"'", '"'} & {*rest}:
            written = ""
    return not written
