"""Check the names of a commit's files: programs load files with some names automatically.

At the root many names matter (`GNUmakefile` overrides `Makefile`, `argparse.py` the standard
library, a tool's settings those in pyproject.toml), so the root has an allowlist. Every folder is
checked for names that git treats as parts of a repository, and for compiled code, which Python
runs in place of a module's source.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from ml.core import git, repository
from ml.core.errors import Place, Problem, UserError
from ml.core.repository import TABLE
from ml.core.terminal import printable

# The template's names at the root. A team adds its own in pyproject.toml, which has code owners:
# [tool.azureml-gitops-starter] root = ["notebooks"].
NAMES = frozenset(
    {
        *(".amlignore", ".ci", ".copier-answers.yml", ".copier-answers.yml.copier"),
        *(".devcontainer", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md"),
        *("LICENSE", "Makefile", "README.md", "SECURITY.md", "benchmarks", "copier.yml"),
        *("docs", "framework.mk", "infra", "ml", "policies", "pyproject.toml"),
        *("requirements", "tests", "wheels"),
    }
)
# Namespace packages must not have an `__init__`: a fork's would hide the framework's modules.
_PACKAGE = re.compile(r"(ml|infra|policies)/__init__\.|ml/serving(/__init__)?\.", re.I)
# Compiled code: Python runs it in place of the source module, and nobody can review it.
_COMPILED = re.compile(r".*\.(py[cdo]|so)")
# Paths where symbolic links are allowed. Other files have code owners or influence checks, and a
# link's target could have different owners.
_FREE = re.compile(r"ml/projects/[^/]+/(?!(gates\.yml|release\.yml|evidence)(/|$)).+|docs/.+", re.S)
# Maximum bytes of a path, relative to the root, and of one of its names.
_LONGEST_PATH, _LONGEST_NAME = 1000, 255
_LINK, _GITLINK = "120000", "160000"
# Characters that file systems (HFS+, NTFS) ignore in a name or treat as its end.
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_END = re.compile(r"(:.*|[ .]+)$", re.S)
_SHORT = re.compile(r"(git|gi[0-9a-f]{4})~\d+", re.I)


def problems(entries: Iterable[tuple[str, str]], names: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each entry (mode, path) that a commit must not contain.

    `names` are the names that the team allows at the root, besides `NAMES`.
    """
    spelled: dict[tuple[str, str], str] = {}
    entries = sorted(entries, key=lambda entry: entry[1])
    paths = {path for _, path in entries}
    for mode, path in entries:
        top, *below = parts = re.split(r"[/\\]", path)
        expected = hint = ""
        # The package's folder; a link is checked by its own path, since it may lead to a package.
        package = path if mode == _LINK else "/".join(below and parts[:-1])
        if top not in NAMES and top not in names:
            expected = f"one of {', '.join(sorted(NAMES))}"
            hint = f"a folder of these, or `root` under [tool.{TABLE}] in {repository.MARK}"
        elif _is_long(parts):
            expected = f"at most {_LONGEST_PATH} bytes, {_LONGEST_NAME} in a part"
            hint = "choose a shorter name, which file systems can store"
        elif mode == _LINK and not below:
            expected, hint = "no link at the root", "the file itself"
        elif mode == _LINK and top in NAMES and not _FREE.fullmatch(path):
            expected, hint = "a file: its owners do not review a link", "the file itself"
        elif mode == _GITLINK:
            expected, hint = "no other repository inside", "git rm it, and copy what is needed"
        elif any(map(_is_gits, parts)) or _plain(parts[-1]) == "head":
            expected = "no name of git's own: git would read a repository here"
            hint = "another name"
        elif below and _plain(parts[-1]) == repository.MARK:
            expected = f"one {repository.MARK}: the folder of a second would be taken for the root"
            hint = "another name"
        elif "__pycache__" in map(_plain, parts) or _COMPILED.fullmatch(_plain(parts[-1])):
            expected = "no compiled code: Python runs it in place of the text that is reviewed"
            hint = "git rm it; its source"
        elif (mode == _LINK or parts[-1] == "__init__.py") and f"{package}.py" in paths:
            expected = f"no package next to {printable(package)}.py, which it would shadow"
            hint = "one of the two"
        elif skipped := {*map(_plain, below[:-1])} & repository.SKIPPED:
            expected = f"no folder `{min(skipped)}`, which checks skip"
            hint = "another name"
        elif _PACKAGE.match(path):
            expected, hint = "a package without it", "put the code into a module"
        elif spelling := _other_spelling(parts, spelled):
            expected = f"one spelling: some file systems take it for {printable(spelling)}"
            hint = "another name"
        if expected:
            # Escape line breaks: GitHub would run a workflow command at the start of a line.
            name = printable(path[:_LONGEST_NAME])
            yield Problem("name-not-allowed", f"`{name}`", expected, hint, Place(name, 1))


def _is_long(parts: Sequence[str]) -> bool:
    lengths = [len(name.encode(errors="surrogateescape")) for name in parts]
    return max(lengths) > _LONGEST_NAME or sum(lengths) + len(parts) - 1 > _LONGEST_PATH


def _other_spelling(parts: Sequence[str], spelled: dict[tuple[str, str], str]) -> str:
    """Return an earlier path that a file system may treat as the same, as `A` and `a`; or "".

    `parts` are the path's names. `spelled` maps a folder and a name's `_plain` form to the first
    spelling; missing ones are added.
    """
    folder = ""
    for name in parts:
        spelling = spelled.setdefault((folder, _plain(name)), name)
        if spelling != name:
            return f"{folder}{spelling}"
        folder += f"{name}/"
    return ""


def _is_gits(name: str) -> bool:
    """Return whether a file system may treat the name as git's own: `.git` or `.gitmodules`."""
    plain = _plain(name)
    return plain in {".git", ".gitmodules"} or bool(_SHORT.fullmatch(plain))


def _plain(name: str) -> str:
    """Normalize a name as the most lenient file system does: case, Unicode, ignored characters."""
    return _END.sub("", _INVISIBLE.sub("", unicodedata.normalize("NFC", name))).casefold()


def own_names(root: Path) -> Collection[str]:
    """Return the names that the team allows at the root, from pyproject.toml.

    Raises UserError if they are not a list of strings.
    """
    try:
        text = (root / repository.MARK).read_text(encoding="utf-8")
        names = tomllib.loads(text).get("tool", {}).get(TABLE, {}).get("root", [])
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
        actual = f"`root` is {names!r}"
    except (ValueError, AttributeError) as error:
        actual = f"no TOML with such a table: {error}"
    place, expected = Place(repository.MARK, 1), f'[tool.{TABLE}] with root = ["notebooks"]'
    raise UserError(Problem("wrong-value", actual, expected, place=place))


def tracked_problems(root: Path) -> Iterator[Problem]:
    """Yield the problems of a repository's tracked files; yield none outside of git."""
    lines = (git.ask(root, "ls-files", "--stage", "-z") or "").split("\0")
    entries = [(line[:6], line.partition("\t")[2]) for line in lines if line]
    yield from problems(entries, own_names(root))
