"""Checks captured inputs against the SDK's types: names, required inputs, value types, enums.

The real provider does this in its Check, which needs the provider's plugin; the SDK's Args classes
define the same types. Of several variants, the discriminator of a value (`computeType: AmlCompute`)
selects one, as the SDK documents.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

import pulumi
from pulumi import _types as sdk

from infra.preview.capture import REFERENCE, SECRET, Resource

PROVIDER = "azure-native"
# Enums that list only some of the allowed values, according to their documentation.
OPEN = frozenset({"VirtualMachineSizeTypes"})


def problems(resources: Iterable[Resource]) -> list[str]:
    """Return a problem for each input that the SDK's types do not allow, with resource and path."""
    problems: list[str] = []
    for resource in resources:
        if resource.type.startswith(f"{PROVIDER}:"):
            kind = _args(resource.type)
            if kind is None:
                problems.append(f"{resource.name}: the SDK has no resource {resource.type}")
            else:
                problems.extend(_object(resource.inputs, kind, resource.name))
    return problems


@functools.cache
def outputs(token: str) -> frozenset[str] | None:
    """Return the names of a resource's top-level outputs; None if it is not of azure-native."""
    kind = _resource(token) if token.startswith(f"{PROVIDER}:") else None
    return frozenset(sdk.resource_types(kind)) if kind else None


def answer(token: str, label: str) -> dict[str, Any]:
    """Return placeholder outputs of a resource, or of an invoke such as `storage:getBlob`.

    Strings, also nested ones, are `${label.output}`; lists are empty; other types are omitted.
    """
    provider, module, name = token.split(":")
    name = f"G{name[1:]}Result" if name.startswith("get") else name
    kind = _resource(f"{provider}:{module}:{name}") if provider == PROVIDER else None
    if kind is None:
        return {}
    names = sdk.output_type_types if sdk.is_output_type(kind) else sdk.resource_types
    return _answered(names(kind), label, 3)


def _answered(outputs: Mapping[str, Any], label: str, depth: int) -> dict[str, Any]:
    answered: dict[str, Any] = {}
    for name, hint in outputs.items():
        kind = _kinds(hint)[0]
        if kind is str:
            answered[name] = f"${{{label}.{name}}}"
        elif _origin(kind, Sequence):
            answered[name] = []
        elif isinstance(kind, type) and sdk.is_output_type(kind) and depth:
            answered[name] = _answered(sdk.output_type_types(kind), f"{label}.{name}", depth - 1)
    return answered


def _resource(token: str) -> type | None:
    """Return the SDK's class of a type token; None if the SDK lacks it."""
    _, module, name = token.split(":")
    try:
        kind = getattr(importlib.import_module(f"pulumi_azure_native.{module}"), name)
    except (ImportError, AttributeError):
        return None
    return typing.cast(type, kind)


@functools.cache
def _args(token: str) -> type | None:
    """Return the Args class of a resource; None if the SDK lacks the resource."""
    resource = _resource(token)
    if resource is None:
        return None
    name = token.split(":")[-1]
    module = sys.modules[resource.__module__]
    # The class is called XInitArgs if a nested type is already called XArgs.
    args = getattr(module, f"{name}InitArgs", None) or getattr(module, f"{name}Args", None)
    return typing.cast(type | None, args)


@functools.cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Return input name → (type, whether it is required)."""
    module = vars(sys.modules[kind.__module__])
    scope = {**module, "Output": pulumi.Output, "Awaitable": Awaitable, "T": typing.TypeVar("T")}
    init = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    # A separate local scope, because typing caches forward references: otherwise the 'SkuArgs' of
    # another module would be used.
    hints = typing.get_type_hints(kind.__init__, scope, {})  # type: ignore[misc]
    names = sdk.input_type_py_to_pulumi_names(kind)
    return {
        names.get(name, name): (hint, init[name].default is inspect.Parameter.empty)
        for name, hint in hints.items()
        if name != "return"
    }


def _object(value: Mapping[str, Any], kind: type, path: str) -> list[str]:
    fields = _fields(kind)
    near = ", ".join(sorted(fields))
    problems = [
        f"{path}.{key}: not an input of {kind.__name__} ({near})"
        for key in value
        if key not in fields
    ]
    for key, (hint, required) in fields.items():
        if key in value:
            problems.extend(_value(value[key], hint, f"{path}.{key}"))
        elif required:
            problems.append(f"{path}.{key}: required by {kind.__name__}")
    return problems


def _value(value: Any, hint: Any, path: str) -> list[str]:
    kinds = _kinds(hint)
    if any(kind in (Any, object) for kind in kinds):
        return []
    if isinstance(value, dict):
        objects = [kind for kind in kinds if isinstance(kind, type) and sdk.is_input_type(kind)]
        if objects:
            variants = [_object(value, kind, path) for kind in _variants(value, objects)]
            return min(variants, key=len)
        mappings = [kind for kind in kinds if _origin(kind, Mapping)]
        if not mappings:
            return [f"{path}: a mapping, not {_words(kinds)}"]
        inner = typing.get_args(mappings[0])[1]
        return [problem for key in value for problem in _value(value[key], inner, f"{path}.{key}")]
    if isinstance(value, list):
        lists = [kind for kind in kinds if _origin(kind, Sequence)]
        if not lists:
            return [f"{path}: a list, not {_words(kinds)}"]
        inner = typing.get_args(lists[0])[0]
        return [
            problem
            for index, item in enumerate(value)
            for problem in _value(item, inner, f"{path}[{index}]")
        ]
    return _scalar(value, kinds, path)


def _scalar(value: Any, kinds: Sequence[Any], path: str) -> list[str]:
    allowed = [
        str(member.value)
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and kind.__name__ not in OPEN
        for member in kind
    ]
    if isinstance(value, str) and (value == SECRET or REFERENCE.search(value)):
        return [] if str in kinds else [f"{path}: created by Azure, not {_words(kinds)}"]
    if allowed:
        return [] if value in allowed else [f"{path}: {value!r}, not one of {', '.join(allowed)}"]
    fits = (
        bool in kinds
        if isinstance(value, bool)
        else int in kinds or float in kinds
        if isinstance(value, int)
        else float in kinds
        if isinstance(value, float)
        else str in kinds
    )
    return [] if fits else [f"{path}: {value!r}, not {_words(kinds)}"]


def _kinds(hint: Any) -> list[Any]:
    """Return the alternatives of a union type, without None, Awaitable, Output and TypedDicts."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [
            kind
            for alternative in typing.get_args(hint)
            if alternative is not types.NoneType
            and not _origin(alternative, Awaitable)
            and not _origin(alternative, pulumi.Output)
            and not typing.is_typeddict(alternative)
            for kind in _kinds(alternative)
        ]
    return [hint]


def _origin(kind: Any, wanted: type) -> bool:
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, wanted)


def _variants(value: Mapping[str, Any], kinds: list[type]) -> list[type]:
    """Return the variants that the value's discriminator selects; all if it selects none."""
    discriminators = {
        _letters(item)
        for key, item in value.items()
        if isinstance(item, str) and re.search(r"type$", key, re.I)
    }
    if len(kinds) == 1 or not discriminators:
        return kinds
    named = [
        kind
        for kind in kinds
        if any(
            _letters(kind.__name__).startswith(name) or name.endswith(_letters(kind.__name__[:-4]))
            for name in discriminators
        )
    ]
    return named or kinds


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _words(kinds: Sequence[Any]) -> str:
    return " or ".join(sorted({getattr(kind, "__name__", str(kind)) for kind in kinds}))
