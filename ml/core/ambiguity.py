"""What PyYAML lets through although no spec means it: refused before the SDK sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from ml.core.errors import Place, Problem, Refused

_MERGE = "tag:yaml.org,2002:merge"  # `<<` may stand twice: each merges
MAX_DEPTH = 64
MAX_NODES = 100_000  # after aliases are followed: what the SDK would walk


def refuse_depth(text: str, shown: str, loader_class: Any) -> None:
    """Refuse text nested too deep before the recursive composer sees it.

    Deep text needs many brackets or a line that starts far in; anything else is let through
    without counting.
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
            found = f"more than {MAX_DEPTH} levels of nesting"
            raise Refused(Problem("too-deep", found, "a spec that a person can read", place=place))


_INDENT = re.compile(r"^[ \t]*(?:[-?:][ \t]+)*", re.MULTILINE)


def ambiguities(root: yaml.Node, shown: str) -> Iterator[Problem]:
    """Duplicate keys, NUL, and aliases that make a circle or more nodes than anybody wrote."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def at(mark: yaml.Mark) -> Place:
        return Place(shown, mark.line + 1)

    def visit(node: yaml.Node) -> Iterator[Problem]:
        if id(node) in sizes:
            return
        if id(node) in open_nodes:
            sizes[id(node)] = 1
            found = "an alias inside the node that it names"
            hint = "write out what the alias stands for"
            yield Problem("recursive-alias", found, "a tree", hint, at(node.start_mark))
            return
        open_nodes.add(id(node))
        size = 1
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:
                yield nul(at(node.start_mark))
        else:
            if isinstance(node, yaml.MappingNode):
                yield from _duplicates(node, shown)
                children: Sequence[yaml.Node] = [part for pair in node.value for part in pair]
            else:
                children = node.value
            for child in children:
                yield from visit(child)
                size += sizes[id(child)]
        sizes[id(node)] = size
        open_nodes.discard(id(node))

    yield from visit(root)
    if sizes[id(root)] > MAX_NODES:
        found = f"aliases that grow into {sizes[id(root)]:,} nodes"
        expected, hint = f"at most {MAX_NODES:,}", "write out what the aliases stand for, or less"
        yield Problem("alias-bomb", found, expected, hint, at(root.start_mark))


def _duplicates(node: yaml.MappingNode, shown: str) -> Iterator[Problem]:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if name in seen:
            yield Problem(
                "duplicate-key",
                f"`{key.value}` is here and on line {seen[name]}",
                "each key once",
                "delete one; most readers silently take the last",
                Place(shown, line),
                source="YAML 1.2.2, 3.2.1.3: keys are unique",
            )
        seen.setdefault(name, line)


def nul(place: Place) -> Problem:
    """The problem of a NUL, which ends a text for the shell and for nobody else."""
    return Problem("nul-character", "a NUL character", "text", "delete it", place)
