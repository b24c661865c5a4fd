"""Translates azure-ai-ml's errors into Problems with the line of the field."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

from marshmallow import Schema, ValidationError, fields

from ml.core.documents import Document, Key, read, strings
from ml.core.errors import Problem, UserError, nearest
from ml.specs.check import secret_patterns
from ml.specs.expressions import did_you_mean
from ml.specs.kinds import DATASTORES, JOBS, Kind, kind_of
from ml.specs.plan.plans import LITERALS
from ml.specs.sdk.tree import Leaf, Spot, allowed, leaves, names, type_names
from ml.specs.yaml_node import YamlNode

# Exceptions that the SDK's loaders raise for a value of an unexpected type.
_FAULTS = (AttributeError, TypeError, LookupError, RecursionError)
_UNPARSED = re.compile(r"Error while parsing yaml file: (?P<file>.*?)\s*(?:\n|$)")
SOURCE = "azure-ai-ml 1.35, the loader that `az ml` uses"
_UNREAD = "azure-ai-ml cannot read"
_AS_PRINTED = "azure-ai-ml's message, as `az ml` prints it"
_NOT_IN_SET = re.compile(r"Value (?P<value>.*) passed is not in set (?P<set>\[.*\])", re.DOTALL)
_NOT_FOUND = re.compile(
    r"Can't find .* in resolved absolute path: (?P<resolved>.*?)\.?$"
    r"|(?:\[Errno 2\] )?No such file or directory: '?(?P<opened>[^'\n]*)"
)
_TYPES = re.compile(
    r"Not a valid (\w+)|Invalid (input )?type|Given value is not a string|is not supported for"
)
_UNSUPPORTED = re.compile(r"Unsupported (task|job|datastore) type: (.*?)\.?$")
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


def translate(error: Exception, kind: Kind, document: Document, file: Path) -> tuple[Problem, ...]:
    """Return the problems in an error of the SDK's loader, each once, sorted by line.

    If the loader itself failed, the code is `loader-failed`; `ml check` drops that problem if a
    rule reports an error.
    """
    cause, schema = _original(error)
    spot = Spot((), YamlNode(document, file), schema=schema)
    if isinstance(cause, ValidationError) and isinstance(cause.messages, dict):
        sdk_messages = list(leaves(cause.messages, spot))
    else:
        text = getattr(cause, "message", None) or str(cause) or type(cause).__name__
        for key in _keys_of(cause.__traceback__) or _quoted(str(text), document):
            spot = spot.opened().child(key, None)
        if spot.keys and isinstance(cause, AttributeError | TypeError):
            text = f"{_UNREAD} {in_words(_name(spot.keys), spot.value)}"
        sdk_messages = [Leaf(replace(spot, schema=None), (str(text),))]
    problems: list[Problem] = []
    for leaf in sdk_messages:
        owner = leaf.spot.node.document
        owner_kind = (kind_of(owner.data) if owner is not document else None) or kind
        problems += _unreadable(leaf.messages) or [_problem(leaf, owner_kind)]
    if isinstance(cause, _FAULTS):
        problems = [replace(problem, code="loader-failed") for problem in problems]
    problems = _without_consequences(problems)
    problems.sort(key=lambda problem: problem.place.line if problem.place else 0)
    return tuple(dict.fromkeys(problems))


def _unreadable(messages: tuple[str, ...]) -> tuple[Problem, ...]:
    """Return the problems of a referenced YAML file that the SDK cannot parse, with its lines."""
    for match in filter(None, map(_UNPARSED.search, messages)):
        try:
            read(Path(match["file"]))
        except UserError as refused:
            return refused.problems
    return ()


def _text_of(missing: str, node: YamlNode) -> YamlNode:
    """Return the field below `node` whose text is the missing path; `node` if there is none."""
    for below, text in strings(node.mapping()):
        if missing and os.path.normpath(node.folder / text) == os.path.normpath(missing):
            return node.child(*below)
    return node


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """Drop a problem of a missing field if another problem reports its misspelling."""
    hints = " ".join(problem.hint for problem in problems if problem.code == "unknown-field")
    return [
        problem
        for problem in problems
        if problem.code != "missing-field" or problem.expected.replace(":`", "`?") not in hints
    ]


def _original(error: BaseException) -> tuple[BaseException, Any]:
    """Return the marshmallow error behind the SDK's error, and the outermost marshmallow schema.

    The schema is found in the frames of the traceback; None if there is none.
    """
    cause = error
    while isinstance(wrapped := cause.__cause__ or cause.__context__, ValidationError):
        cause = wrapped
    callers = (frame.f_locals.get("self") for frame, _ in walk_tb(cause.__traceback__))
    return cause, next((caller for caller in callers if isinstance(caller, Schema)), None)


def _keys_of(trace: TracebackType | None) -> tuple[Key, ...]:
    """Return the keys of the field that marshmallow was reading when an exception was raised.

    In a traceback, `Field.deserialize(value, attr)` has the key as `attr`; None for an entry of a
    list or dict.
    """
    keys: list[Key] = []
    parent: Any = None
    for frame, _ in walk_tb(trace):
        local = frame.f_locals
        if frame.f_code.co_name != "deserialize" or not isinstance(local.get("self"), fields.Field):
            continue
        value, key = local["value"], local["attr"]
        if value is parent:  # a union passes its value to each alternative
            continue
        if key is None:
            entries = parent.items() if isinstance(parent, dict) else enumerate(parent or ())
            key = next((key for key, entry in entries if entry is value), None)
        if isinstance(key, str | int):
            keys.append(key)
        parent = value
    return tuple(keys)


def _quoted(text: str, document: Document) -> tuple[Key, ...]:
    """Return the keys of the field that an error's text quotes; () if it quotes none."""
    quoted = [(keys, value) for keys, value in strings(document.data) if len(value) > 2]
    for keys, value in quoted:
        if re.search(rf"(?i){re.escape(str(keys[-1]))}\b.*{re.escape(value)}", text):
            return keys
    # Otherwise search the text for a key: `Parameter mini_batch_size must follow`.
    words = {word for word in text.split() if "_" in word}
    return next(
        (keys for keys, value in quoted if keys[-1] in words or (len(value) > 8 and value in text)),
        (),
    )


