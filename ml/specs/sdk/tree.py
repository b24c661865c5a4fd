"""Extracts the relevant messages from the tree of a marshmallow error.

A union field reports errors of every alternative. The alternative that the author meant is the one
with most of the spec's keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from marshmallow import fields

from ml.core.documents import Key
from ml.specs.assets import assets
from ml.specs.yaml_node import YamlNode


@dataclass(frozen=True)
class Spot:
    """A position in the spec, with the SDK's field or schema for it."""

    keys: tuple[Key, ...]
    node: YamlNode  # the position in YAML, maybe in a file that the spec references
    field: Any = None  # marshmallow field; None for the root
    schema: Any = None  # marshmallow schema of the root or of a chosen alternative

    @property
    def value(self) -> Any:
        """Return the value of the node; None if it is missing."""
        return self.node.get()

    def child(self, key: Key, field: Any) -> Spot:
        """Return the position at `key` below this one; `field` is its marshmallow field."""
        return Spot((*self.keys, key), self.node.child(key), field)

    def opened(self) -> Spot:
        """Return the root of the YAML file that the value names; itself if it names none."""
        value = self.value
        file = assets.read_referenced(value, self.node.folder) if isinstance(value, str) else None
        return replace(self, node=file) if file else self


@dataclass(frozen=True)
class Leaf:
    """The SDK's messages about one position."""

    spot: Spot
    messages: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return the keys from the root of the spec to the position, across files."""
        return self.spot.keys


def leaves(messages: Any, node: Spot) -> Iterator[Leaf]:
    """Yield the relevant messages below `node`, each with its position."""
    if _is_nested(messages):
        node = node.opened()
    if isinstance(messages, dict):
        yield from _mapping(messages, node)
    elif isinstance(messages, list) and not any(isinstance(text, str) for text in messages):
        yield from _union(messages, node)
    else:
        texts = [messages] if not isinstance(messages, list) else messages
        yield Leaf(node, tuple(str(text) for text in texts))


def _mapping(messages: dict[Any, Any], node: Spot) -> Iterator[Leaf]:
    # `TypeSensitiveUnionField` only reports the first alternative: a step with a component for an
    # inline command step, classification for any AutoML step. So validate each alternative.
    options = _options_for(node.field, node.value) if node.schema is None else []
    if len(options) > 1 and any(name not in node.value or name == "task" for name in messages):
        walked = [
            (list(leaves(option.schema.validate(node.value), spot)), option)
            for option in options
            for spot in [replace(node, field=option, schema=option.schema)]
        ]
        yield from _of_key("task", walked, node) or _best(walked, node)
        return
    schema = node.schema
    if schema is None and node.field is not None:
        schema = schema_for(node.field, node.value)
    for name, below in messages.items():
        if name == "_schema" or name is None:
            yield from leaves(below, node if name else replace(node, schema=None))
        elif schema is not None:
            field = field_named(schema, name)
            spot = replace(node.child(name, field), schema=None if field else schema)
            yield from leaves(below, spot)
        else:
            entry = entry_field(node.field)
            is_entry = entry is not None and isinstance(below, dict) and set(below) <= _ENTRY
            below = below.get("value", below.get("key")) if is_entry else below
            yield from leaves(below, node.child(name, entry))


# marshmallow's keys for messages about an entry of a `Dict` field.
_ENTRY = frozenset({"key", "value"})


def _is_nested(messages: Any) -> bool:
    """Return True if messages concern a field inside the node, not the node itself."""
    if isinstance(messages, dict):
        return any(name not in {"_schema", None} or _is_nested(m) for name, m in messages.items())
    return isinstance(messages, list) and any(map(_is_nested, messages))


def _union(branches: list[Any], node: Spot) -> Iterator[Leaf]:
    """Yield the leaves of the best alternative, or of all if they concern the same node."""
    options = alternatives(node.field)
    if len(options) != len(branches):
        options = [None] * len(branches)
    walked = [
        (list(leaves(branch, replace(node, field=option, schema=None))), option)
        for branch, option in zip(branches, options, strict=True)
    ]
    nested = [pair for pair in walked if any(leaf.keys != node.keys for leaf in pair[0])]
    if not isinstance(node.value, dict) or not nested:
        texts = [
            text for branch_leaves, _ in walked for leaf in branch_leaves if leaf.keys == node.keys
            for text in leaf.messages
        ]  # fmt: skip
        yield Leaf(replace(node, schema=None), tuple(dict.fromkeys(texts)))
        return
    yield from _of_key("type", nested, node) or _best(nested, node)


# The leaves of an alternative, and its field.
_Walked = list[tuple[list[Leaf], Any]]


def _of_key(name: str, walked: _Walked, node: Spot) -> list[Leaf]:
    """Return the leaf of the field `name` (`type`, `task`) if no alternative accepts its value.

    Else return [].
    """
    key = (*node.keys, name)
    about = [leaf for branch_leaves, _ in walked for leaf in branch_leaves if leaf.keys == key]
    values = [leaf for leaf in about if "Unknown field." not in leaf.messages]
    if name not in node.value or len(about) != len(walked) or not values:
        return []
    texts = [text for leaf in values for text in leaf.messages]
    return [Leaf(node.child(name, None), tuple(texts))]


def _best(walked: _Walked, node: Spot) -> list[Leaf]:
    return max(walked, key=lambda pair: _fit(pair[0], pair[1], node))[0]


# Keys of the type of a node or its component, and of the task of AutoML.
_TYPES = {("type",), ("component", "type"), ("trial", "type"), ("task",)}


def _fit(branch_leaves: list[Leaf], option: Any, node: Spot) -> tuple[bool, int, int]:
    """Return a sort key: whether the type fits, known keys, few messages; the best is largest."""
    depth = len(node.keys)
    about_type = any(leaf.keys[depth:] in _TYPES for leaf in branch_leaves)
    unknown = sum("Unknown field." in leaf.messages for leaf in branch_leaves)
    missing = sum("Missing data for required field." in leaf.messages for leaf in branch_leaves)
    schema = schema_for(option, node.value) if option is not None else None
    shared_keys = {str(key) for key in node.value} & (names(schema) if schema else set())
    # A missing key weighs more than an unknown one, since some schemas accept unknown keys.
    return not about_type, len(shared_keys) - unknown - 2 * missing, -len(branch_leaves)


# Access to the SDK's marshmallow schemas: fields, alternatives, allowed values.


def names(schema: Any) -> set[str]:
    """Return the keys that a mapping of this schema may have."""
    return {field.data_key or name for name, field in schema.fields.items() if not field.dump_only}


def field_named(schema: Any, key: object) -> Any:
    """Return the schema's field for a key; None if it has none."""
    for name, field in schema.fields.items():
        if key in {field.data_key or name, name}:
            return field
    return None


