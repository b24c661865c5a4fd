"""Reads the SDK's marshmallow schemas: fields, alternatives, allowed values."""

from __future__ import annotations

from typing import Any

from marshmallow import fields


def names(schema: Any) -> set[str]:
    """The keys that a person may write in a mapping of this schema."""
    return {field.data_key or name for name, field in schema.fields.items() if not field.dump_only}


def field_named(schema: Any, key: object) -> Any:
    """The field of a key; None when the schema has none."""
    for name, field in schema.fields.items():
        if key in {field.data_key or name, name}:
            return field
    return None


def alternatives(field: Any) -> list[Any]:
    """The fields of a union, one for each branch of its messages; [] for any other field."""
    field = unwrapped(field)
    return list(getattr(field, "_union_fields", []))


def unwrapped(field: Any) -> Any:
    """The field inside an experimental one."""
    while hasattr(field, "_experimental_field"):
        field = field._experimental_field
    return field


def inner(field: Any) -> Any:
    """The field of the entries of a mapping or list; None for any other field."""
    field = unwrapped(field)
    for option in [field, *alternatives(field)]:
        option = unwrapped(option)
        if isinstance(option, fields.Dict):
            return option.value_field
        if isinstance(option, fields.List):
            return option.inner
    return None


def schema_for(field: Any, value: Any) -> Any:
    """The schema of a nested mapping; in a union, the one that fits the value's type or keys."""
    field = unwrapped(field)
    if isinstance(field, fields.Nested):
        return field.schema
    by_type = getattr(field, "_type_sensitive_fields_dict", {})
    written = value.get("type") if isinstance(value, dict) else None
    options = by_type.get(written) if isinstance(written, str) else None
    nested = [
        option.schema
        for option in map(unwrapped, options or alternatives(field))
        if isinstance(option, fields.Nested)
    ]
    keys = {str(key) for key in value} if isinstance(value, dict) else set()
    return max(nested, key=lambda schema: len(names(schema) & keys), default=None)


def others_of_type(field: Any, value: Any) -> list[tuple[Any, Any]]:
    """The messages of each alternative for the value's type; [] when there is only one.

    `TypeSensitiveUnionField` raises the messages of the first alternative only: of a command step
    that is written in place, those of one that runs a component.
    """
    by_type = getattr(unwrapped(field), "_type_sensitive_fields_dict", {})
    written = value.get("type") if isinstance(value, dict) else None
    options = by_type.get(written) if isinstance(written, str) else None
    nested = [
        option for option in map(unwrapped, options or []) if isinstance(option, fields.Nested)
    ]
    return [(option, option.schema.validate(value)) for option in nested] if len(nested) > 1 else []


def allowed(field: Any) -> list[str]:
    """The values of an enumeration or of a union's enumerations; [] without a restriction."""
    field = unwrapped(field)
    values = [str(value) for value in getattr(field, "allowed_values", None) or []]
    for option in alternatives(field):
        values += allowed(option)
    return list(dict.fromkeys(values))


def type_names(field: Any) -> list[str]:
    """The types that a field accepts, in words."""
    field = unwrapped(field)
    options = alternatives(field)
    if options:
        return list(dict.fromkeys(word for option in options for word in type_names(option)))
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
