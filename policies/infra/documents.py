"""YAML in which nothing is said twice: of two, the last would hold and the first be read."""

from __future__ import annotations

from pathlib import Path

import yaml


def composed(file: Path) -> yaml.Node | None:
    """The document of a file; ValueError when it cannot be read or a key is there twice."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    try:
        if root is not None:
            _once(root, file)
    except RecursionError:
        raise ValueError(f"{file.name}: an alias inside the node that it names") from None
    return root


def line(node: yaml.Node) -> int:
    """The line that a node begins on."""
    return int(node.start_mark.line) + 1


def _once(node: yaml.Node, file: Path) -> None:
    seen: set[str] = set()
    for one in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = one if isinstance(one, tuple) else (None, one)
        if key is not None and key.value in seen:
            raise ValueError(f"{file.name}:{line(key)}: `{key.value}` twice")
        if key is not None:
            seen.add(str(key.value))
        _once(value, file)