def alternatives(field: Any) -> list[Any]:
    """Return the alternatives of a union, in the order of its messages; [] for other fields."""
    return list(getattr(unwrapped(field), "union_fields", []))


def unwrapped(field: Any) -> Any:
    """Return the field inside the SDK's wrapper of experimental fields."""
    while hasattr(field, "experimental_field"):
        field = field.experimental_field
    return field


def entry_field(field: Any) -> Any:
    """Return the field of the entries of a mapping or list; None for any other field."""
    field = unwrapped(field)
    for option in [field, *alternatives(field)]:
        option = unwrapped(option)
        if isinstance(option, fields.Dict):
            return option.value_field
        if isinstance(option, fields.List):
            return option.inner
    return None


def schema_for(field: Any, value: Any) -> Any:
    """Return the schema of a nested mapping; for a union, the one that fits `type` or most keys."""
    field = unwrapped(field)
    if isinstance(field, fields.Nested):
        return field.schema
    options = _options_for(field, value) or _mappings(alternatives(field))
    keys = {str(key) for key in value} if isinstance(value, dict) else set()
    schemas = [option.schema for option in options]
    return max(schemas, key=lambda schema: len(names(schema) & keys), default=None)


def _options_for(field: Any, value: Any) -> list[Any]:
    """Return the nested fields of a union that accept the `type` of the value."""
    written = value.get("type") if isinstance(value, dict) else None
    if written not in getattr(unwrapped(field), "allowed_types", ()):
        return []
    options = _mappings(alternatives(field))
    return [option for option in options if written in allowed(field_named(option.schema, "type"))]


def _mappings(options: Iterable[Any]) -> list[Any]:
    return [option for option in map(unwrapped, options) if isinstance(option, fields.Nested)]


def allowed(field: Any) -> list[str]:
    """Return the allowed values of a field or of its alternatives; [] without a restriction."""
    field = unwrapped(field)
    values = [str(value) for value in getattr(field, "allowed_values", None) or []]
    for option in alternatives(field):
        values += allowed(option)
    return list(dict.fromkeys(values))


def type_names(field: Any) -> list[str]:
    """Return the types that a field accepts, in words such as "an integer"; [] if unknown."""
    field = unwrapped(field)
    options = alternatives(field)
    if options:
        words = list(dict.fromkeys(word for option in options for word in type_names(option)))
        return ["a date and time"] if "a date and time" in words else words
    if type(field).__name__ == "DataBindingStr":  # every field of an AutoML step accepts `${{…}}`
        return []
    for kind, word in _WORDS:
        if isinstance(field, kind):
            return [word]
    return []


_WORDS: list[tuple[type, str]] = [
    (fields.Integer, "an integer"),
    (fields.Float, "a number"),
    (fields.Boolean, "true or false"),
    (fields.DateTime, "a date and time"),
    (fields.Url, "a URL"),
    (fields.String, "text"),
    (fields.Nested, "a mapping"),
    (fields.Mapping, "a mapping"),
    (fields.List, "a list"),
]
