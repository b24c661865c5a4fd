"""Parse YAML into typed settings: pydantic validates, and every problem has a line number.

A settings file is a frozen dataclass whose `__pydantic_config__` is `CLOSED`. Its field types are
the schema. `Field(description=…)` explains a field: it is the hint of a problem and the text that
an editor shows (`schema`). Values are strict: `"4"` is not a number, `yes` is not a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError, to_json
from typing_extensions import TypedDict

from ml.core.documents import Document, Key
from ml.core.errors import Problem, UserError, nearest

# The configuration of all settings dataclasses: unknown keys are rejected, numbers are finite.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
T = TypeVar("T")

# pydantic's error type → `expected` of the problem; the error's context fills the placeholders.
_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "date_from_datetime_parsing": "a date such as 2026-06-30",
    "date_parsing": "a date such as 2026-06-30",
    "date_type": "a date such as 2026-06-30",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list: a dash before each item",
    "literal_error": "{expected}",
    "missing": "it",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length}",
    "tuple_type": "a list: a dash before each item",
}
_UNKNOWN = frozenset({"unexpected_keyword_argument", "extra_forbidden"})


def read(kind: type[T], document: Document, *keys: Key) -> T:
    """Parse the settings of type `kind` at `keys` of the document.

    Raise UserError with every problem, each with its line, what was expected and a hint.
    """
    form: Any = kind
    try:
        # Validate as JSON, where strict mode accepts a list as a tuple and a string as a date.
        value = to_json(document.get(*keys), inf_nan_mode="constants")
        return cast(T, _adapter(form).validate_json(value, strict=True))
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise UserError(
        *(
            _problem(detail, document, keys, schema(form))
            for detail in details
            if not _is_repeated(detail, details)
        )
    )


def mapping(fields: Mapping[str, Any], *, required: bool = True) -> Any:
    """Return a TypedDict type with these keys; with `required=False` all of them are optional."""
    typed_dict: Any = TypedDict
    form = typed_dict("mapping", dict(fields), total=required)
    form.__pydantic_config__ = CLOSED
    return form


def invalid(expected: str, hint: str = "", actual: str = "") -> PydanticCustomError:
    """Return an error that a pydantic validator can raise.

    `expected` says what would be right, `hint` what to type next, and `actual` what is wrong with a
    value that is a mapping.
    """
    context = {"expected": expected, "hint": hint, "actual": actual}
    return PydanticCustomError("invalid", "{expected}", context)


def _number(value: object) -> object:
    """Return the value; raise for a bool, because True equals 1 in Python."""
    if isinstance(value, bool):
        raise invalid("1")
    return value


# The `schema_version` that every settings file begins with.
SchemaVersion = Annotated[Literal[1], BeforeValidator(_number)]


@cache
def schema(kind: Any) -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a settings file, for editors."""
    document = _untitled(_adapter(kind).json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _is_repeated(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Return whether an error about a list repeats an error about one of its items."""
    keys = detail["loc"]
    return any(error["loc"][: len(keys)] == keys != error["loc"] for error in details)


def _problem(
    detail: ErrorDetails, document: Document, above: tuple[Key, ...], schema: Mapping[str, Any]
) -> Problem:
    inner: tuple[Key, ...] = tuple(key for key in detail["loc"] if key != "[key]")
    keys, kind, context = (*above, *inner), detail["type"], detail.get("ctx", {})
    name, place = dotted(keys) or "the file", document.place(*keys)
    if kind in _UNKNOWN:
        place = document.place(*keys[:-1], _yaml_key(document.get(*keys[:-1]), keys[-1]))
        allowed = list(_described(schema, inner[:-1]).get("properties", {}))
        # Compare names without their namespace, such as `platform:` in `platform:name`.
        names = {field.rpartition(":")[2]: field for field in allowed}
        near = nearest(str(inner[-1]).rpartition(":")[2], names)
        hint = f"did you mean `{names[near[0]]}`?" if near else "delete it"
        return Problem("unknown-field", f"`{name}`", "one of: " + ", ".join(allowed), hint, place)
    expected = _EXPECTED.get(kind, detail["msg"]).format(**context)
    part = _described(schema, inner)
    description = " ".join(str(part.get("description", "")).split())
    if kind == "dataclass_type":
        expected += f" with {', '.join(part.get('properties', {}))}"
    if kind == "missing":
        hint = f"add `{inner[-1]}:`" + (f" ({description})" if description else "")
        return Problem("missing-field", f"no `{name}`", description or "a value", hint, place)
    value = document.get(*keys)
    hint = str(context.get("hint") or _correction(value, kind, document, keys, context))
    finding = f"`{name}` {context.get('actual') or f'is {_shown(value)}'}"
    return Problem("wrong-value", finding, expected, hint or description, place)


def _yaml_key(mapping: object, key: Key) -> Any:
    """Return the mapping's key for a key of its JSON, where `true` and `null` are strings."""
    others = mapping if isinstance(mapping, dict) else {}
    return next((name for name in others if str(name).lower() == str(key).lower()), key)


def _correction(
    value: object, kind: str, document: Document, keys: tuple[Key, ...], context: Mapping[str, Any]
) -> str:
    """Return a hint that follows from the invalid value, such as `put it in quotes`; else ""."""
    if kind == "string_type" and document.written(*keys):
        return "put it in quotes"
    if kind in {"int_type", "float_type", "bool_type"} and isinstance(value, str):
        plain = value.replace(".", "", 1).lstrip("-").isdecimal()
        return "write it without quotes" if plain or value in {"true", "false"} else ""
    if kind == "literal_error":
        allowed = [word.strip(" '") for word in context["expected"].replace(" or ", ",").split(",")]
        folded = {word.lower(): word for word in allowed}
        near = nearest(str(value).lower(), folded)
        return f"did you mean `{folded[near[0]]}`?" if near else ""
    return ""


def dotted(keys: tuple[Key, ...]) -> str:
    """Return the keys as a dotted path: `clusters[0].size`."""
    name = ""
    for key in keys:
        name += f"[{key}]" if isinstance(key, int) else f".{key}" if name else str(key)
    return name


def _shown(value: object) -> str:
    """Return the value as a message shows it: short, and in YAML's words."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case list():
            text = f"a list of {len(value)}"
        case dict():
            text = "a mapping"
        case str():
            text = repr(value)
        case _:
            text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _described(schema: Mapping[str, Any], keys: tuple[Key, ...]) -> Mapping[str, Any]:
    """Return the part of the JSON Schema for the value at `keys`; {} if there is none."""
    part = _resolved(schema, schema)
    for key in keys:
        inner = part.get("items") if isinstance(key, int) else None
        inner = inner or part.get("properties", {}).get(key) or part.get("additionalProperties")
        part = _resolved(inner, schema) if isinstance(inner, dict) else {}
    return part


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    for choice in part.get("anyOf", ()):
        if choice.get("type") != "null":
            part = {**choice, **{key: value for key, value in part.items() if key != "anyOf"}}
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        part = {**schema["$defs"][name], **{k: v for k, v in part.items() if k != "$ref"}}
    return part


def _untitled(part: Any) -> Any:
    """Return a JSON schema without the titles that pydantic derives from names."""
    if isinstance(part, list):
        return [_untitled(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _untitled(value)
        for key, value in part.items()
        if key != "title" or not isinstance(value, str)
    }
