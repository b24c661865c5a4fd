"""Check links, merge conflict markers, file names and invisible characters in the repository.

Relative links of Markdown pages must lead to an existing file and heading. Files must not contain
conflict markers of `make update` or have a name that `layout` rejects. Programs and settings must
not contain invisible characters.

`python -m ml.repository.forks.links` needs no package besides PyYAML: the check of a pull request
that changes only documentation installs nothing else.
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

# The conflict markers of `make update`.
MARKERS = r"^(<<<<<<< before updating|>>>>>>> after updating)"
# Programs and settings, which are checked for invisible characters; data may contain them.
_PROGRAMS = ("*.py", "*.yml", "*.yaml", "*.toml", "*.mk", "*Makefile", "*Dockerfile", "*.sh")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"`[^`]*`")
# A link target, in angle brackets if it has spaces. Possessive quantifiers prevent catastrophic
# backtracking, since the pages are untrusted.
_LINK = re.compile(r"\]\(\s*+(?:<([^<>]*+)>|([^\s()]++))")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*)")


def problems(root: Path) -> Iterator[Problem]:
    """Yield a problem for each broken link in a tracked or untracked Markdown page."""
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
    """Return the files of the work tree that contain conflict markers of `make update`."""
    names = git.ask(root, "grep", "--untracked", "-lzE", MARKERS) or ""  # none: exit 1
    return [name for name in names.split("\0") if name]


def unseen(root: Path) -> Iterator[Problem]:
    """Yield a problem for each program or setting that contains invisible characters.

    Python accepts some of them in identifiers; others change the order in which a reviewer sees the
    text.
    """
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PROGRAMS)
    for name in sorted({*git.run(root, *words).split("\0")} - {""}):
        if (root / name).is_symlink() or not (root / name).is_file():
            continue
        # Editors on Windows write a byte order mark at the start of a file.
        text = (root / name).read_text(encoding="utf-8-sig", errors="replace")
        if not text.isascii() and (match := INVISIBLE.search(text)):
            place = Place(printable(name), text.count("\n", 0, match.start()) + 1)
            actual, hint = f"an invisible character: {printable(match[0])}", "write its escape"
            yield Problem("invisible-character", actual, "visible characters", hint, place)


def _links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and the target of each link that is not a web address."""
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
    """Return the anchors that GitHub gives to headings; duplicates get the suffixes -1, -2, …."""
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
    """Yield (line number, line) for the lines outside of fenced code blocks."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if match and (not fence or match[1].startswith(fence)):
            fence = "" if fence else match[1]
        elif not fence:
            yield number, line


@as_program
def main(argv: Sequence[str] | None = None) -> Exit:
    """Print every problem; exit with 1 if there is one."""
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
