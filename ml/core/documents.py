"""YAML that remembers where everything stands: one pass of libyaml, a line for every node.

What `Document.data` holds is what `yaml.safe_load` makes of the same text (a test compares), so
the SDK sees no difference; what PyYAML lets through although no spec means it (duplicate keys,
NUL, aliases that grow without end) is refused here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ml.core import ambiguity, unreadable
from ml.core.errors import Place, Problem, Refused

Key = str | int
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Where libyaml reads text otherwise than PyYAML's own reader, which the SDK uses: tabs, a bare
# `!`, marks of byte order, directives, a comment right after `|`, a `?` inside of brackets (found
# by comparing the two on random text, as a test does).
_QUIRKS = re.compile(r"\t|(?:^|[\s\[{,:?-])!(?:\s|$)|\ufeff|^%|[|>][-+\d]*#", re.M)

MAX_BYTES = 1_000_000
# A key that is no text may be written in several ways; a mapping has one of each at most.
_TAGS: dict[type, str] = {bool: "tag:yaml.org,2002:bool", type(None): "tag:yaml.org,2002:null"}


@dataclass(frozen=True)
class Document:
    """A YAML file: its data, and the position of every node of it.

    `shown` is the path as a person would type it. `changed` are the dotted fields that were set
    on the command line: `data` has their values, the positions are those of the file.
    """

    shown: str
    data: Any
    root: yaml.Node
    changed: tuple[str, ...] = ()

    def copy(self) -> Any:
        """The data afresh, for a reader that changes what it reads (the SDK does)."""
        return copy.deepcopy(self.data)

    def position(self, *keys: Key) -> tuple[int, int]:
        """Line and column, both from 1, of the node at `keys`, or of its nearest ancestor."""
        node, mark = self.root, self.root.start_mark
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node, mark = child
        return mark.line + 1, mark.column + 1

    def place(self, *keys: Key) -> Place:
        """The place of the node at `keys` (of its key, in a mapping)."""
        change = self.change(*keys)
        return Place(f"--set {change}", 0) if change else Place(self.shown, self.position(*keys)[0])

    def written(self, *keys: Key) -> str | None:
        """The scalar at `keys` as it stands in the file; None where the file has none there."""
        node = self.root
        for key in keys:
            child = _child(node, key)
            if child is None:
                return None
            node = child[0]
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None

    def change(self, *keys: Key) -> str | None:
        """The field set on the command line that the node at `keys` is, or is a part of."""
        dotted = ".".join(map(str, keys))
        return next((name for name in self.changed if f"{dotted}.".startswith(f"{name}.")), None)

    def get(self, *keys: Key) -> Any:
        """The value at `keys`, None where there is none."""
        value = self.data
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value


def strings(value: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Every string in `value` with the keys that lead to it, in the order of the file."""
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from strings(child, (*keys, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from strings(child, (*keys, index))


def read(path: Path, shown: str) -> Document:
    """Compose the YAML file at `path`; Refused when it is missing, unreadable or ambiguous."""
    top = Place(shown, 1)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise Refused(unreadable.file(error, path, shown)) from None
    if len(content) > MAX_BYTES:
        found = f"{len(content):,} bytes"
        hint = "keep data in files of their own, and name them by a path"
        raise Refused(Problem("too-large", found, f"at most {MAX_BYTES:,}", hint, top))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(unreadable.bytes_of(error, shown)) from None
    return parse(text, shown)


def parse(text: str, shown: str) -> Document:
    """Compose YAML text; Refused with every ambiguity found, each with its line."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Refused(ambiguity.nul(Place(shown, line)))
    root: yaml.Node | None = None
    try:
        loader_class = yaml.SafeLoader if _is_quirky(text) else LOADER
        ambiguity.refuse_depth(text, shown, loader_class)
        loader = loader_class(text)
        try:
            root = loader.get_single_node()
            if root is None:
                hint = "write a spec: ml/projects/README.md says which there are"
                raise Refused(
                    Problem("empty-file", "no content", "a mapping", hint, Place(shown, 1))
                )
            problems = list(ambiguity.ambiguities(root, shown))
            if problems:
                raise Refused(*problems)
            data = loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise Refused(unreadable.yaml_text(error, text, shown)) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # PyYAML's constructors of dates, integers and keys raise these as they are.
        raise Refused(unreadable.value(error, root, shown)) from None
    return Document(shown, data, root)


def _is_quirky(text: str) -> bool:
    in_brackets = "?" in text and ("[" in text or "{" in text)
    return in_brackets or _QUIRKS.search(text) is not None


def _child(node: yaml.Node, key: Key) -> tuple[yaml.Node, yaml.Mark] | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in reversed(node.value):
            if str(name.value) == str(key) or name.tag == _TAGS.get(type(key)):
                return value, name.start_mark
    elif isinstance(node, yaml.SequenceNode) and str(key).isdigit() and int(key) < len(node.value):
        item = node.value[int(key)]
        return item, item.start_mark
    return None
