"""Dockerfiles of custom images: what they install by pip and conda, as a conda file would say it.

The format: docs.docker.com/reference/dockerfile. Only what is plain is understood: `RUN pip
install` and `RUN conda create | install` with the requirements in the line, or in a file that
`COPY` takes from the build context. What the base image brings, nobody here can know.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml.core import repository
from ml.core.errors import Place, Problem
from ml.specs.assets.conda import Conda, included
from ml.specs.plan.plan import Dependency

_END = {"&&", "||", ";", "|"}
# Options of pip and conda that take the next word as their value.
_VALUED = frozenset(
    {
        *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target"),
        *("-c", "--constraint", "--prefix", "-p", "-n", "--name", "--channel", "--platform"),
        *("--python-version", "--root", "--timeout", "--retries", "--trusted-host"),
    }
)
_FILES = ("-r", "--requirement")


class _Unclear(Exception):
    """A line whose packages depend on what is not written in it."""


@dataclass(frozen=True)
class _Word:
    text: str
    line: int


def of_file(path: Path, context: Path) -> Conda | None:
    """What the Dockerfile at `path` installs; None where it installs nothing that can be read.

    Its problems are files that it copies from the `context` and that are not there.
    """
    shown = repository.shown(path)
    copied: dict[str, Path] = {}
    found: list[Dependency] = []
    problems: list[Problem] = []
    try:
        for instruction, words in _instructions(path.read_text(encoding="utf-8-sig")):
            if instruction == "COPY" and not any(one.text.startswith("--from") for one in words):
                sources = [one.text for one in words if not one.text.startswith("--")][:-1]
                copied |= {Path(one).name: context / one for one in sources}
            elif instruction == "RUN":
                for manager, word in _installed(words):
                    place = Place(shown, word.line)
                    if manager == "file":
                        source = copied.get(Path(word.text).name)
                        if source is None:
                            raise _Unclear
                        found += included(source, place, problems)
                    else:
                        kind = "conda" if manager == "conda" else "pip"
                        found.append(Dependency(word.text, kind, place))  # type: ignore[arg-type]
    except (_Unclear, OSError, ValueError):
        return None
    return Conda(tuple(found), tuple(problems)) if found or problems else None


def _instructions(text: str) -> Iterator[tuple[str, list[_Word]]]:
    """Each instruction with its words and their lines; a backslash joins lines, `#` begins one."""
    name, words = "", list[_Word]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        body, joined = re.subn(r"\\\s*$", "", line)
        found = [_Word(one, number) for one in shlex.split(body)]
        if not name:
            name, found = (found[0].text.upper(), found[1:]) if found else ("", [])
        words += found
        if not joined:
            yield name, words
            name, words = "", []
    if name:
        yield name, words


def _installed(words: Sequence[_Word]) -> Iterator[tuple[str, _Word]]:
    """The packages of one RUN, each with who installs it; `file` for a requirements file."""
    if any(one.text.startswith("<<") for one in words):
        raise _Unclear
    command: list[_Word] = []
    for word in [*words, _Word("&&", 0)]:
        if word.text in _END:
            yield from _packages(command)
            command = []
        elif word.text.endswith(";"):
            yield from _packages([*command, _Word(word.text[:-1], word.line)])
            command = []
        else:
            command.append(word)


def _packages(command: Sequence[_Word]) -> Iterator[tuple[str, _Word]]:
    said = [one.text for one in command]
    manager = _manager(said)
    if not manager:
        return
    verb = next(i for i, one in enumerate(said) if one in ("install", "create"))
    rest = iter(command[verb + 1 :])
    for word in rest:
        option, _, value = word.text.partition("=")
        if manager == "pip" and option in _FILES:
            file = _Word(value, word.line) if value else next(rest, None)
            if file is None:
                raise _Unclear
            yield "file", file
        elif word.text in _VALUED:
            next(rest, None)
        elif word.text.startswith("-e") or word.text.startswith((".", "/")) or "$" in word.text:
            raise _Unclear
        elif not word.text.startswith("-"):
            yield manager, word


def _manager(said: Sequence[str]) -> str:
    """`pip` or `conda` where the command installs something with it, else ""."""
    names = [Path(one).name for one in said]
    for manager, verbs in (("pip", {"install"}), ("conda", {"install", "create"})):
        for at, name in enumerate(names[:-1]):
            if re.fullmatch(rf"{manager}3?", name) and verbs & set(names[at + 1 :]):
                return manager
    return ""
