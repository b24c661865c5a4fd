"""Relative links of the repository's pages lead to a file, and to a heading that is there; no file
has the markers of a merge that nobody finished, nor a name that `layout` does not allow, and no
program has characters that nobody sees.

`python -m ml.repository.forks.links` needs no package besides PyYAML: a pull request of
documents installs nothing else.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml.core import git, repository
from ml.core.errors import Exit, Place, Problem, as_program
from ml.core.terminal import INVISIBLE, printable
from ml.repository.forks import layout

# What `make update` writes around lines that it could not merge.
MARKERS = r"^(<<<<<<< before updating|>>>>>>> after updating)"
# Files that programs run or read as settings; names and texts of data may have any letters.
_PROGRAMS = ("*.py", "*.yml", "*.yaml", "*.toml", "*.mk", "*Makefile", "*Dockerfile", "*.sh")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"`[^`]*`")
# A target in angle brackets may have spaces. Few characters are tried twice: a stranger writes the
# pages too.
_LINK = re.compile(r"\]\(\s*+(?:<([^<>]*+)>|([^\s()]++))")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*)")


def problems(root: Path) -> Iterator[Problem]:
    """A problem for each link of a tracked or new page that leads nowhere."""
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md")
    for name in sorted({*git.run(root, *words).split("\0")} - {""}):
        page = root / name
        if page.is_file():
            for number, target in _links(page):
                if not _leads_somewhere(page, target, root):
                    place, hint = Place(name, number), "correct the link, or name a web address"
                    actual = f"the link `{target}` is broken"
                    expected = "a file of the repository, and one of its headings after `#`"
                    yield Problem("broken-link", actual, expected, hint, place)


def unmerged(root: Path) -> list[str]:
    """The files of the work tree with such markers."""
    names = git.ask(root, "grep", "--untracked", "-lzE", MARKERS) or ""  # none: exit 1
    return [name for name in names.split("\0") if name]


def unseen(root: Path) -> Iterator[Problem]:
    """A problem for each program or setting with a character that is printed as nothing: Python
    takes some for letters of a name, others turn what a reviewer reads.
    """
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PROGRAMS)
    for name in sorted({*git.run(root, *words).split("\0")} - {""}):
        if (root / name).is_symlink() or not (root / name).is_file():
            continue
        # Editors of Windows put a mark at the start of a file.
        text = (root / name).read_text(encoding="utf-8-sig", errors="replace")
        if not text.isascii() and (match := INVISIBLE.search(text)):
            place = Place(printable(name), text.count("\n", 0, match.start()) + 1)
            actual, hint = f"an invisible character: {printable(match[0])}", "write its escape"
            yield Problem("invisible-character", actual, "visible characters", hint, place)


def _links(page: Path) -> Iterator[tuple[int, str]]:
    """The line and the target of each link that is not a web address."""
    for number, line in _prose(page):
        for match in _LINK.finditer(_CODE.sub("", line)):
            target = match[1] or match[2]
            if not re.match(r"[a-z][a-z0-9+.-]*:", target, re.I):
                yield number, target


def _leads_somewhere(page: Path, target: str, root: Path) -> bool:
    path, _, heading = target.partition("#")
    folder = root if path.startswith("/") else page.parent
    file = folder / path.lstrip("/") if path else page
    if not file.exists() or not file.resolve().is_relative_to(root.resolve()):
        return False
    return not heading or file.suffix != ".md" or heading in _headings(file)


def _headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to headings: a second one of the same words ends in -1."""
    seen: Counter[str] = Counter()
    anchors = set()
    for _, line in _prose(page):
        if match := _HEADING.match(line):
            words = re.sub(r"\[([^\[\]]*+)\]\([^)]*+\)", r"\1", match[1]).lower()
            words = words.rstrip().rstrip("#").rstrip()
            anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
    return anchors


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines outside of fenced code."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
        elif not fence:
            yield number, line


@as_program
def main(argv: Sequence[str] | None = None) -> Exit:
    """Print every problem; 1 when there is one."""
    root, hint = repository.root(), "merge both sides, and remove the markers"
    broken = [
        *problems(root),
        *layout.tracked_problems(root),
        *unseen(root),
        *(
            Problem("conflict-markers", name, "no markers of an update", hint, Place(name, 1))
            for name in unmerged(root)
        ),
    ]
    for problem in broken:
        print(problem, file=sys.stderr)
    return Exit.RUN_FAILED if broken else Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
