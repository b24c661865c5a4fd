"""Which files of `code:` travel to the node: `.amlignore`, else `.gitignore`, as the SDK reads it.

The SDK matches file by file against the root's ignore file alone, the last pattern that matches
wins, and a pattern that matches a folder matches everything below it (read off azure-ai-ml 1.35's
`_asset_utils.IgnoreFile`; a test compares the two). Its own matcher costs the import of the SDK.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A file name that no sane pattern spells: stands for "anything in this folder".
_ANY = "\x00"


@dataclass(frozen=True)
class _Pattern:
    excludes: bool
    regex: re.Pattern[str]
    # The leading segments without a wildcard; empty when the pattern floats.
    anchor: tuple[str, ...]

    def may_match_below(self, folder: str) -> bool:
        """Whether some path below `folder` could match, judged by the anchor alone."""
        return all(
            mine == theirs for mine, theirs in zip(self.anchor, folder.split("/"), strict=False)
        )


def _segment(glob: str) -> str:
    """The regular expression of one path segment of a gitignore pattern."""
    out, i = "", 0
    while i < len(glob):
        char = glob[i]
        i += 1
        if char == "\\" and i < len(glob):
            out += re.escape(glob[i])
            i += 1
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[":
            bracket = re.match(r"(!|\^)?(\]?[^\]]*)\]", glob[i:])
            if bracket is None:
                out += r"\["
                continue
            negated = {"!": "^", "^": r"\^", None: ""}[bracket[1]]
            out += "[" + negated + bracket[2].replace("\\", "\\\\") + "]"
            i += bracket.end()
        else:
            out += re.escape(char)
    return out


def _parse(line: str) -> _Pattern | None:
    text = line.strip()
    if not text or text.startswith("#") or text == "/":
        return None
    excludes = not text.startswith("!")
    text = text.removeprefix("!")
    segments = text.split("/")
    segments = [
        part for i, part in enumerate(segments) if not (i and part == "**" == segments[i - 1])
    ]
    if segments == ["**", ""]:
        return _Pattern(excludes, re.compile("^.+/.*$"), ())
    if not segments[0]:
        # A slash in front ties the pattern to the root.
        del segments[0]
    elif (len(segments) == 1 or segments[1:] == [""]) and segments[0] != "**":
        # Without another slash it floats.
        segments.insert(0, "**")
    if not segments:
        return None
    if not segments[-1] and len(segments) > 1:
        # A slash at the end means what is in the folder.
        segments[-1] = "**"
    anchor: list[str] = []
    for part in segments:
        if re.search(r"[*?\[\\]", part):
            break
        anchor.append(part)
    return _Pattern(excludes, re.compile(_path(segments)), tuple(anchor))


def _path(segments: list[str]) -> str:
    out, slash, last = "^", False, len(segments) - 1
    for i, part in enumerate(segments):
        if part != "**":
            out += ("/" if slash else "") + ("[^/]+" if part == "*" else _segment(part))
            out += "(?:/.*)?" if i == last else ""
            slash = True
        elif i == last:
            out += "/.*" if i else ".+"
        elif i == 0:
            out += "(?:.+/)?"
        else:
            out += "(?:/.+)?"
            slash = True
    return out + "$"


class IgnoreFile:
    """The ignore file of one folder; without one, nothing is left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = [folder / name for name in (".amlignore", ".gitignore")]
        file = next((path for path in found if path.is_file()), None)
        lines = file.read_text(encoding="utf-8-sig").splitlines() if file else []
        self._patterns = [pattern for line in lines if (pattern := _parse(line))]

    def excludes(self, path: str) -> bool:
        """Whether the file at `path` (relative to the folder, `/` between its parts) stays here."""
        for pattern in reversed(self._patterns):
            if pattern.regex.match(path):
                return pattern.excludes
        return False

    def _prunes(self, path: str) -> bool:
        """Whether nothing below the folder `path` can travel: an allow-list never opens `.venv`."""
        return self.excludes(f"{path}/{_ANY}") and not any(
            pattern.may_match_below(path) for pattern in self._patterns if not pattern.excludes
        )

    def files(self, besides: Path | None = None) -> Iterator[tuple[str, Path]]:
        """Every file that travels, as (relative path, where it is), sorted; links are followed.

        `besides` is a folder that is never entered: the home of the runs may lie inside `code:`.
        """
        yield from self._below(self.folder, "", besides, frozenset({self.folder.resolve()}))

    def _below(
        self, folder: Path, prefix: str, besides: Path | None, above: frozenset[Path]
    ) -> Iterator[tuple[str, Path]]:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            relative, path = f"{prefix}{entry.name}", Path(entry.path)
            if entry.is_dir():
                real = path.resolve()
                # A link to a folder above would never end.
                if path != besides and real not in above and not self._prunes(relative):
                    yield from self._below(path, f"{relative}/", besides, above | {real})
            elif entry.is_file() and not self.excludes(relative):
                yield relative, path
