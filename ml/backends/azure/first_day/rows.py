"""Read `rows.yml`: requests to Azure with the expected responses, and their comparison.

A response is first reduced to its form: the fields and words that the row lists, and the types of
other values. So neither the comparison nor a recorded response contains an id, a name or a secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_TYPES = {bool: "flag", str: "text", int: "number", float: "number", list: "list", dict: "object"}


@dataclass(frozen=True)
class Row:
    """A row of `rows.yml`: a request to Azure, or a command that a person or make runs."""

    group: str
    name: str
    # The az command equal to `request`; without one, a person (see `decision`) or make runs it.
    command: str
    source: str  # a public page or issue, a module of azure-ai-ml, or a file of this repository
    remedy: str
    expected: str = ""  # the command's correct output; "" for a request
    decision: str = ""  # what the command starts or changes: a person decides whether to run it
    request: str = ""  # `PLANE METHOD PATH`, with a plane of `Workspace.answer`; "" for none
    body: Mapping[str, Any] | None = None
    # Placeholder in later requests for the workspace's location or a list's first item's name.
    keep: str = ""
    status: int = 200
    # Fields of the response, with their type or allowed values.
    shape: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> list[str]:
        """The expected response as lines: the status, and each field's allowed values or type."""
        fields = (f"{path}: {spec.split(' ~ ')[0]}" for path, spec in _leaves(self.shape))
        return [f"status {self.status}", *fields]

    def compare(self, status: int, form: Any) -> tuple[bool, list[str]]:
        """Return whether a status and a body's form match the row, and both as lines."""
        is_right, facts = status == self.status, [f"status {status}"]
        for path, spec in _leaves(self.shape):
            values = {*_values(form, path)}
            is_right = is_right and values <= {*spec.split(" ~ ")[0].split("|")}
            facts.append(f"{path}: {', '.join(sorted(values)) or 'no item'}")
        return is_right, facts


def load() -> list[Row]:
    """Return every row, in the order of the file."""
    groups = yaml.safe_load(Path(__file__).with_name("rows.yml").read_text(encoding="utf-8"))
    return [Row(group, name, **row) for group, rows in groups.items() for name, row in rows.items()]


def words(spec: str) -> list[str]:
    """Return the allowed values in a leaf of a shape, as in `A|B ~ C`; [] if it is a type."""
    return [] if spec in _TYPES.values() else spec.replace(" ~ ", "|").split("|")


def form_of(shape: Any, answer: Any) -> Any:
    """Reduce a response to its form (see the module); equal list items are merged."""
    if isinstance(shape, Mapping) and isinstance(answer, dict):
        return {name: form_of(shape[name], answer[name]) for name in shape if name in answer}
    if isinstance(shape, list) and isinstance(answer, list):
        forms = [form_of(shape[0], item) for item in answer]
        return [*{json.dumps(form): form for form in forms}.values()]
    is_word = isinstance(shape, str) and answer in words(shape)
    return answer if is_word else _TYPES.get(type(answer), "null")


def _leaves(shape: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each leaf of a shape: its dotted path, and its allowed values or type."""
    if isinstance(shape, Mapping):
        for name, inner in shape.items():
            yield from _leaves(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(shape, list):
        yield from _leaves(shape[0], f"{path}[]")
    else:
        yield path, shape


def _values(form: Any, path: str) -> Iterator[str]:
    """Yield the values at a dotted path of a form, one for each item of a list (`name[]`)."""
    name, _, subpath = path.partition(".")
    value = form.get(name.removesuffix("[]"), "missing") if isinstance(form, dict) else "missing"
    for item in value if name.endswith("[]") and isinstance(value, list) else [value]:
        yield from _values(item, subpath) if subpath else [str(item)]
