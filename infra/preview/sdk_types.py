"""Captured inputs against the SDK's own types: names, required ones, kinds of value, enums.

The real provider does this in its Check, which needs the cloud's plugin; the SDK's Args classes say
the same. Which of several variants is meant follows from the value's discriminator
(`computeType: AmlCompute`), as the SDK documents it.
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

from infra.preview.captured import REFERENCE, SECRET, Resource

PROVIDER = "azure-native"
# An enum that names only a few of the values that there are, by its own documentation.
OPEN = frozenset({"VirtualMachineSizeTypes"})


def problems(resources: Iterable[Resource]) -> list[str]:
    """What the SDK's types do not allow, each with the resource and the path of the input."""
    found: list[str] = []
    for resource in resources:
        if resource.type.startswith(f"{PROVIDER}:"):
            kind = _args(resource.type)
            if kind is None:
                found.append(f"{resource.name}: the SDK has no resource {resource.type}")
            else:
                found.extend(_object(resource.inputs, kind, resource.name))
    return found


@functools.cache
def outputs(token: str) -> frozenset[str] | None:
    """The names of what a resource answers with, at its top; None for one that is not the SDK's."""
    made = _resource(token) if token.startswith(f"{PROVIDER}:") else None
    return frozenset(sdk.resource_types(made)) if made else None


def _resource(token: str) -> type | None:
    """The class of a resource: the module of `storage:StorageAccount` has it."""
    _, module, name = token.split(":")
    try:
        found = getattr(importlib.import_module(f"pulumi_azure_native.{module}"), name)
    except (ImportError, AttributeError):
        return None
    return typing.cast(type, found)


@functools.cache
def _args(token: str) -> type | None:
    """The Args class of a resource."""
    made = _resource(token)
    if made is None:
        return None
    name = token.split(":")[-1]
    within = sys.modules[made.__module__]
    # XInitArgs where a nested type is called XArgs already.
    found = getattr(within, f"{name}InitArgs", None) or getattr(within, f"{name}Args", None)
    return typing.cast(type | None, found)


@functools.cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Input name → its type, and whether it is required."""
    module = vars(sys.modules[kind.__module__])
    known = {**module, "Output": pulumi.Output, "Awaitable": Awaitable, "T": typing.TypeVar("T")}
    init = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    # Local names of its own: else a 'SkuArgs' of another module is taken for this one's,
    # since typing keeps what a forward reference was once found to be.
    hints = typing.get_type_hints(kind.__init__, known, {})  # type: ignore[misc]
    names = sdk.input_type_py_to_pulumi_names(kind)
    return {
        names.get(name, name): (hint, init[name].default is inspect.Parameter.empty)
        for name, hint in hints.items()
        if name != "return"
    }


def _object(value: Mapping[str, Any], kind: type, path: str) -> list[str]:
    fields = _fields(kind)
    near = ", ".join(sorted(fields))
    found = [
        f"{path}.{key}: no input of {kind.__name__} ({near})" for key in value if key not in fields
    ]
    for key, (hint, required) in fields.items():
        if key in value:
            found.extend(_value(value[key], hint, f"{path}.{key}"))
        elif required:
            found.append(f"{path}.{key}: required by {kind.__name__}")
    return found


def _value(value: Any, hint: Any, path: str) -> list[str]:
    kinds = _kinds(hint)
    if any(kind in (Any, object) for kind in kinds):
        return []
    if isinstance(value, dict):
        objects = [kind for kind in kinds if isinstance(kind, type) and sdk.is_input_type(kind)]
        if objects:
            tried = [_object(value, kind, path) for kind in _meant(value, objects)]
            return min(tried, key=len)
        mappings = [kind for kind in kinds if _origin(kind, Mapping)]
        if not mappings:
            return [f"{path}: a mapping, not {_words(kinds)}"]
        inner = typing.get_args(mappings[0])[1]
        return [one for key in value for one in _value(value[key], inner, f"{path}.{key}")]
    if isinstance(value, list):
        lists = [kind for kind in kinds if _origin(kind, Sequence)]
        if not lists:
            return [f"{path}: a list, not {_words(kinds)}"]
        inner = typing.get_args(lists[0])[0]
        return [
            one for at, each in enumerate(value) for one in _value(each, inner, f"{path}[{at}]")
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
        return [] if str in kinds else [f"{path}: made by Azure, not {_words(kinds)}"]
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
    """The alternatives of a type, without None and without what stands for a later value."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [
            kind
            for one in typing.get_args(hint)
            if one is not types.NoneType
            and not _origin(one, Awaitable)
            and not _origin(one, pulumi.Output)
            and not typing.is_typeddict(one)
            for kind in _kinds(one)
        ]
    return [hint]


def _origin(kind: Any, wanted: type) -> bool:
    found = typing.get_origin(kind)
    return isinstance(found, type) and issubclass(found, wanted)


def _meant(value: Mapping[str, Any], kinds: list[type]) -> list[type]:
    """The variants that the value's discriminator names; all of them where it has none."""
    stated = {
        _letters(one)
        for key, one in value.items()
        if isinstance(one, str) and re.search(r"type$", key, re.I)
    }
    if len(kinds) == 1 or not stated:
        return kinds
    named = [
        kind
        for kind in kinds
        if any(
            _letters(kind.__name__).startswith(one) or one.endswith(_letters(kind.__name__[:-4]))
            for one in stated
        )
    ]
    return named or kinds


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _words(kinds: Sequence[Any]) -> str:
    return " or ".join(sorted({getattr(kind, "__name__", str(kind)) for kind in kinds}))
