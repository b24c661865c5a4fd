"""YAML with positions: one pass of libyaml, a line number for every node.

`Document.data` equals `yaml.safe_load` of the same text (a test compares), so the SDK sees no
difference. This module also rejects text that PyYAML accepts: duplicate keys, NUL characters, line
breaks that editors do not show, deep nesting, and aliases that are recursive or too large.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ml.core import files, repository
from ml.core.errors import Place, Problem, UserError, nearest

Key = str | int
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Text that libyaml parses differently from PyYAML's own parser, which the SDK uses: tabs, a bare
# `!`, byte order marks, directives, a comment right after `|`, a `?` inside brackets. A test
# compares the two on random text.
_QUIRKS = re.compile(r"\t|(?:^|[\s\[{,:?-])!(?:\s|$)|\ufeff|^%|[|>][-+\d]*#", re.M)

# YAML also ends a line at these characters. Git, editors and GitHub do not: they would show a key
# after one as the rest of a comment.
_LINE_END = re.compile("\r(?!\n)|[\x85\u2028\u2029]")

MAX_BYTES = 1_000_000
# Keys that are not text have several spellings (`yes`, `true`): compare their tags.
_TAGS: dict[type, str] = {bool: "tag:yaml.org,2002:bool", type(None): "tag:yaml.org,2002:null"}


@dataclass(frozen=True)
class Document:
    """A YAML file: its data, and the position of every node."""

    shown: str  # path as a user would type it
    data: Any  # with the values set on the command line
    root: yaml.Node  # has the positions in the file
    changed: tuple[str, ...] = ()  # dotted fields set on the command line

    def copy(self) -> Any:
        """Return a deep copy of the data, for callers that modify it, such as the SDK."""
        return copy.deepcopy(self.data)

    def position(self, *keys: Key) -> tuple[int, int]:
        """Return line and column, both from 1, of the node at `keys` or its nearest ancestor."""
        node, mark = self.root, self.root.start_mark
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node, mark = child
        return mark.line + 1, mark.column + 1

    def place(self, *keys: Key) -> Place:
        """Return the place of the node at `keys`: its line, or `--set FIELD` if that set it."""
        change = self.change(*keys)
        return Place(f"--set {change}", 0) if change else Place(self.shown, self.position(*keys)[0])

    def written(self, *keys: Key) -> str | None:
        """Return the scalar at `keys` as text, as the file spells it; None if there is none."""
        node = self.root
        for key in keys:
            child = _child(node, key)
            if child is None:
                return None
            node = child[0]
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None

    def change(self, *keys: Key) -> str | None:
        """Return the `--set` field that set the node at `keys` or an ancestor; None if none did."""
        dotted = ".".join(map(str, keys))
        return next((name for name in self.changed if f"{dotted}.".startswith(f"{name}.")), None)

    def get(self, *keys: Key) -> Any:
        """Return the value at `keys`; None if there is none."""
        value = self.data
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value


def walk(value: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield `value` and every value nested in it, each with its keys, in the file's order."""
    yield keys, value
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from walk(child, (*keys, key))


def strings(value: Any) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield every string nested in `value`, each with its keys, in the file's order."""
    return ((keys, text) for keys, text in walk(value) if isinstance(text, str))


def read(path: Path, shown: str = "") -> Document:
    """Parse the YAML file at `path`; raise UserError when it is missing, unreadable or ambiguous.

    `shown` is the path in messages, by default relative to the working directory.
    """
    shown = shown or repository.shown(path)
    top = Place(shown, 1)
    try:
        content = files.content(path)
    except (OSError, ValueError) as error:
        raise UserError(_file_problem(error, path, shown)) from None
    if len(content) > MAX_BYTES:
        finding = f"{len(content):,} bytes"
        hint = "keep data in files of their own, and name them by a path"
        raise UserError(Problem("too-large", finding, f"at most {MAX_BYTES:,}", hint, top))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(_encoding_problem(error, shown)) from None
    return parse(text, shown)


def parse(text: str, shown: str) -> Document:
    """Parse YAML text; raise UserError with every ambiguity, each with its line.

    The returned data may be modified, even if the text was parsed before.
    """
    compose = _compose if len(text) <= _REMEMBERED else _compose.__wrapped__
    document = compose(text, shown)
    return replace(document, data=document.copy())


# Longest text, in characters, that is cached: `ml check` parses a file again for each spec that
# may refer to it.
_REMEMBERED = 50_000