# Texts of problems from the SDK's messages.


def _problem(leaf: Leaf, kind: Kind) -> Problem:
    """Return one problem from the SDK's messages about one field; `kind` is the spec's kind."""
    path = _not_found(leaf.messages)
    node = _text_of(path, leaf.spot.node)
    code, message, expected, hint = _sentences(leaf, node, path, kind)
    return Problem(code, message, expected, hint, node.place(), source=SOURCE)


def _sentences(leaf: Leaf, node: YamlNode, path: str, kind: Kind) -> tuple[str, str, str, str]:
    """Return (code, actual, expected, hint) of a problem; `path` is a missing file or ""."""
    keys, messages, field, schema = node.keys, leaf.messages, leaf.spot.field, leaf.spot.schema
    name = _name(keys)
    owner = f"`{'.'.join(map(str, keys[:-1]))}`" if len(keys) > 1 else kind.with_article
    text = " ".join(messages)
    if "Unknown field." in messages:
        field_names = sorted(names(schema)) if schema is not None else []
        hint = did_you_mean(name, field_names)
        expected = "" if hint or not field_names else f"one of {', '.join(field_names)}"
        return "unknown-field", f"`{name}` is not a field of {owner}", expected, hint
    if "Missing data for required field." in messages:
        enclosing = node.document.get(*keys[:-1])
        # A key that the schema knows cannot be a misspelling of the missing field.
        around = getattr(field, "parent", None)
        right = names(around) if hasattr(around, "fields") else set()
        siblings = enclosing if isinstance(enclosing, dict) else {}
        unknown_keys = [str(key) for key in siblings if key not in right]
        misspelt, values = nearest(name, unknown_keys), allowed(field)
        hint = f"one of {', '.join(values)}" if values else ""
        hint = f"the spec has `{misspelt[0]}`" if misspelt else hint
        return "missing-field", f"{owner} has no `{name}`", f"`{name}:`", hint
    value = node.get()
    message = f"{f'`{name}`' if name else 'the file'} is {in_words(name, value)}"
    if name == "mini_batch_size" and "must follow regex rule" in text:
        return "bad-value", message, "a number of files, or a size such as `10kb` or `1mb`", ""
    if keys and isinstance(keys[-1], int) and isinstance(node.document.get(*keys[:-1]), dict):
        value, message = keys[-1], f"a key of {owner} is {in_words('', keys[-1])}"
    if path:
        setting = f"`{name}: {value}`" if isinstance(value, str) else f"`{name}`"
        message = f"{setting} does not exist on this machine"
        return "missing-file", message, "a path that exists", f"looked for {path}"
    expected_types = _wanted(field, messages)
    values = _listed(messages) or allowed(field)
    if _NOT_IN_SET.search(text) and values and "text" not in type_names(field):
        near = did_you_mean(str(value), values)
        if "inputs" in keys[-3:-2] and name == "type" and str(value) in LITERALS:
            near = f"write a literal input inline: `{keys[-2]}: VALUE`"
        types = [word for word in type_names(field) if word != "a mapping"]
        return "bad-value", message, " or ".join([*types, f"one of {', '.join(values)}"]), near
    unsupported = _UNSUPPORTED.match(text)
    if unsupported:
        kinds = {"task": TASKS, "job": JOBS, "datastore": DATASTORES}
        values = sorted(kinds[unsupported[1]])
        near = did_you_mean(unsupported[2], values)
        return "bad-value", text.rstrip("."), f"one of {', '.join(values)}", near
    if "In order to specify an existing" in text and not isinstance(value, dict | list):
        expected = "`azureml:NAME:VERSION`, `azureml:NAME@latest`, or an inline definition"
        near = f"did you mean `azureml:{value}`?" if _looks_short(value) else ""
        code = "bad-reference" if isinstance(value, str) else "wrong-type"
        return code, message, expected, near
    if any(map(_TYPES.search, messages)) or "Field may not be null." in messages:
        return "wrong-type", message, expected_types, _type_hint(name, value, field)
    sentence = _first_sentence(text.replace("{name}", f"`{name}`"))  # 1.35 leaves the placeholder
    expected, hint = ("a value of another type", "") if _UNREAD in text else ("", _AS_PRINTED)
    return "invalid-field", f"{f'`{name}`: ' if name else ''}{sentence}", expected, hint


