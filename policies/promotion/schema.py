"""One source for a document's fields, their types: reading it, what it leaves out, its JSON Schema.

A document is a tree of frozen dataclasses. Every leaf may be None: absent, of the wrong type and
null are the same. A field is required unless it is marked `optional`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

# No count, no time and no price is larger: MLflow turns infinity into a finite 1.797e308.
MOST = 1e9
# Metadata of a field that a complete document may leave out, and of one that is never read from a
# document: whoever loads one fills it in.
OPTIONAL: Mapping[str, object] = MappingProxyType({"optional": True})
AFRESH: Mapping[str, object] = MappingProxyType({"afresh": True})
T = TypeVar("T")


def number(low: float = 0.0, high: float = MOST, *, optional: bool = False) -> Any:
    """A field that holds a number from `low` to `high`."""
    about = {"low": low, "high": high, "optional": optional}
    return dataclasses.field(default=None, metadata=about)


def read(kind: type[T], document: object) -> T:
    """The document as `kind` has it; nothing in it raises."""
    found: T = _value(kind, document)
    return found


def missing(found: Any, above: str = "") -> Iterator[str]:
    """The path of every required field that is absent, empty, not finite or out of its bounds."""
    for field, kind in _fields_of(found):
        value, path = getattr(found, field.name), above + field.name
        about = field.metadata
        if value is None or (_is_plain_collection(kind) and not value):
            if not about.get("optional"):
                yield path
        elif isinstance(value, float) and not about.get("low", value) <= value <= about.get(
            "high", value
        ):
            yield path
        else:
            yield from _missing_inside(value, path)


def json_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a complete document, for editors and other readers."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind.__name__}
    return about | _described(kind)


def _missing_inside(value: Any, path: str) -> Iterator[str]:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield path
    elif dataclasses.is_dataclass(value):
        yield from missing(value, f"{path}.")
    elif isinstance(value, Mapping | tuple | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            if inner == {}:
                yield f"{path}.{key}"
            yield from _missing_inside(inner, f"{path}.{key}")


@cache
def _fields(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """The fields that a document states, with their types."""
    hints = get_type_hints(kind)
    every = dataclasses.fields(kind)
    return tuple((one, hints[one.name]) for one in every if not one.metadata.get("afresh"))


def _fields_of(found: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    kind: Any = type(found)
    return _fields(kind)


def _is_document(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _is_plain_collection(kind: Any) -> bool:
    return get_origin(kind) in (Mapping, tuple)


def _value(kind: Any, found: object) -> Any:
    if _is_document(kind):
        stated = found if isinstance(found, Mapping) else {}
        return kind(
            **{field.name: _value(of, stated.get(field.name)) for field, of in _fields(kind)}
        )
    if get_origin(kind) is UnionType:
        (inner,) = (one for one in get_args(kind) if one is not NoneType)
        if _is_plain_collection(inner):
            right = list if get_origin(inner) is tuple else Mapping
            return _value(inner, found) if isinstance(found, right) else None
        return _leaf(inner, found)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(_value(inner, one) for one in found) if isinstance(found, list) else ()
    if get_origin(kind) is Mapping:
        inner = get_args(kind)[1]
        stated = found if isinstance(found, Mapping) else {}
        return {str(key): _value(inner, one) for key, one in stated.items()}
    # In a list of texts, what is none still counts.
    return str(found) if kind is str else found


def _leaf(kind: type, found: object) -> Any:
    if kind is str:
        return found.strip() or None if isinstance(found, str) else None
    if kind is bool:
        return found if isinstance(found, bool) else None
    if kind is datetime:
        return _time(found)
    # True is an int to Python; as a number it is a mistake.
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found)
    except OverflowError:
        return math.inf


def _time(found: object) -> datetime | None:
    try:
        when = datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None
    # A time without a zone could be hours old or hours ahead: it says nothing.
    return when if when is not None and when.tzinfo is not None else None


_LEAVES: Mapping[type, Mapping[str, Any]] = {
    str: {"type": "string", "minLength": 1},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
}


def _described(kind: Any) -> dict[str, Any]:
    if _is_document(kind):
        every = _fields(kind)
        return {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {field.name: _property(field, of) for field, of in every},
            "required": [field.name for field, _ in every if not field.metadata.get("optional")],
        }
    if get_origin(kind) is UnionType:
        (inner,) = (one for one in get_args(kind) if one is not NoneType)
        return _described(inner)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _described(get_args(kind)[0])}
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _described(get_args(kind)[1])}
    return dict(_LEAVES.get(kind, {}))


def _property(field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    found = _described(kind)
    bounds = (("minimum", "low"), ("maximum", "high"))
    found |= {name: field.metadata[key] for name, key in bounds if key in field.metadata}
    if not field.metadata.get("optional"):
        if _is_plain_collection(kind):
            found |= {"minItems" if get_origin(kind) is tuple else "minProperties": 1}
        return found
    return found if _is_plain_collection(kind) else {"anyOf": [found, {"type": "null"}]}
