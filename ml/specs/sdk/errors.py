"""Translates azure-ai-ml's errors into Problems with the line of the node concerned."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from marshmallow import ValidationError

from ml.core import repository
from ml.core.documents import Document, Key, read, strings
from ml.core.errors import Problem, Refused
from ml.specs.check.kinds import Kind, kind_of
from ml.specs.sdk import words
from ml.specs.sdk.tree import Leaf, Spot, leaves

# What a loader raises on a value of an unexpected shape.
_FAULTS = (AttributeError, TypeError, LookupError, RecursionError)
_UNPARSED = re.compile(r"Error while parsing yaml file: (?P<file>.*?)\s*(?:\n|$)")


def translate(error: Exception, kind: Kind, document: Document, file: Path) -> tuple[Problem, ...]:
    """The problems in an error of the SDK's loader, each once, in the order of the lines.

    A failure of the loader itself has the code `loader-failed`; a rule's problem replaces it.
    """
    cause, schema = _original(error)
    if isinstance(cause, ValidationError) and isinstance(cause.messages, dict):
        at = Spot((), document.data, schema=schema)
        sdk_messages = list(leaves(cause.messages, at, file.parent))
    else:
        text = getattr(cause, "message", None) or str(cause) or type(cause).__name__
        keys = _keys_of(cause.__traceback__) or _named(str(text), document)
        sdk_messages = [Leaf(keys, (str(text),), None, None)]
    problems: list[Problem] = []
    for leaf in sdk_messages:
        unreadable = _unreadable(leaf.messages)
        if unreadable:
            problems += unreadable
            continue
        where, keys = words.follow(leaf.keys, document, file)
        if where is document:
            keys = _to_the_file(keys, leaf.messages, document, file)
        kind = (kind_of(where.data) if where is not document else None) or kind
        problems.append(words.problem(keys, leaf.messages, leaf.field, leaf.schema, kind, where))
    if isinstance(cause, _FAULTS):
        problems = [replace(problem, code="loader-failed") for problem in problems]
    problems = _without_consequences(problems)
    problems.sort(key=lambda problem: problem.place.line if problem.place else 0)
    return tuple(dict.fromkeys(problems))


def _unreadable(messages: tuple[str, ...]) -> tuple[Problem, ...]:
    """The problems, at its own lines, of a file that the spec names and the SDK cannot read."""
    for match in filter(None, map(_UNPARSED.search, messages)):
        try:
            read(Path(match["file"]), repository.shown(Path(match["file"])))
        except Refused as refused:
            return refused.problems
    return ()


def _to_the_file(
    keys: tuple[Key, ...], messages: tuple[str, ...], document: Document, file: Path
) -> tuple[Key, ...]:
    """The keys of a missing path for which the SDK names only the mapping around it."""
    resolved = words.not_found(messages)
    if not resolved or not isinstance(document.get(*keys), dict):
        return keys
    for below, text in strings(document.get(*keys)):
        if os.path.normpath(file.parent / text) == os.path.normpath(resolved):
            return (*keys, *below)
    return keys


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """Without the missing fields that are misspelt: the misspelling is reported."""
    hints = " ".join(problem.hint for problem in problems if problem.code == "unknown-field")
    return [
        problem
        for problem in problems
        if problem.code != "missing-field" or problem.expected.replace(":`", "`?") not in hints
    ]


def _original(error: BaseException) -> tuple[BaseException, Any]:
    """The error as marshmallow raised it, and the outermost schema that was loading.

    `load_from_dict` wraps it in an error with one long text; only the frames have the schema.
    """
    cause = error
    while isinstance(cause.__cause__, ValidationError):
        cause = cause.__cause__
    schema = None
    trace = cause.__traceback__
    while trace is not None and schema is None:
        if trace.tb_frame.f_code.co_name == "_do_load":
            schema = trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
    return cause, schema


def _keys_of(trace: TracebackType | None) -> tuple[Key, ...]:
    """The keys that marshmallow was reading when another error than its own was raised."""
    keys: list[Key] = []
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name == "_deserialize" and "marshmallow" in code.co_filename:
            name = {"schema.py": "field_name", "fields.py": "key"}.get(
                code.co_filename.rpartition("/")[2], ""
            )
            name = "idx" if "idx" in local else name
            if isinstance(local.get(name), str | int):
                keys.append(local[name])
        trace = trace.tb_next
    return tuple(keys)


def _named(text: str, document: Document) -> tuple[Key, ...]:
    """The node whose value an error outside marshmallow quotes: `Unsupported job type: foo`."""
    quoted = [(keys, value) for keys, value in strings(document.data) if len(value) > 2]
    for keys, value in quoted:
        if re.search(rf"{re.escape(str(keys[-1]))}\b.*{re.escape(value)}", text):
            return keys
    return next((keys for keys, value in quoted if len(value) > 8 and value in text), ())
