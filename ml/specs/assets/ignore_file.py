"""The files of a folder that azure-ai-ml would upload.

`IgnoreFile` matches each file against the `.amlignore` of the folder, or else its `.gitignore`; the
last pattern that matches decides, and a pattern that matches a folder matches everything below it.
pathspec's GitIgnoreSpecPattern matches the same files (a test compares the two) without the slow
import of the SDK.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from pathspec import PathSpec
from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from ml.core import files, repository
from ml.core.errors import Place, Problem, UserError

# A file name that no pattern contains: it represents any file of a folder.
_ANY = "\x00"
# Lines that match nothing in the SDK but every folder in pathspec: `/`, `/**/`.
_NO_PATTERN = re.compile(r"!?/(\*\*/)*")
_WILDCARD = re.compile(r"[*?\[\\]")
# pathspec compiles a pattern to a regular expression that backtracks: a name of n letters takes
# about n ** (ambiguous + 1) operations, a few million at this limit.
_MAX_AMBIGUOUS = 2
# Limits on followed links: a folder with two links to itself doubles the files with each level.
_MAX_THROUGH_LINKS, _MAX_LINKS = 2_000, 20
# Matching `**/a/**/b` takes time quadratic in the depth of a path.
_MAX_DEPTH = 50


class IgnoreFile:
    """The ignore file of a folder; without one, every file is included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        candidates = [folder / name for name in (".amlignore", ".gitignore")]
        self.file = next((path for path in candidates if path.is_file()), None)
        text = files.content(self.file).decode("utf-8-sig") if self.file else ""
        lines = [line.strip() for line in text.splitlines()]
        for number, line in enumerate(lines, start=1):
            place = Place(repository.shown(folder / str(self.file)), number)
            try:
                GitIgnoreSpecPattern(line)
            except GitIgnorePatternError:
                expected, hint = "a pattern of git after `!` or `\\`", "delete the line"
                actual = f"`{line[:80]}` is not a pattern"
                raise UserError(Problem("bad-pattern", actual, expected, hint, place)) from None
            if not line.startswith("#") and _ambiguity(line) > _MAX_AMBIGUOUS:
                actual = (
                    f"`{line[:80]}` has too many `*` and `**/`: matching it would take too long"
                )
                expected = "a name with at most three `*`, and fewer with `**/`"
                raise UserError(
                    Problem("bad-pattern", actual, expected, "use several lines", place)
                )
        lines = [line for line in lines if not _NO_PATTERN.fullmatch(line)]
        self._spec = PathSpec.from_lines(GitIgnoreSpecPattern, lines)
        self._included = [_anchor(line) for line in lines if line.startswith("!")]

    def excludes(self, path: str) -> bool:
        """Return True if the file at `path` (relative to the folder, with `/`) is excluded."""
        return self._spec.match_file(path)

    def files(self, skipped_folders: Collection[Path] = ()) -> Iterator[tuple[str, Path]]:
        """Yield every included file as (relative path, path), sorted; links are followed.

        `skipped_folders` is for the home of the runs, which may be inside `code:`. Raises UserError
        (link-escape) if an included link leads out of the repository.
        """
        boundary = repository.boundary(self.folder)
        for relative, path, real in self.entries(skipped_folders, [boundary] if boundary else None):
            if real is not None:
                actual = f"the link {repository.shown(path)} has the target {real}"
                hint = "replace the link by its target, or exclude it in .amlignore"
                raise UserError(Problem("link-escape", actual, "a target in the repository", hint))
            if not self.excludes(relative):
                yield relative, path

    def entries(
        self, skipped_folders: Collection[Path], allowed: Collection[Path] | None
    ) -> Iterator[tuple[str, Path, Path | None]]:
        """Yield (relative path, path, target) of each file outside excluded and skipped folders.

        `target` is the real path of a link that leaves the `allowed` folders (None allows all);
        else None. Files that are excluded one by one are included.
        """
        real = Path(os.path.realpath(self.folder))
        real_allowed = None if allowed is None else [os.path.realpath(path) for path in allowed]
        self._through_links = 0
        yield from self._below(self.folder, "", skipped_folders, frozenset({real}), real_allowed, 0)

    def _below(
        self,
        folder: Path,
        prefix: str,
        skipped_folders: Collection[Path],
        above: frozenset[Path],
        allowed: Collection[str] | None,
        links: int,
    ) -> Iterator[tuple[str, Path, Path | None]]:
        self._through_links += min(1, links)
        if self._through_links > _MAX_THROUGH_LINKS or links > _MAX_LINKS:
            actual = f"links add over {_MAX_THROUGH_LINKS:,} folders or {_MAX_LINKS} levels"
            hint = "replace the links by their targets, or exclude them in .amlignore"
            raise UserError(Problem("too-many-links", actual, "fewer", hint))
        if prefix.count("/") > _MAX_DEPTH:
            actual = f"`{repository.shown(self.folder)}` has folders over {_MAX_DEPTH} levels deep"
            hint = "exclude them in .amlignore"
            raise UserError(Problem("too-deep", actual, "fewer levels", hint))
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        for entry in entries:
            relative, path = f"{prefix}{entry.name}", Path(entry.path)
            is_link = entry.is_symlink()
            is_folder = path.is_dir() if is_link else entry.is_dir()
            real = Path(os.path.realpath(path)) if is_folder or is_link else path
            if is_link and allowed is not None and not any(map(real.is_relative_to, allowed)):
                if not (self._prunes(relative) if is_folder else self.excludes(relative)):
                    yield relative, path, real
            elif is_folder:
                # Skip a link to a parent folder, which would recurse forever.
                if path not in skipped_folders and real not in above and not self._prunes(relative):
                    inner = above | {real}
                    yield from self._below(
                        path, f"{relative}/", skipped_folders, inner, allowed, links + is_link
                    )
            elif path.is_file() if is_link else entry.is_file():
                yield relative, path, None

    def _prunes(self, folder: str) -> bool:
        """Return True if every file below the folder is excluded: it need not be opened."""
        parts = folder.split("/")
        may_include = any(
            all(mine == theirs for mine, theirs in zip(anchor, parts, strict=False))
            for anchor in self._included
        )
        return not may_include and self.excludes(f"{folder}/{_ANY}")


def _anchor(pattern: str) -> list[str]:
    """Return the leading segments of a `!pattern` without a wildcard; [] if it matches anywhere."""
    segments = pattern.removeprefix("!").rstrip("/").split("/")
    if len(segments) == 1:
        return []
    segments = segments[1:] if not segments[0] else segments
    wild = (number for number, part in enumerate(segments) if _WILDCARD.search(part))
    return segments[: next(wild, len(segments))]


def _ambiguity(pattern: str) -> int:
    """Count the wildcards that may match in several ways: `**/`, and each further `*`."""
    parts = re.sub(r"(\*\*/)+", "**/", pattern).removesuffix("/**").split("/")
    return sum(max(0, part.count("*") - 1) for part in parts)
