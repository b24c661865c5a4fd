"""The JSON Schema of a stack file, for editors, derived from the dataclasses of `model`."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal

from infra.settings.model import Settings
from infra.settings.reader import PULUMIS, SECRETS, Rule, file_key, required, rule


def schema() -> dict[str, Any]:
    """The schema (draft 2020-12), without the checks across settings."""
    config = _object(Settings, top=True)
    secret = {"type": "object", "required": ["secure"], "properties": {"secure": {}}}
    config["properties"].update(dict.fromkeys(sorted(SECRETS), secret))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An environment of the platform: Pulumi.<env>.yaml",
        "type": "object",
        "required": ["config"],
        "additionalProperties": False,
        "properties": {**{key: {} for key in sorted(PULUMIS)}, "config": config},
    }


def _object(kind: type[Any], *, top: bool = False) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = [one for one in dataclasses.fields(kind) if not rule(one).internal]
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {file_key(one, top=top): _property(hints[one.name], one) for one in fields},
    }
    needed = [file_key(one, top=top) for one in fields if required(one)]
    return {**found, "required": needed} if needed else found


def _property(hint: Any, field_: dataclasses.Field[Any]) -> dict[str, Any]:
    found = {"description": rule(field_).says, **_kind(hint, rule(field_))}
    default = field_.default
    if default is not dataclasses.MISSING and default is not None:
        found["default"] = list(default) if isinstance(default, tuple) else default
    return found


def _kind(hint: Any, rule_: Rule) -> dict[str, Any]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast(type[Any], hint))
    if typing.get_origin(hint) is Literal:
        return {"enum": list(typing.get_args(hint))}
    if typing.get_origin(hint) is tuple:
        items = _kind(typing.get_args(hint)[0], dataclasses.replace(rule_, low=None, high=None))
        bounds = {"minItems": rule_.low, "maxItems": rule_.high}
        held = {key: bound for key, bound in bounds.items() if bound is not None}
        return {"type": "array", "items": items, **held}
    if hint is bool:
        return {"type": "boolean"}
    if hint is int:
        return {"type": "integer", "minimum": rule_.low or 0, "maximum": rule_.high}
    return {"type": "string", **({"pattern": f"^({rule_.form.pattern})$"} if rule_.form else {})}
