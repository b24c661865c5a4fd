"""Translates a message of azure-ai-ml into a problem of this repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ml.core.documents import Document, Key
from ml.core.errors import Problem, nearest
from ml.specs.check import secrets
from ml.specs.check.kinds import JOBS, Kind
from ml.specs.expressions import did_you_mean
from ml.specs.plan.plan import LITERALS
from ml.specs.sdk import fields
from ml.specs.sdk.tree import included

SOURCE = "azure-ai-ml 1.35, the loader that `az ml` uses"

_NOT_IN_SET = re.compile(r"Value (?P<value>.*) passed is not in set (?P<set>\[.*\])", re.DOTALL)
_NOT_FOUND = re.compile(
    r"Can't find .* in resolved absolute path: (?P<resolved>.*?)\.?$"
    r"|(?:\[Errno 2\] )?No such file or directory: '?(?P<opened>[^'\n]*)"
)
_TYPES = re.compile(
    r"Not a valid (\w+)|Invalid (input )?type|Given value is not a string|is not supported for"
)
_UNSUPPORTED = re.compile(r"Unsupported (task|job) type: (.*?)\.?$")
TASKS = frozenset(
    {"classification", "regression", "forecasting", "image_classification"}
    | {"image_classification_multilabel", "image_object_detection"}
    | {"image_instance_segmentation", "text_classification", "text_ner"}
    | {"text_classification_multilabel"}
)
_NAMES = {
    bool: "true/false",
    int: "the integer",
    float: "the number",
    str: "the text",
    dict: "a mapping",
    list: "a list",
    type(None): "empty",
}


def problem(
    keys: tuple[Key, ...],
    messages: tuple[str, ...],
    field: Any,
    schema: Any,
    kind: Kind,
    document: Document,
) -> Problem:
    """One problem from the messages about the node at `keys`."""
    code, message, expected, hint = _words(keys, messages, field, schema, kind, document)
    return Problem(code, message, expected, hint, document.place(*keys), source=SOURCE)


def follow(
    keys: tuple[Key, ...], document: Document, file: Path
) -> tuple[Document, tuple[Key, ...]]:
    """The document with the node at `keys`, which may be another file that the spec names."""
    value = document.data
    for depth, key in enumerate(keys):
        if isinstance(value, str):
            inside = included(value, file.parent)
            return follow(keys[depth:], *inside) if inside else (document, keys)
        value = value.get(key) if isinstance(value, dict) else None
    return document, keys


def _words(
    keys: tuple[Key, ...],
    messages: tuple[str, ...],
    field: Any,
    schema: Any,
    kind: Kind,
    document: Document,
) -> tuple[str, str, str, str]:
    name = _name(keys)
    owner = _owner(keys, kind)
    text = " ".join(messages)
    if "Unknown field." in messages:
        field_names = sorted(fields.names(schema)) if schema is not None else []
        hint = did_you_mean(name, field_names)
        expected = "" if hint or not field_names else f"one of {', '.join(field_names)}"
        return "unknown-field", f"`{name}` is not a field of {owner}", expected, hint
    if "Missing data for required field." in messages:
        beside = document.get(*keys[:-1])
        # Fields of the schema are not misspellings of the missing one.
        around = getattr(field, "parent", None)
        right = fields.names(around) if hasattr(around, "fields") else set()
        siblings = beside if isinstance(beside, dict) else {}
        unknown_keys = [str(key) for key in siblings if key not in right]
        hint = (
            f"the spec has `{misspelt[0]}`"
            if (misspelt := nearest(name, unknown_keys))
            else _values_hint(field)
        )
        return "missing-field", f"{owner} has no `{name}`", f"`{name}:`", hint
    value = document.get(*keys)
    message = (
        f"`{name}` is {in_words(name, value)}" if name else f"the file is {in_words(name, value)}"
    )
    path = not_found(messages)
    if path:
        setting = f"`{name}: {value}`" if isinstance(value, str) else f"`{name}`"
        hint = f"looked for {path}"
        return (
            "missing-file",
            f"{setting} does not exist on this machine",
            "a path that exists",
            hint,
        )
    expected_types = _wanted(field, messages)
    allowed = _listed(messages) or fields.allowed(field)
    if _NOT_IN_SET.search(text) and allowed and "text" not in fields.type_names(field):
        near = did_you_mean(str(value), allowed)
        if "inputs" in keys[-3:-2] and name == "type" and str(value) in LITERALS:
            near = f"write a literal input inline: `{keys[-2]}: VALUE`"
        return "bad-value", message, f"one of {', '.join(allowed)}", near
    unsupported = _UNSUPPORTED.match(text)
    if unsupported:
        allowed = sorted(TASKS if unsupported[1] == "task" else JOBS)
        near = did_you_mean(unsupported[2], allowed)
        return "bad-value", text.rstrip("."), f"one of {', '.join(allowed)}", near
    if "In order to specify an existing" in text and isinstance(value, str):
        expected = "`azureml:NAME:VERSION`, `azureml:NAME@latest`, or an inline definition"
        near = f"did you mean `azureml:{value}`?" if _looks_short(value) else ""
        return "bad-reference", message, expected, near
    if any(map(_TYPES.search, messages)):
        return "wrong-type", message, expected_types, _type_hint(name, value, field)
    if "Field may not be null." in messages:
        return "wrong-type", f"`{name}` is empty", expected_types, _type_hint(name, value, field)
    sentence = _first_sentence(text)
    hint = "this is azure-ai-ml's own message; `az ml` prints the same"
    return "invalid-field", f"{f'`{name}`: ' if name else ''}{sentence}", "", hint


def not_found(messages: tuple[str, ...]) -> str:
    """The path that the SDK did not find; "" for other messages."""
    missing = next(filter(None, map(_NOT_FOUND.search, messages)), None)
    return (missing["resolved"] or missing["opened"]) if missing else ""


def _owner(keys: tuple[Key, ...], kind: Kind) -> str:
    if len(keys) < 2:
        return kind.with_article
    return f"`{'.'.join(map(str, keys[:-1]))}`"


def _name(keys: tuple[Key, ...]) -> str:
    """The name of a node: `compute`, or `values[2]` in a list."""
    if len(keys) > 1 and isinstance(keys[-1], int):
        return f"{_name(keys[:-1])}[{keys[-1]}]"
    return str(keys[-1]) if keys else ""


def _type_hint(name: str, value: Any, field: Any) -> str:
    """A hint with a valid value."""
    words = fields.type_names(field)
    if isinstance(value, bool | int | float) and "text" in words:
        text = str(value).lower() if isinstance(value, bool) else value
        return f'write text in quotes: "{text}"'
    example = next((_EXAMPLES[word] for word in words if word in _EXAMPLES), "")
    return f"for example `{name}: {example}`" if example and "[" not in name else ""


_EXAMPLES = {
    "an integer": "3",
    "a number": "0.5",
    "true or false": "true",
    "text": "name",
    "a list": "[a, b]",
    "a mapping": "{field: value}",
}


def in_words(name: str, value: Any) -> str:
    """The value of the field `name` in words; secrets are masked."""
    words = _NAMES.get(type(value), f"a {type(value).__name__}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return f"{words} {secrets.masked(name, value)}"
    return words


def _wanted(field: Any, messages: tuple[str, ...]) -> str:
    words = fields.type_names(field)
    if not words:
        words = [
            f"a valid {match[1]}" for match in map(_TYPES.search, messages) if match and match[1]
        ]
    return " or ".join(words) or "a value that Azure ML accepts: text, a number or a mapping"


def _listed(messages: tuple[str, ...]) -> list[str]:
    """The allowed values that the messages list, each once."""
    sets = [match["set"] for match in map(_NOT_IN_SET.search, messages) if match]
    return list(dict.fromkeys(value for group in sets for value in re.findall(r"'([^']*)'", group)))


def _values_hint(field: Any) -> str:
    allowed = fields.allowed(field)
    return f"one of {', '.join(allowed)}" if allowed else ""


def _looks_short(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.-]+([:@][\w.-]+)?", value) is not None


def _first_sentence(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= 300 else f"{line[:297]}…"
