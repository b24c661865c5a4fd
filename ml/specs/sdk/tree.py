"""The tree of messages of a marshmallow error, read down to the ones that matter.

A union reports one branch for every alternative that did not fit; the intended branch is the one
that has most of the keys in the spec.
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
    """A position in the spec."""

    keys: tuple[Key, ...]
    node: YamlNode  # position in the YAML: in another file if the spec includes one above the node
    field: Any = None  # azure-ai-ml's; None for the root
    schema: Any = None  # azure-ai-ml's, for the root

    @property
    def value(self) -> Any:
        """Return the value of the node; None if it is missing."""
        return self.node.get()

    def child(self, key: Key, field: Any) -> Spot:
        """Return the node at `key`."""
        return Spot((*self.keys, key), self.node.child(key), field)

    def opened(self) -> Spot:
        """Return the node in the YAML file that its value names; itself if it names none."""
        value = self.value
        file = assets.included(value, self.node.folder) if isinstance(value, str) else None
        return replace(self, node=file) if file else self


@dataclass(frozen=True)
class Leaf:
    """The messages of the SDK about one node."""

    spot: Spot
    messages: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return the keys that lead to the node, across the files that the spec names."""
        return self.spot.keys


def leaves(messages: Any, node: Spot) -> Iterator[Leaf]:
    """Yield the relevant messages, each with its node."""
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
    # `TypeSensitiveUnionField` raises the messages of the first alternative only: of an inline
    # command step, those of one that runs a component; of an AutoML step, those of classification.
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


# marshmallow's keys for the two halves of an entry of a `Dict` field.
_ENTRY = frozenset({"key", "value"})


def _is_nested(messages: Any) -> bool:
    """Return True if messages are about a field inside the node, not the node itself."""
    if isinstance(messages, dict):
        return any(name not in {"_schema", None} or _is_nested(m) for name, m in messages.items())
    return isinstance(messages, list) and any(map(_is_nested, messages))


def _union(branches: list[Any], node: Spot) -> Iterator[Leaf]:
    """Yield the leaves of the intended alternative, or of all if they concern the same node."""
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
    """Return the leaf of a discriminator (`type`, `task`) if its value fits no alternative."""
    key = (*node.keys, name)
    about = [leaf for branch_leaves, _ in walked for leaf in branch_leaves if leaf.keys == key]
    values = [leaf for leaf in about if "Unknown field." not in leaf.messages]
    if name not in node.value or len(about) != len(walked) or not values:
        return []
    texts = [text for leaf in values for text in leaf.messages]
    return [Leaf(node.child(name, None), tuple(texts))]


def _best(walked: _Walked, node: Spot) -> list[Leaf]:
    return max(walked, key=lambda pair: _fit(pair[0], pair[1], node))[0]


# Where the type of a node, of the component that it runs, or the task of AutoML is written.
_TYPES = {("type",), ("component", "type"), ("trial", "type"), ("task",)}


def _fit(branch_leaves: list[Leaf], option: Any, node: Spot) -> tuple[bool, int, int]:
    """Return a sort key of how well an alternative fits: its type, its known keys, its messages."""
    depth = len(node.keys)
    about_type = any(leaf.keys[depth:] in _TYPES for leaf in branch_leaves)
    unknown = sum("Unknown field." in leaf.messages for leaf in branch_leaves)
    missing = sum("Missing data for required field." in leaf.messages for leaf in branch_leaves)
    schema = schema_for(option, node.value) if option is not None else None
    shared_keys = {str(key) for key in node.value} & (names(schema) if schema else set())
    # Of the two, a missing key says more: some schemas let unknown keys through.
    return not about_type, len(shared_keys) - unknown - 2 * missing, -len(branch_leaves)


# The SDK's schemas: fields, alternatives, allowed values.


def names(schema: Any) -> set[str]:
    """Return the keys that a mapping of this schema may have."""
    return {field.data_key or name for name, field in schema.fields.items() if not field.dump_only}


def field_named(schema: Any, key: object) -> Any:
    """Return the field of a key; None if the schema has none."""
    for name, field in schema.fields.items():
        if key in {field.data_key or name, name}:
            return field
    return None


def alternatives(field: Any) -> list[Any]:
    """Return the fields of a union, one for each branch of its messages; [] for other fields."""
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
    """Return the schema of a nested mapping; in a union, the one that fits its type or keys."""
    field = unwrapped(field)
    if isinstance(field, fields.Nested):
        return field.schema
    options = _options_for(field, value) or _mappings(alternatives(field))
    keys = {str(key) for key in value} if isinstance(value, dict) else set()
    schemas = [option.schema for option in options]
    return max(schemas, key=lambda schema: len(names(schema) & keys), default=None)


def _options_for(field: Any, value: Any) -> list[Any]:
    """Return the mappings that a union accepts for the `type` of the value."""
    written = value.get("type") if isinstance(value, dict) else None
    if written not in getattr(unwrapped(field), "allowed_types", ()):
        return []
    options = _mappings(alternatives(field))
    return [option for option in options if written in allowed(field_named(option.schema, "type"))]


def _mappings(options: Iterable[Any]) -> list[Any]:
    return [option for option in map(unwrapped, options) if isinstance(option, fields.Nested)]


def allowed(field: Any) -> list[str]:
    """Return the values of an enumeration or of a union's; [] without a restriction."""
    field = unwrapped(field)
    values = [str(value) for value in getattr(field, "allowed_values", None) or []]
    for option in alternatives(field):
        values += allowed(option)
    return list(dict.fromkeys(values))


def type_names(field: Any) -> list[str]:
    """Return the types that a field accepts, in words."""
    field = unwrapped(field)
    options = alternatives(field)
    if options:
        words = list(dict.fromkeys(word for option in options for word in type_names(option)))
        return ["a date and time"] if "a date and time" in words else words
    if type(field).__name__ == "DataBindingStr":  # every field of an AutoML step takes `${{…}}`
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
