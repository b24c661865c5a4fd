"""Files that hold no YAML, as a person is told: what is wrong, where, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from ml.core.errors import Place, Problem
from ml.specs.expressions.expressions import nearest

# What the parser says → what to do about it.
_ADVICE = {
    "mapping values are not allowed": "start it below the line before it, or put a text that"
    " holds `: ` in quotes",
    "could not find expected ':'": "write `name: value`, with a blank after the colon",
    "expected key": "start it below the lines that it belongs to",
    "another document": "one spec a file: move what follows `---` into another",
    "undefined alias": "put a text that begins with `*` in quotes",
    "cannot start any token": "put a text that begins with such a character in quotes",
    "determine a constructor": "delete the tag: a spec holds text, numbers, lists and mappings",
    "unexpected end of stream": "close the quote that is still open",
}
_LOOK = "look at the quotes, brackets and indentation of this line and the one before"


def file(error: OSError | ValueError, path: Path, shown: str) -> Problem:
    """The problem of a file that cannot be opened; a misspelt one names the nearest beside it."""
    if isinstance(error, IsADirectoryError):
        hint = f"name a file in it; `ml check {shlex.quote(shown)}` checks them all"
        return Problem("not-a-file", f"`{shown}` is a folder", "a YAML file", hint)
    found = f"`{shown}` cannot be read: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, PermissionError):
        hint = f"let yourself read it: chmod u+r {shlex.quote(shown)}"
        return Problem("no-access", found, "a YAML file", hint)
    beside = _beside(path)
    near = [shown.removesuffix(path.name) + beside[stem] for stem in nearest(path.stem, beside)]
    hint = f"did you mean `{near[0]}`?" if near else "look at the spelling"
    if path.is_symlink():
        hint = "it is a link: look at where it leads"
    return Problem("missing-file", found, "a YAML file", hint)


def bytes_of(error: UnicodeDecodeError, shown: str) -> Problem:
    """The problem of bytes that are no text."""
    line = error.object.count(b"\n", 0, error.start) + 1
    found = f"byte {error.object[error.start]:#04x} is not UTF-8"
    hint = "save it as UTF-8, or name another file if it holds no text"
    return Problem("unreadable-yaml", found, "UTF-8 text", hint, Place(shown, line))


def yaml_text(error: yaml.YAMLError, text: str, shown: str) -> Problem:
    """The problem of a text that is no YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
    found = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    lines = text.splitlines() or [""]
    hint = next((advice for sign, advice in _ADVICE.items() if sign in str(found)), _LOOK)
    if line > 1 and "\t" in lines[min(line, len(lines)) - 1]:
        hint = "indent with spaces, not tabs"
    return Problem("unreadable-yaml", str(found), "YAML that loads", hint, Place(shown, line))


def value(error: Exception, root: yaml.Node | None, shown: str) -> Problem:
    """The problem of a value that looks like a date or a number and is none, at its line."""
    for node in _scalars(root, set()):
        try:
            yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, TypeError, OverflowError) as wrong:
            found = f"`{node.value}` is read as {_WORDS.get(node.tag, 'a value')}: {wrong}"
            hint = "put it in quotes if it is a text, else correct it"
            place = Place(shown, node.start_mark.line + 1)
            return Problem("unreadable-yaml", found, "a value that exists", hint, place)
    return Problem("unreadable-yaml", str(error), "YAML that loads", _LOOK, Place(shown, 1))


_WORDS = {"tag:yaml.org,2002:timestamp": "a date", "tag:yaml.org,2002:int": "a number"}


def _scalars(node: yaml.Node | None, met: set[int]) -> Iterator[yaml.Node]:
    """Every scalar, keys too, each once."""
    if node is None or id(node) in met:
        return
    met.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _scalars(child, met)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for child in pair:
                yield from _scalars(child, met)


def _beside(path: Path) -> dict[str, str]:
    """The YAML files in the folder of a file that is not there: name without suffix → name."""
    try:
        files = [file for file in path.parent.iterdir() if file.suffix in {".yml", ".yaml"}]
    except (OSError, ValueError):
        return {}
    return {file.stem: file.name for file in files}