@lru_cache(maxsize=500)
def _compose(text: str, shown: str) -> Document:
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(_nul(Place(shown, line)))
    if end := _LINE_END.search(text):
        line = text.count("\n", 0, end.start()) + 1
        raise UserError(_line_end(end[0], Place(shown, line)))
    root: yaml.Node | None = None
    try:
        loader_class = yaml.SafeLoader if _is_quirky(text) else LOADER
        _refuse_depth(text, shown, loader_class)
        loader = loader_class(text)
        try:
            root = loader.get_single_node()
            if root is None:
                hint = "write a spec; ml/projects/README.md lists them"
                raise UserError(
                    Problem("empty-file", "no content", "a mapping", hint, Place(shown, 1))
                )
            problems = list(_ambiguities(root, shown))
            if problems:
                raise UserError(*problems)
            data = loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise UserError(_syntax_problem(error, text, shown)) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # PyYAML's constructors of dates, integers and keys raise these as they are.
        raise UserError(_value_problem(error, root, shown)) from None
    return Document(shown, data, root)


def _is_quirky(text: str) -> bool:
    in_brackets = "?" in text and ("[" in text or "{" in text)
    return in_brackets or _QUIRKS.search(text) is not None


def _child(node: yaml.Node, key: Key) -> tuple[yaml.Node, yaml.Mark] | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in reversed(node.value):
            if str(name.value) == str(key) or name.tag == _TAGS.get(type(key)):
                return value, name.start_mark
    elif isinstance(node, yaml.SequenceNode) and str(key).isdecimal():
        for item in node.value[int(key) :][:1]:
            return item, item.start_mark
    return None


# Ambiguities that PyYAML accepts although a spec cannot mean them.

_MERGE = "tag:yaml.org,2002:merge"  # `<<` may occur twice: both are merged
MAX_DEPTH = 64
# Longer integers overflow a float, and Python may refuse to print them.
MAX_DIGITS = 300
_INTEGER = "tag:yaml.org,2002:int"
MAX_NODES = 100_000  # after aliases are followed: what the SDK would walk


def _refuse_depth(text: str, shown: str, loader_class: Any) -> None:
    """Raise UserError for text with more than MAX_DEPTH levels, before the recursive parser runs.

    Deep text needs many brackets or a line with a large indent; other text is not parsed here.
    """
    brackets = text.count("[") + text.count("{")
    indent = max((match.end() - match.start() for match in _INDENT.finditer(text)), default=0)
    if brackets <= MAX_DEPTH and indent <= MAX_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=loader_class):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            place = Place(shown, event.start_mark.line + 1)  # type: ignore[union-attr]
            finding = f"more than {MAX_DEPTH} levels of nesting"
            raise UserError(Problem("too-deep", finding, "less nesting", "split the file", place))


_INDENT = re.compile(r"^[ \t]*(?:[-?:][ \t]+)*", re.MULTILINE)


