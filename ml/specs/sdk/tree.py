"""The tree of messages of a marshmallow error, read down to the ones that matter.

A union reports one branch for every alternative that did not fit; the intended branch is the one
that has most of the keys in the spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Document, Key, read
from ml.core.errors import Refused
from ml.specs.assets import assets
from ml.specs.sdk import fields


@dataclass(frozen=True)
class Leaf:
    """One message of the SDK: its keys, its texts, and the field of the schema."""

    keys: tuple[Key, ...]
    messages: tuple[str, ...]
    field: Any
    schema: Any


@dataclass(frozen=True)
class Spot:
    """A node of the spec: the keys that lead to it, its value, and the SDK's field or schema."""

    keys: tuple[Key, ...]
    value: Any
    field: Any = None
    schema: Any = None

    def child(self, key: Key, field: Any) -> Spot:
        """The node at `key`; a missing node has the value None."""
        value = self.value
        below = None
        if isinstance(value, dict):
            below = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            below = value[key]
        return Spot((*self.keys, key), below, field)


def included(written: str, folder: Path) -> tuple[Document, Path] | None:
    """The YAML file that a text names, and where it is; None when it names none."""
    path = assets.local(written, folder)
    try:
        if path is not None and path.is_file():
            stat = path.stat()
            return _read(path, repository.shown(path), stat.st_mtime_ns, stat.st_size), path
    except (OSError, ValueError, Refused):
        pass
    return None


@lru_cache(maxsize=256)
def _read(path: Path, display_path: str, mtime_ns: int, size: int) -> Document:
    """A file that many specs name, read once until it changes."""
    return read(path, display_path)


def leaves(messages: Any, at: Spot, folder: Path) -> Iterator[Leaf]:
    """The messages that matter, each with its node; `folder` is what paths are relative to."""
    if isinstance(messages, dict | list) and isinstance(at.value, str) and _is_nested(messages):
        inside = included(at.value, folder)
        if inside:
            at, folder = replace(at, value=inside[0].data), inside[1].parent
    if isinstance(messages, dict):
        yield from _mapping(messages, at, folder)
    elif isinstance(messages, list) and not any(isinstance(text, str) for text in messages):
        yield from _union(messages, at, folder)
    else:
        texts = [messages] if not isinstance(messages, list) else messages
        yield Leaf(at.keys, tuple(str(text) for text in texts), at.field, at.schema)


def _mapping(messages: dict[Any, Any], at: Spot, folder: Path) -> Iterator[Leaf]:
    others = fields.others_of_type(at.field, at.value) if at.schema is None else []
    if others and any(name not in at.value for name in messages):
        walked = [
            (
                list(
                    leaves(option_messages, Spot(at.keys, at.value, option, option.schema), folder)
                ),
                option,
            )
            for option, option_messages in others
        ]
        yield from max(walked, key=lambda pair: _fit(pair[0], pair[1], at))[0]
        return
    schema = at.schema
    if schema is None and at.field is not None:
        schema = fields.schema_for(at.field, at.value)
    for name, below in messages.items():
        if name == "_schema" or name is None:
            yield from leaves(below, at if name else replace(at, schema=None), folder)
        elif schema is not None:
            field = fields.field_named(schema, name)
            spot = replace(at.child(name, field), schema=None if field else schema)
            yield from leaves(below, spot, folder)
        else:
            inner = fields.inner(at.field)
            is_entry = inner is not None and isinstance(below, dict) and set(below) <= _ENTRY
            below = below.get("value", below.get("key")) if is_entry else below
            yield from leaves(below, at.child(name, inner), folder)


# marshmallow's keys for the two halves of an entry of a `Dict` field.
_ENTRY = frozenset({"key", "value"})


def _is_nested(messages: Any) -> bool:
    """Whether messages are about something inside the node, not the node itself."""
    if isinstance(messages, dict):
        return any(name not in {"_schema", None} or _is_nested(m) for name, m in messages.items())
    return isinstance(messages, list) and any(map(_is_nested, messages))


def _union(branches: list[Any], at: Spot, folder: Path) -> Iterator[Leaf]:
    """The leaves of the intended alternative, or of all when they concern the same node."""
    options = fields.alternatives(at.field)
    if len(options) != len(branches):
        options = [None] * len(branches)
    walked = [
        (list(leaves(branch, replace(at, field=option, schema=None), folder)), option)
        for branch, option in zip(branches, options, strict=True)
    ]
    nested = [pair for pair in walked if any(leaf.keys != at.keys for leaf in pair[0])]
    if not isinstance(at.value, dict) or not nested:
        texts = [
            text for branch_leaves, _ in walked for leaf in branch_leaves if leaf.keys == at.keys
            for text in leaf.messages
        ]  # fmt: skip
        yield Leaf(at.keys, tuple(dict.fromkeys(texts)), at.field, None)
        return
    key = (*at.keys, "type")
    about_type = [leaf for branch_leaves, _ in nested for leaf in branch_leaves if leaf.keys == key]
    values = [leaf for leaf in about_type if "Unknown field." not in leaf.messages]
    if "type" in at.value and len(about_type) == len(nested) and values:
        yield Leaf(key, tuple(text for leaf in values for text in leaf.messages), None, None)
        return
    yield from max(nested, key=lambda pair: _fit(pair[0], pair[1], at))[0]


# Where the type of a node, or of the component that it runs, is written.
_TYPES = {("type",), ("component", "type"), ("trial", "type")}


def _fit(branch_leaves: list[Leaf], option: Any, at: Spot) -> tuple[bool, int, int]:
    """How well an alternative fits a mapping: its type, its known keys, its messages."""
    depth = len(at.keys)
    about_type = any(leaf.keys[depth:] in _TYPES for leaf in branch_leaves)
    unknown = sum("Unknown field." in leaf.messages for leaf in branch_leaves)
    missing = sum("Missing data for required field." in leaf.messages for leaf in branch_leaves)
    schema = fields.schema_for(option, at.value) if option is not None else None
    known_keys = {str(key) for key in at.value} & (fields.names(schema) if schema else set())
    # Of the two, a missing key says more: some schemas let unknown keys through.
    return not about_type, len(known_keys) - unknown - 2 * missing, -len(branch_leaves)