def _not_found(messages: tuple[str, ...]) -> str:
    """Return the path in a message about a missing file; "" if there is no such message."""
    missing = next(filter(None, map(_NOT_FOUND.search, messages)), None)
    return (missing["resolved"] or missing["opened"]) if missing else ""


def _name(keys: tuple[Key, ...]) -> str:
    """Return the name of a node: `compute`, or `values[2]` in a list."""
    if len(keys) > 1 and isinstance(keys[-1], int):
        return f"{_name(keys[:-1])}[{keys[-1]}]"
    return str(keys[-1]) if keys else ""


def _type_hint(name: str, value: Any, field: Any) -> str:
    """Return a hint with a valid value; "" if none is known."""
    words = type_names(field)
    if isinstance(value, bool | int | float) and "text" in words:
        text = str(value).lower() if isinstance(value, bool) else value
        return f'write text in quotes: "{text}"'
    example = next((_EXAMPLES[word] for word in words if word in _EXAMPLES), "")
    if "an integer" in words and isinstance(value, str):
        span = _SPAN.match(value)
        if name.endswith("timeout"):
            seconds = int(span[1]) * _SECONDS[span[2].lower()] if span else 1800
            return f"write seconds: `{name}: {seconds}`"
        number = value.strip().lower()
        example = str(_NUMBERS.index(number)) if number in _NUMBERS else example
    return f"for example `{name}: {example}`" if example and "[" not in name else ""


_SPAN = re.compile(r"\s*(\d+)\s*([smhd])", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
_EXAMPLES = {
    "a date and time": '"2027-01-31T08:00:00"',
    "an integer": "3",
    "a number": "0.5",
    "true or false": "true",
    "text": "name",
    "a list": "[a, b]",
    "a mapping": "{field: value}",
}


def in_words(name: str, value: Any) -> str:
    """Describe the value of the field `name`, with secrets masked."""
    words = _NAMES.get(type(value), f"a {type(value).__name__}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return f"{words} {secret_patterns.masked(name, value)}"
    return words


def _wanted(field: Any, messages: tuple[str, ...]) -> str:
    words = type_names(field)
    if not words:
        words = [
            f"a valid {match[1]}" for match in map(_TYPES.search, messages) if match and match[1]
        ]
    return " or ".join(words) or "a value that Azure ML accepts: text, a number or a mapping"


def _listed(messages: tuple[str, ...]) -> list[str]:
    """Return the allowed values that the SDK's messages list, each once."""
    sets = [match["set"] for match in map(_NOT_IN_SET.search, messages) if match]
    return list(dict.fromkeys(value for group in sets for value in re.findall(r"'([^']*)'", group)))


def _looks_short(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.-]+([:@][\w.-]+)?", value) is not None


def _first_sentence(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= 300 else f"{line[:297]}…"