def _ambiguities(root: yaml.Node, shown: str) -> Iterator[Problem]:
    """Yield a problem per duplicate key, NUL, too long integer, recursive or too large alias."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def at(mark: yaml.Mark) -> Place:
        return Place(shown, mark.line + 1)

    def visit(node: yaml.Node) -> Iterator[Problem]:
        if id(node) in sizes:
            return
        if id(node) in open_nodes:
            sizes[id(node)] = 1
            finding = "an alias that refers to a node around it"
            hint = "write the value in place of the alias"
            yield Problem("recursive-alias", finding, "a tree", hint, at(node.start_mark))
            return
        open_nodes.add(id(node))
        size = 1
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:
                yield _nul(at(node.start_mark))
            if node.tag == _INTEGER and len(node.value) > MAX_DIGITS:
                finding = f"a number of {len(node.value)} characters"
                expected = f"a number of at most {MAX_DIGITS} characters"
                hint = "put it in quotes if it is a text"
                yield Problem("wrong-value", finding, expected, hint, at(node.start_mark))
        if isinstance(node, yaml.MappingNode):
            yield from _duplicates(node, shown)
        for child in _children(node):
            yield from visit(child)
            size += sizes[id(child)]
        sizes[id(node)] = size
        open_nodes.discard(id(node))

    yield from visit(root)
    if sizes[id(root)] > MAX_NODES:
        finding = f"aliases that expand into {sizes[id(root)]:,} nodes"
        expected, hint = f"at most {MAX_NODES:,}", "write values in place of the aliases"
        yield Problem("alias-bomb", finding, expected, hint, at(root.start_mark))


def _children(node: yaml.Node) -> Sequence[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _duplicates(node: yaml.MappingNode, shown: str) -> Iterator[Problem]:
    first_line: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if name in first_line:
            yield Problem(
                "duplicate-key",
                f"`{key.value}` is here and on line {first_line[name]}",
                "each key once",
                "delete one; most readers silently take the last",
                Place(shown, line),
                source="YAML 1.2.2, 3.2.1.3: keys are unique",
            )
        first_line.setdefault(name, line)


def _nul(place: Place) -> Problem:
    """Return the problem of a NUL character, which ends a string in the shell."""
    return Problem("nul-character", "a NUL character", "text", "delete it", place)


def _line_end(character: str, place: Place) -> Problem:
    """Return the problem of a character that only YAML treats as a line break."""
    actual = f"U+{ord(character):04X}, a line break of YAML that editors do not show"
    hint = 'delete it; in a text in double quotes write it as "\\L", "\\P", "\\N" or "\\r"'
    return Problem("line-separator", actual, "line ends of LF or CR LF", hint, place)


# Files that are not YAML: the fault, its line, and how to correct it.

# A message of the parser → how to correct the file.
_ADVICE = {
    "mapping values are not allowed": "put the key on a line of its own, or put a text that"
    " contains `: ` in quotes",
    "could not find expected ':'": "write `name: value`, with a blank after the colon",
    "expected key": "indent it like the other keys of its mapping",
    "another document": "one spec a file: move what follows `---` into another",
    "undefined alias": "put a text that begins with `*` in quotes",
    "cannot start any token": "put the text in quotes: YAML reserves its first character",
    "determine a constructor": "delete the tag: a spec has only text, numbers, lists and mappings",
    "unexpected end of stream": "close the quote that is still open",
}
_LOOK = "check the quotes, brackets and indentation of this line and the one before"


def _file_problem(error: OSError | ValueError, path: Path, shown: str) -> Problem:
    """Return the problem of a file that cannot be opened; the hint is the most similar name."""
    if isinstance(error, IsADirectoryError):
        hint = f"name a file in it; `ml check {shlex.quote(shown)}` checks them all"
        return Problem("not-a-file", f"`{shown}` is a folder", "a YAML file", hint)
    finding = f"`{shown}` cannot be read: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, PermissionError):
        hint = f"make it readable: chmod u+r {shlex.quote(shown)}"
        return Problem("no-access", finding, "a YAML file", hint)
    siblings = _beside(path)
    near = [shown.removesuffix(path.name) + siblings[stem] for stem in nearest(path.stem, siblings)]
    # The path may be relative to the repository's root, and the working directory below it.
    if isinstance(error, OSError) and (below := repository.root(path) / path).is_file():
        near = [os.path.relpath(below)]
    hint = f"did you mean `{near[0]}`?" if near else "check the spelling"
    if path.is_symlink():
        hint = "it is a link: check its target"
    return Problem("missing-file", finding, "a YAML file", hint)


def _encoding_problem(error: UnicodeDecodeError, shown: str) -> Problem:
    """Return the problem of bytes that are not UTF-8."""
    line = error.object.count(b"\n", 0, error.start) + 1
    finding = f"byte {error.object[error.start]:#04x} is not UTF-8"
    hint = "save it as UTF-8, or name a text file"
    return Problem("unreadable-yaml", finding, "UTF-8 text", hint, Place(shown, line))


def _syntax_problem(error: yaml.YAMLError, text: str, shown: str) -> Problem:
    """Return the problem of text that is not YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
    finding = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    lines = text.splitlines() or [""]
    hint = next((advice for sign, advice in _ADVICE.items() if sign in str(finding)), _LOOK)
    if line > 1 and "\t" in lines[min(line, len(lines)) - 1]:
        hint = "indent with spaces, not tabs"
    return Problem("unreadable-yaml", str(finding), "YAML that loads", hint, Place(shown, line))


def _value_problem(error: Exception, root: yaml.Node | None, shown: str) -> Problem:
    """Return the problem of a value that looks like a date or a number but is not, at its line."""
    for node in _scalars(root, set()):
        try:
            yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, TypeError, OverflowError) as wrong:
            finding = f"`{node.value}` is read as {_WORDS.get(node.tag, 'a value')}: {wrong}"
            hint = "put it in quotes if it is a text, else correct it"
            place = Place(shown, node.start_mark.line + 1)
            return Problem("unreadable-yaml", finding, "a valid value", hint, place)
    return Problem("unreadable-yaml", str(error), "YAML that loads", _LOOK, Place(shown, 1))


_WORDS = {"tag:yaml.org,2002:timestamp": "a date", "tag:yaml.org,2002:int": "a number"}


def _scalars(node: yaml.Node | None, met: set[int]) -> Iterator[yaml.Node]:
    """Yield every scalar node, keys included, once; `met` collects the ids of visited nodes."""
    if node is None or id(node) in met:
        return
    met.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    for child in _children(node):
        yield from _scalars(child, met)


def _beside(path: Path) -> dict[str, str]:
    """Return the YAML files in the folder of a missing file: name without suffix → name."""
    try:
        files = [file for file in path.parent.iterdir() if file.suffix in {".yml", ".yaml"}]
    except (OSError, ValueError):
        return {}
    return {file.stem: file.name for file in files}
